"""Ops that only move or make elements: copies between places."""

from __future__ import annotations

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.movement import concatenation, counting, reversal, shifted
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType

from .program_builder import Builder


def iota(b: Builder, o: Op) -> None:
    """A kernel that writes each element's index along a dimension."""
    (r,) = o.results
    nodes, walk = counting(b, o)
    b.flat(b.place(r), b.body.types[r], b.strides(r), nodes, b.label(o), indices=[walk])


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
    """A copy for each operand, to its part of the result."""
    for part in concatenation(b, o):
        b.copy(*part, b.label(o))


def reverse(b: Builder, o: Op) -> None:
    """A copy that reads backwards."""
    for part in reversal(b, o):
        b.copy(*part, b.label(o))
