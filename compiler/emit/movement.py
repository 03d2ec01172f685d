"""Ops that only move or make elements, as copies between places: what the code for each kind of target runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.program import Place
from gflow.dialects.types import TensorType

from ..ir.ssa import Op
from ..kernel.description import Node
from .placement import Placement, shifted


class Copy(NamedTuple):
    """Elements of type `ty` from one place to another; strides in elements, negative ones walk backwards."""

    source: Place
    source_strides: tuple[int, ...]
    target: Place
    target_strides: tuple[int, ...]
    ty: TensorType


def counting(b: Placement, o: Op) -> tuple[list[Node], tuple[int, ...]]:
    """The nodes of an iota, and the walk of its index."""
    dim = read(OPS["iota"], o.op.attributes)["dim"]
    ty = b.body.types[o.results[0]]
    nodes = [Node("index", "i64", slot=0)]
    if ty.dtype != "i64":
        nodes.append(Node("convert", ty.dtype, (0,), {"dtype": ty.dtype}))
    return nodes, tuple(int(d == dim) for d in range(ty.rank))


def concatenation(b: Placement, o: Op) -> Iterator[Copy]:
    """Each operand to its part of the result."""
    (r,) = o.results
    dim = read(OPS["concatenate"], o.op.attributes)["dim"]
    ty, strides = b.body.types[r], b.strides(r)
    start = 0
    for x in o.operands:
        part = b.body.types[x]
        target = shifted(b.place(r), start * strides[dim], ty)
        yield Copy(b.place(x), b.strides(x), target, strides, part)
        start += part.shape[dim]


def reversal(b: Placement, o: Op) -> Iterator[Copy]:
    """One copy that reads from the last element on; none of no elements."""
    (x,), (r,) = o.operands, o.results
    dims = read(OPS["reverse"], o.op.attributes)["dims"]
    ty, own = b.body.types[x], b.strides(x)
    if ty.numel == 0:
        return
    start = shifted(b.place(x), sum((ty.shape[d] - 1) * own[d] for d in dims), ty)
    flipped = tuple(-s if d in dims else s for d, s in enumerate(own))
    yield Copy(start, flipped, b.place(r), b.strides(r), ty)
