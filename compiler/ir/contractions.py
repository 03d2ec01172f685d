"""Contractions inside fused ops: a `gflow.fused` of kind "contraction" has one, its root.

%r = "gflow.fused"(%a, %b, %c) ({
^bb0(%x, %y, %z):
  %0 = "gflow.matmul"(%x, %y)        the root; its operands are block arguments
  %1 = "gflow.add"(%0, %z)           the epilogue
  "gflow.yield"(%1)
}) {kind = "contraction"}
"""

from __future__ import annotations

from gflow.dialects.mlir import ir
from gflow.dialects.ops import CONTRACTIONS

from .ssa import fused_kind


def root_of(fused: ir.Operation) -> ir.Operation | None:
    """The contraction in a `gflow.fused` op; None without one."""
    if fused_kind(fused) not in ("", "contraction"):
        return None
    for op in fused.regions[0].blocks[0].operations:
        if op.operation.name.removeprefix("gflow.") in CONTRACTIONS:
            return op.operation
    return None


def root_operands(root: ir.Operation) -> list[int]:
    """For each operand of a root, the number of the fused op's operand."""
    return [ir.BlockArgument(v).arg_number for v in root.operands]
