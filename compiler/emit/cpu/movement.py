"""Ops that only move or make elements: copies between places."""

from __future__ import annotations

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.description import Node
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType

from ..placement import shifted
from .program_builder import Builder


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
    """The padding value around, dimension by dimension, and the operand inside."""
    x, value = o.operands
    (r,) = o.results
    attrs = read(OPS["pad"], o.op.attributes)
    ty, strides, place, label = b.body.types[r], b.strides(r), b.place(r), b.label(o)
    inner = list(ty.shape)
    for d, (low, high) in enumerate(zip(attrs["low"], attrs["high"])):
        for start, size in ((0, low), (ty.shape[d] - high, high)):
            if size > 0:
                part = TensorType((*inner[:d], size, *inner[d + 1 :]), ty.dtype)
                at = shifted(place, start * strides[d], ty)
                b.copy(b.place(value), (0,) * ty.rank, at, strides, part, label)
        place = shifted(place, low * strides[d], ty)
        inner[d] -= low + high
    b.copy(b.place(x), b.strides(x), place, strides, b.body.types[x], label)


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
