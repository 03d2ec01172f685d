"""Replace the all_reduce of a gradient by a reduce_scatter and an all_gather.

Before:

    %g, %t = "gflow.collective"(%dw) {kind = "all_reduce", gflow.gradient = "w", …} : (tensor<4x2xf32>) -> …

After:

    %0 = "gflow.reshape"(%dw) {shape = array<i64: 8>} : …
    %s, %t = "gflow.collective"(%0) {kind = "reduce_scatter", gflow.gradient = "w", …} : (tensor<8xf32>) -> …
    %1, %u = "gflow.collective"(%s, %t) {kind = "all_gather", gflow.gradient = "w", …} : (tensor<4xf32>, …) -> …
    %g = "gflow.reshape"(%1) {shape = array<i64: 4, 2>} : …

A ring all_reduce does the same two steps. With this pass, plain data parallelism adds the terms of each element in the
same order and in the same buckets as the stages of ZeRO, so the results are bitwise equal.
"""

from __future__ import annotations

from gflow.compiler.ir.collectives import GRADIENT, thread, unthread
from gflow.dialects.mlir import func, ir

from ..base import Pass
from .pieces import Pieces, gradients, group_read
from .zero_1 import ZeroOptions


def run(function: func.FuncOp, options: ZeroOptions) -> None:
    """Split the all-reduces of gradients of the function, in place."""
    if not gradients(function, options.min_size):
        return
    unthread(function)
    for op in gradients(function, options.min_size):
        pieces = Pieces(function, group_read(op))
        pieces.scatter(op)
        name = ir.StringAttr(op.attributes[GRADIENT]).value
        with op.location, ir.InsertionPoint(op):
            op.results[0].replace_all_uses_with(pieces.whole(op.results[0], name))
        op.erase()
    thread(function)


PASS = Pass("gflow-decompose-all-reduce", run, ZeroOptions, __doc__ or "")
