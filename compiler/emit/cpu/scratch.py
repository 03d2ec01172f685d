"""How much scratch each op's code needs, known before memory is planned, so that it can be.

Patches of a convolution, partial sums of threads, a product that an epilogue turns into another
type: scratch is needed while one op runs, and may lie where other values lie before and after.
"""

from __future__ import annotations

import os

from gflow.compiler.ir.contractions import CONTRACTIONS
from gflow.compiler.ir.ssa import Op, fused_kind
from gflow.compiler.kernel.description import Kernel
from gflow.dialects.mlir import func

from ..steps import scratch_of_ops
from .build import add_op
from .language.parameters import Plan
from .program_builder import Builder


class _Dry(Builder):
    """Decides all that a builder decides, and writes no kernels."""

    def kernel(self, k: Kernel, p: Plan) -> str:
        return ""


def scratch_bytes(function: func.FuncOp, threads: int, blas: bool) -> dict[int, int]:
    """For each op that needs scratch, by its number, how many bytes.

    `gflow.buffers` must be there: what lies where decides whether a contraction needs scratch. An op
    without code for the CPU needs none.

    Args:
        threads: the most threads that kernels will run on; all cores if 0.
        blas: whether generated code may call BLAS.
    """
    b = _Dry(function, threads or os.cpu_count() or 1, blas)
    return scratch_of_ops(b, add_op, _may_need)


_MAY_NEED = frozenset({"aten", "attention", "attention_grad", "constant"})


def _may_need(o: Op) -> bool:
    """Whether an op is of a kind that may need scratch: a constant or a view costs nothing to ask."""
    if o.name == "fused":
        return fused_kind(o.op) != "pointwise"
    return o.name in CONTRACTIONS or o.name in _MAY_NEED
