"""Fold constants, apply exact algebraic identities, cancel shape ops, and erase dead ops.

The rules are small functions in `compiler/passes/simplify/`, ordered by subject. One sweep over the function in program
order applies them all (`rewriter.py`). No rule changes a result of IEEE arithmetic, including infinities, NaN and the
sign of zero.

Before:

    %0 = "gflow.constant"() {value = dense<2.0> : tensor<4xf32>} : () -> tensor<4xf32>
    %1 = "gflow.div"(%x, %0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %2 = "gflow.reshape"(%1) {shape = array<i64: 2, 2>} : (tensor<4xf32>) -> tensor<2x2xf32>
    %3 = "gflow.reshape"(%2) {shape = array<i64: 4>} : (tensor<2x2xf32>) -> tensor<4xf32>

After:

    %0 = "gflow.constant"() {value = dense<5.0e-01> : tensor<4xf32>} : () -> tensor<4xf32>
    %1 = "gflow.mul"(%x, %0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
"""

from __future__ import annotations

from gflow.dialects.mlir import func

from ..base import NoOptions, Pass
from . import arithmetic, choices, constants, conversions, padding, reductions, shapes, slices
from .rewriter import Rewriter
from .rules import joined

RULES = joined(
    *(
        m.RULES
        for m in (constants, arithmetic, choices, conversions, reductions, shapes, slices, padding)
    )
)


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Simplify one function in place."""
    Rewriter(function, RULES).sweep()


_TABLE = "\n".join(f"- {rule.__doc__}" for rule in RULES.all())

PASS = Pass("gflow-simplify", run, doc=f"{__doc__}\nThe rules:\n\n{_TABLE}\n")
