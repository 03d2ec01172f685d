"""Fold constants, apply algebra that keeps results exact, cancel shape ops, erase dead ops.

The rules are small functions in `simplify_algebra.py` and `simplify_shape.py`; one sweep over the
function in program order applies them all (`rewriting.py`). Rules that would change a result of
IEEE arithmetic, infinities, NaN and the sign of zero included, are not there.

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

from . import simplify_algebra, simplify_shape
from .base import NoOptions, Pass
from .rewriting import Rewriter, Rules, all_rules

RULES: Rules = {
    name: simplify_algebra.RULES.get(name, []) + simplify_shape.RULES.get(name, [])
    for name in {**simplify_algebra.RULES, **simplify_shape.RULES}
}


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Simplify one function in place."""
    Rewriter(function, RULES).sweep()


_TABLE = "\n".join(f"- {rule.__doc__}" for rule in all_rules(RULES))

PASS = Pass("gflow-simplify", run, doc=f"{__doc__}\nThe rules:\n\n{_TABLE}\n")
