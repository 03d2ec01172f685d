"""A `gflow.fused` op under construction, for passes that join kernels.

region = Region("row", [x, y], types)     %r = "gflow.fused"(%x, %y) ({
with ir.InsertionPoint(region.block):  →  ^bb0(%i, %j):
    …                                       …
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from gflow.compiler.ir.ssa import clone_into
from gflow.compiler.targets import KINDS
from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.opdef import MIXED_GROUPS
from gflow.dialects.records import record
from gflow.dialects.types import TensorType


@record
class JoinOptions:
    """Options of passes that join kernels by the model of tiles."""

    target: str = field(
        default="", metadata={"doc": f"the GPU whose tiles are modelled: {', '.join(KINDS)}"}
    )
    max_inputs: int = field(default=40, metadata={"doc": "the most operands of one kernel"})


def fit_one_kernel(
    operands: Iterable[ir.Value], results: Iterable[ir.Value], options: JoinOptions
) -> bool:
    """Whether one kernel may have these operands and results: their number, and that of their types, is limited."""
    operands = {*operands}
    types = max(len({v.type for v in operands}), len({v.type for v in results}))
    return len(operands) <= options.max_inputs and types <= MIXED_GROUPS


class Region:
    """The op, its operands in the order of their types, and the values of its region.

    Attributes:
        op: the op, at the insertion point.
        operands: its operands, each once.
        block: the block of its region.
        inside: the values of the region, by the values that they represent.
    """

    def __init__(self, kind: str, operands: Iterable[ir.Value], results: Sequence[TensorType]):
        self.operands = sorted(dict.fromkeys(operands), key=lambda v: str(v.type))
        self.op = builder.build_op("fused", self.operands, {"kind": kind}, list(results))
        self.block = self.op.regions[0].blocks.append(*[v.type for v in self.operands])
        self.inside = dict(zip(self.operands, self.block.arguments))

    def enter(self, old: ir.Operation) -> dict[ir.Value, ir.Value]:
        """Make the arguments of another op's region values of this one."""
        arguments = old.regions[0].blocks[0].arguments
        pairs = zip(arguments, old.operands)
        return {a: self.inside[v] for a, v in pairs if v in self.inside}


def ops_inside(fused: ir.Operation) -> list[ir.Operation]:
    """The ops in a fused op's region, its terminator last."""
    return [view.operation for view in fused.regions[0].blocks[0].operations]


def cloned(region: Region, fused: ir.Operation) -> dict[ir.Value, ir.Value]:
    """Copy the ops of a fused op, or an op alone, into a region. Returns what its results are there."""
    if fused.name != "gflow.fused":
        known = {v: region.inside[v] for v in fused.operands}
        clone_into(fused, known)
        return {r: known[r] for r in fused.results}
    known = region.enter(fused)
    *inner, end = ops_inside(fused)
    for op in inner:
        clone_into(op, known)
    return {v: known[y] for v, y in zip(fused.results, end.operands)}
