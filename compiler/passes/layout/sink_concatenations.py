"""Sink concatenations below the elementwise ops that read them, so that these ops compute the operands.

Before:

    %0 = "gflow.concatenate"(%a, %b) {dim = 0 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>}
       : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %1 = "gflow.mul"(%0, %y) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>

After:

    %0 = "gflow.slice"(%y) {…} : (tensor<8x8xf32>) -> tensor<4x8xf32>
    %1 = "gflow.mul"(%a, %0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %2 = "gflow.slice"(%y) {…} : (tensor<8x8xf32>) -> tensor<4x8xf32>
    %3 = "gflow.mul"(%b, %2) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %4 = "gflow.concatenate"(%1, %3) {dim = 0 : i64, …} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>

A kernel that computes the operands of a concatenation can write them directly into the result
(`gflow-write-in-place`), so a rotary position embedding, which rotates the two halves of a vector, is one kernel. The
pass handles concatenations of at most four operands that have no other reader. An elementwise value whose only readers
are slices is computed for each slice separately, unless it can be the epilogue of a product or part of a norm's
kernel.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import prod

from gflow.compiler.ir.fused import CONTRACTIONS
from gflow.compiler.targets import DEVICES
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType

from ..base import NoOptions, Pass
from ..simplify.rewriter import Node, Rewriter
from ..simplify.rules import ELEMENTWISE, Rules

_MOST_PARTS = 4
_MAX_DEPTH = 8
#: operands begin at multiples of the bytes that a thread of any device loads at once
_ALIGNED = max(d.access for d in DEVICES.values())

RULES = Rules()

#: a dimension, and the bounds of the operands in it
Cut = tuple[int, int, int]


@RULES.add(*ELEMENTWISE, on=("concatenate",))
def elementwise(n: Node, b: Rewriter) -> ir.Value | None:
    """An elementwise op of a concatenation."""
    for x in n.operands:
        joined = b.node(x, "concatenate")
        if joined is None or len(joined.operands) > _MOST_PARTS or _uses(x) != n.operands.count(x):
            continue
        dim = joined.attrs["dim"]
        sizes = [b.type(part).shape[dim] for part in joined.operands]
        inner = prod(n.type.shape[dim + 1 :]) * min(b.type(v).itemsize for v in n.operands)
        if any(size == 0 or size * inner % _ALIGNED for size in sizes):
            continue
        ends = list(accumulate(sizes, initial=0))
        parts = [
            b.build(n.name, [_part(b, v, (dim, *cut), 0) for v in n.operands], n.attrs)
            for cut in pairwise(ends)
        ]
        return b.build("concatenate", parts, {"dim": dim})
    return None


@RULES.add("slice", on=ELEMENTWISE)
def slice_of_elementwise(n: Node, b: Rewriter) -> ir.Value | None:
    """A slice of a value that only slices read, or that is a widening of another one."""
    (x,) = n.operands
    node = b.node(x)
    if node is None or any(s != 1 for s in n.attrs["strides"]):
        return None
    if not _widens(b, node) and not _for_slices(b, x):
        return None
    sliced = [_slice(b, v, n.attrs["starts"], n.attrs["limits"]) for v in node.operands]
    return b.build(node.name, sliced, node.attrs)


def _uses(value: ir.Value) -> int:
    return sum(1 for _ in value.uses)


def _part(b: Rewriter, value: ir.Value, cut: Cut, depth: int) -> ir.Value:
    """The slice of `value` between two positions of a dimension."""
    dim, start, end = cut
    node = b.node(value)
    if node is not None and node.name == "concatenate" and node.attrs["dim"] == dim:
        at = 0
        for part in node.operands:
            size = b.type(part).shape[dim]
            if (at, at + size) == (start, end):
                return part
            at += size
    alone = node is not None and node.name in ELEMENTWISE and _uses(value) == 1
    if node is not None and alone and depth < _MAX_DEPTH and not _may_follow(b, value, 0):
        return b.build(node.name, [_part(b, v, cut, depth + 1) for v in node.operands], node.attrs)
    shape = b.type(value).shape
    starts = tuple(start if d == dim else 0 for d in range(len(shape)))
    limits = tuple(end if d == dim else size for d, size in enumerate(shape))
    return _slice(b, value, starts, limits)


def _slice(
    b: Rewriter, value: ir.Value, starts: tuple[int, ...], limits: tuple[int, ...]
) -> ir.Value:
    number = b.splat(value)
    if number is not None:
        shape = tuple(high - low for low, high in zip(starts, limits))
        return b.constant(number, TensorType(shape, b.type(value).dtype))
    attrs = {"starts": starts, "limits": limits, "strides": (1,) * len(starts)}
    return b.build("slice", [value], attrs)


def _widens(b: Rewriter, node: Node) -> bool:
    """Whether a conversion widens elements; readers of half-precision values convert when they load."""
    return node.name == "convert" and b.type(node.operands[0]).itemsize < node.type.itemsize


def _for_slices(b: Rewriter, value: ir.Value) -> bool:
    """Whether the only readers of a value are slices, of no more elements than it has, and no kernel computes it
    together with something else."""
    found = _slices(b, value, 0)
    if found is None or len(found) > _MOST_PARTS:
        return False
    elements = sum(prod(high - low for low, high in zip(*bounds)) for bounds in found)
    return elements <= b.type(value).numel and not _may_follow(b, value, 0)


#: the bounds of a slice
_Bounds = tuple[tuple[int, ...], tuple[int, ...]]


def _slices(b: Rewriter, value: ir.Value, depth: int) -> set[_Bounds] | None:
    """The slices through which a value, or values computed from it alone, are read; None if there are other readers."""
    found: set[_Bounds] = set()
    for number, use in enumerate(value.uses):
        op = use.owner.operation
        name = op.name.removeprefix("gflow.")
        if number > 4 * _MOST_PARTS or depth > _MAX_DEPTH:
            return None
        if name == "slice":
            attrs = b.read_attributes(op, OPS[name])
            found.add((attrs["starts"], attrs["limits"]))
        elif name in ELEMENTWISE and (more := _slices(b, op.results[0], depth + 1)) is not None:
            found |= more
        else:
            return None
    return found


def _may_follow(b: Rewriter, value: ir.Value, depth: int) -> bool:
    """Whether a value is computed position by position from a product, or from sums over rows: the kernel that
    makes those could make it."""
    node = b.node(value)
    if node is None or depth > _MAX_DEPTH:
        return False
    if node.name in CONTRACTIONS or node.name == "reduce":
        return True
    if node.name not in (*ELEMENTWISE, "reshape", "broadcast"):
        return False
    return any(_may_follow(b, v, depth + 1) for v in node.operands)


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Move concatenations in one function, in place."""
    ops = function.regions[0].blocks[0].operations
    if any(op.operation.name == "gflow.concatenate" for op in ops):
        Rewriter(function, RULES).sweep()


PASS = Pass("gflow-sink-concatenations", run, doc=__doc__)
