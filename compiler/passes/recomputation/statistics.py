"""Kernels that store their small statistics, so that recomputing a large result needs no second reduction.

A normalization reduces its rows to a mean and a variance, and applies them. Its backward needs the normalized rows.
They follow from the input, the mean and the reciprocal deviation element by element, if the kernel stores these.

Before, a kernel whose result cannot be recomputed without the sum:

    %y = "gflow.fused"(%x) ({
    ^bb0(%a: tensor<64x512xf32>):
      %0 = "gflow.reduce"(%a) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x512xf32>) -> tensor<64xf32>
      %1 = "gflow.broadcast"(%0) {dims = array<i64: 0>, shape = array<i64: 64, 512>} : …
      %2 = "gflow.sub"(%a, %1) : …
      "gflow.yield"(%2) : …
    }) {kind = "row"} : (tensor<64x512xf32>) -> tensor<64x512xf32>

After `store_statistics`; `gflow-rematerialize` removes such results again where no recomputation reads them:

    %y, %s = "gflow.fused"(%x) ({
      …
      "gflow.yield"(%2, %0) : …
    }) {kind = "row"} : (tensor<64x512xf32>) -> (tensor<64x512xf32>, tensor<64xf32>)
"""

from __future__ import annotations

from gflow.compiler.ir.fused import widen_fused
from gflow.compiler.ir.ssa import fused_kind
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir

#: a statistic is stored if the largest result of its kernel has at least so many times its bytes
_SMALL = 16


def store_statistics(function: func.FuncOp) -> bool:
    """Add to the results of each reducing kernel the small values that it broadcasts again.

    Returns:
        Whether there were any.
    """
    changed = False
    for view in list(function.regions[0].blocks[0].operations):
        op = view.operation
        if fused_kind(op) in ("row", "column") and (found := _statistics(op)):
            widen_fused(op, found)
            changed = True
    return changed


def _statistics(op: ir.Operation) -> list[ir.Value]:
    *inner, last = [o.operation for o in op.regions[0].blocks[0].operations]
    stored = set(last.operands)
    largest = max(builder.type_of(r).nbytes for r in op.results)
    reduced: set[ir.Value] = set()
    found: dict[ir.Value, None] = {}
    for o in inner:
        name = o.name.removeprefix("gflow.")
        if name == "reduce" or any(v in reduced for v in o.operands):
            reduced.update(o.results)
        if name != "broadcast" or (v := o.operands[0]) not in reduced or v in stored:
            continue
        if _SMALL * builder.type_of(v).nbytes <= largest:
            found[v] = None
    return list(found)
