"""ZeRO stage 1: each rank updates its shard of every parameter, and keeps optimizer state only for that shard.

Before:

    %g, %t = "gflow.collective"(%dw) {kind = "all_reduce", gflow.gradient = "w", axes = ["dp"], ranks = 2 : i64, …}
    %m1 = "gflow.add"(%m, %g) : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>       // %m: momentum
    %w1 = "gflow.sub"(%w, %m1) : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>

After:

    %0 = "gflow.reshape"(%dw) {shape = array<i64: 8>} : …
    %s, %t = "gflow.collective"(%0) {kind = "reduce_scatter", gflow.gradient = "w", …} : (tensor<8xf32>) -> …
    %m1 = "gflow.add"(%m, %s) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>              // %m: a piece
    %p = "gflow.shard"(%w) {axes = ["dp"], ranks = 2 : i64} : (tensor<4x2xf32>) -> tensor<4xf32>
    %u = "gflow.sub"(%p, %m1) : …
    %1, %v = "gflow.collective"(%u) {kind = "all_gather", gflow.gradient = "w", …} : (tensor<4xf32>) -> …
    %w1 = "gflow.reshape"(%1) {shape = array<i64: 4, 2>} : …

Ops that are elementwise from the gradient on are computed on shards (`pieces.py`). A norm is computed for each shard
and combined over the ranks. Other ops of an update (a matrix product, a reduction of rows) read the gathered tensor,
so every optimizer gives correct results. Optimizer state that is read and updated only in shards becomes a sharded
argument, and `gflow.whole` gives the shape of the whole tensor. Gradients of fewer than `min-size` elements are not
sharded.
"""

from __future__ import annotations

from dataclasses import field

from gflow.compiler.ir.collectives import thread, unthread
from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record

from ..base import Pass
from .pieces import Pieces, gradients, group_read, keep_pieces


@record
class ZeroOptions:
    """Options of the ZeRO passes: which tensors are sharded."""

    min_size: int = field(default=1024, metadata={"doc": "the fewest elements of a parameter"})


#: the roles of arguments that are never sharded
_WHOLE = ("parameter", "buffer", "gradient", "input", "constant")


def run(function: func.FuncOp, options: ZeroOptions) -> None:
    """Shard the updates of parameters and their optimizer state over the ranks, in place."""
    if not gradients(function, options.min_size):
        return
    unthread(function)  # removes the tokens between collectives
    found: dict[str, list[ir.Operation]] = {}
    for op in gradients(function, options.min_size):
        found.setdefault(str(group_read(op)), []).append(op)
    for ops in found.values():
        pieces = Pieces(function, group_read(ops[0]))
        for op in ops:
            pieces.scatter(op)
        pieces.sweep()
        keep_pieces(function, pieces, lambda role: bool(role) and role not in _WHOLE)
    thread(function)


PASS = Pass("gflow-zero-1", run, ZeroOptions, __doc__ or "")
