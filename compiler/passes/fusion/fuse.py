"""Group elementwise ops and reductions into kernels.

Before:

    %0 = "gflow.mul"(%a, %b) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = "gflow.exp"(%0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %2 = "gflow.reduce"(%1) {dims = array<i64: 1>, kind = "sum"} : (tensor<8x4xf32>) -> tensor<8xf32>

After:

    %r = "gflow.fused"(%a, %b) ({
    ^bb0(%x: tensor<8x4xf32>, %y: tensor<8x4xf32>):
      %0 = "gflow.mul"(%x, %y) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
      %1 = "gflow.exp"(%0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %2 = "gflow.reduce"(%1) {dims = array<i64: 1>, kind = "sum"} : (tensor<8x4xf32>) -> tensor<8xf32>
      "gflow.yield"(%2) …
    }) {kind = "row", …} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8xf32>

A group has one index space. A reduction joins the group of its elementwise producers. Ops that follow a reduction may
join too: in a "row" kernel (the innermost dimension is reduced) all of them, in a "column" kernel (the innermost
dimension is kept) only those of the reduced shape, or all of them where columns are short (`column-length`).
Constants, broadcasts and unit reshapes cost nothing and are repeated in each group that needs them. A value is
recomputed rather than stored if another group can compute it from operands that it loads anyway. At the end, a
pointwise kernel that reads the result of a contraction may become its epilogue (`kind = "contraction"`): bias,
activation, residual add, a parameter update.

Groups must not depend on each other cyclically. Every group has a level, one above the highest group that it reads. An
op may join a group only if all its other operands have a lower level. Levels therefore never change, and the test is
local (compare the levels of XLA's instruction fusion and the "height" of Inductor's scheduler).
"""

from __future__ import annotations

from gflow.compiler.ir.ssa import aliases, read_live_body
from gflow.dialects.mlir import func

from ..base import Pass
from .dataflow import Dataflow
from .emit import emit
from .epilogue import join_epilogues
from .groups import FuseOptions, Grouping
from .grow import grow, merge_siblings
from .recompute import recompute


def run(function: func.FuncOp, options: FuseOptions) -> None:
    """Fuse ops of the function into kernels, in place."""
    body = read_live_body(function)
    targets = zip(body.returned, aliases(function, body))
    updates = frozenset(v for v, alias in targets if alias is not None)
    grouping = Grouping(Dataflow(body, options.cast_scale), options, updates)
    grow(grouping)
    merge_siblings(grouping)
    recompute(grouping)
    if options.epilogues:
        join_epilogues(grouping)
    emit(grouping)


PASS = Pass("gflow-fuse", run, FuseOptions, __doc__ or "")
