"""Ops that only move or make elements: copies between places."""

from __future__ import annotations

from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS

from ...ssa import Op
from ..kernel import Node
from ..placement import shifted
from .builder import Builder


def iota(b: Builder, o: Op) -> None:
    dim = read(OPS["iota"], o.op.attributes)["dim"]
    (r,) = o.results
    ty = b.body.types[r]
    nodes = [Node("index", "i64", slot=0)]
    if ty.dtype != "i64":
        nodes.append(Node("convert", ty.dtype, (0,), {"dtype": ty.dtype}))
    walk = tuple(int(d == dim) for d in range(ty.rank))
    b.flat(b.place(r), ty, b.strides(r), nodes, b.label(o), indices=[walk])


def pad(b: Builder, o: Op) -> None:
    """The padding value everywhere, then the operand inside."""
    x, value = o.operands
    (r,) = o.results
    low = read(OPS["pad"], o.op.attributes)["low"]
    ty, strides, place, label = b.body.types[r], b.strides(r), b.place(r), b.label(o)
    b.copy(b.place(value), (0,) * ty.rank, place, strides, ty, label)
    inner = shifted(place, sum(a * s for a, s in zip(low, strides)), ty)
    b.copy(b.place(x), b.strides(x), inner, strides, b.body.types[x], label)


def concatenate(b: Builder, o: Op) -> None:
    (r,) = o.results
    dim = read(OPS["concatenate"], o.op.attributes)["dim"]
    ty, strides = b.body.types[r], b.strides(r)
    start = 0
    for x in o.operands:
        part = b.body.types[x]
        target = shifted(b.place(r), start * strides[dim], ty)
        b.copy(b.place(x), b.strides(x), target, strides, part, b.label(o))
        start += part.shape[dim]


def reverse(b: Builder, o: Op) -> None:
    """A copy that reads from the last element on, with negative strides."""
    (x,), (r,) = o.operands, o.results
    dims = read(OPS["reverse"], o.op.attributes)["dims"]
    ty, own = b.body.types[x], b.strides(x)
    if ty.numel == 0:
        return
    start = shifted(b.place(x), sum((ty.shape[d] - 1) * own[d] for d in dims), ty)
    flipped = tuple(-s if d in dims else s for d, s in enumerate(own))
    b.copy(start, flipped, b.place(r), b.strides(r), ty, b.label(o))
