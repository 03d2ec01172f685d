"""Store the positions of pooling maxima as bytes relative to the window where only the gradient reads them.

Before:

    %0:2 = "gflow.max_pool"(%x) {kernel = array<i64: 2, 2>, layout = "N*C", padding = array<i64: 0, 0>,
        positions = "plane", stride = array<i64: 2, 2>, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>,
        resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>}
       : (tensor<2x8x8x3xf32>) -> (tensor<2x4x4x3xf32>, tensor<2x4x4x3xi64>)
    %1 = "gflow.max_pool_grad"(%0#0, %0#1) {kernel = array<i64: 2, 2>, layout = "N*C", padding = array<i64: 0, 0>,
        shape = array<i64: 2, 8, 8, 3>, stride = array<i64: 2, 2>}
       : (tensor<2x4x4x3xf32>, tensor<2x4x4x3xi64>) -> tensor<2x8x8x3xf32>

After:

    %0:2 = "gflow.max_pool"(%x) {… positions = "window", …}
       : (tensor<2x8x8x3xf32>) -> (tensor<2x4x4x3xf32>, tensor<2x4x4x3xui8>)
    %1 = "gflow.max_pool_grad"(%0#0, %0#1) {…} : (tensor<2x4x4x3xf32>, tensor<2x4x4x3xui8>) -> tensor<2x8x8x3xf32>

The default is a 64-bit position in the plane, as in PyTorch. Positions that nothing reads are not computed.
"""

from __future__ import annotations

from math import prod

from gflow.compiler.ir.ssa import attributes_of
from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.pooling import MOST_COUNTED

from ..base import NoOptions, Pass


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Store positions of max pools of the function relative to their windows, as a byte, where only gradients read
    them."""
    for view in list(function.regions[0].blocks[0].operations):
        op = view.operation
        if op.name == "gflow.max_pool" and len(op.results) == 2:
            wanted = _wanted(op)
            if wanted is not None:
                _replace(op, wanted)


def _wanted(op: ir.Operation) -> str | None:
    """The kind of positions that an op should return instead; None if it stays."""
    attrs = read(OPS["max_pool"], op.attributes)
    users = [use.owner.operation.name for use in op.results[1].uses]
    if not users:
        return "none"
    if any(name != "gflow.max_pool_grad" for name in users) or attrs["positions"] != "plane":
        return None
    regular = attrs.get("size") is None and prod(attrs["kernel"]) <= MOST_COUNTED
    return "window" if regular else None


def _replace(op: ir.Operation, positions: str) -> None:
    """Rebuild the op with other positions, or without positions."""
    attrs = {**read(OPS["max_pool"], op.attributes), "positions": positions}
    with ir.InsertionPoint(op), op.location:
        new = builder.build_op("max_pool", list(op.operands), attrs)
    for name, value in attributes_of(op).items():
        if name.startswith("gflow."):
            new.attributes[name] = value
    for old, result in zip(op.results, new.results):
        old.replace_all_uses_with(result)
    op.erase()


PASS = Pass("gflow-narrow-positions", run, doc=__doc__)
