"""What a rank runs for its part of an op, where that is more than the same op on smaller tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gflow.dialects import builder
from gflow.dialects.distribution.sharding import split_dim
from gflow.dialects.mlir import ir
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.types import TensorType

from .moves import Moves, Placed

#: between the seeds of neighbouring parts: odd, so that no two of 2^64 parts have one (2^64 over the golden ratio)
_SEEDS = 0x9E3779B97F4A7C15 - (1 << 64)

LOOKUPS = ("take", "gather", "index_add")


def axes_of(placed: Placed, dim: int) -> list[int]:
    """The mesh axes along which a dimension is split."""
    return [axis for axis, p in enumerate(placed) if split_dim(p) == dim]


def local_attributes(
    name: str,
    attrs: dict[str, Any],
    operands: Sequence[TensorType],
    needs: Sequence[Placed],
    results: Sequence[TensorType],
    sizes: Sequence[int],
) -> dict[str, Any]:
    """The attributes that differ in the part of a rank.

    attrs: of the whole op. operands, results: the local types. sizes: of the mesh's axes.
    """
    changed: dict[str, Any] = {}
    if "shape" in attrs:
        changed["shape"] = results[0].shape
    if name == "slice":
        changed["limits"] = [
            operands[0].shape[d] if axes_of(needs[0], d) else limit
            for d, limit in enumerate(attrs["limits"])
        ]
    if attrs.get("groups", 1) > 1:
        changed["groups"] = _groups(attrs, operands[0].rank, needs[0], sizes)
    return changed


def _groups(attrs: dict[str, Any], rank: int, placed: Placed, sizes: Sequence[int]) -> int:
    """Of a convolution's groups those that a rank has, by the channels of the first operand: groups are split before
    what is in them."""
    _, channel, _ = conv_dims(attrs["layout"], rank)
    ranks = prod(sizes[axis] for axis in axes_of(placed, channel))
    return max(1, attrs["groups"] // ranks)


def iota(attrs: dict[str, Any], placed: Placed, ty: TensorType, moves: Moves) -> ir.Value:
    """Positions in the whole: those of the part, from where it begins."""
    dim, dtype = attrs["dim"], attrs["dtype"]
    axes = axes_of(placed, dim)
    if not axes:
        return builder.build("iota", [], {"shape": ty.shape, "dim": dim, "dtype": dtype})
    own = builder.build("iota", [], {"shape": ty.shape, "dim": dim, "dtype": "i64"})
    begin = builder.broadcast(_begin(moves, axes, ty.shape[dim]), ty.shape, ())
    return builder.convert(builder.build("add", [own, begin]), dtype)


def _begin(moves: Moves, axes: Sequence[int], part: int) -> ir.Value:
    """Where this rank's part of a dimension begins: a tensor<i64>."""
    scalar = TensorType((), "i64")
    return builder.build("mul", [moves.number_of(axes), builder.splat(part, scalar)])


def other_numbers(rng: ir.Value, axes: Sequence[int], moves: Moves) -> ir.Value:
    """A generator's state that differs by part: ranks that hold one part draw the same."""
    if not axes:
        return rng
    ty = TensorType((2,), "i64")
    number = builder.broadcast(moves.number_of(axes), (2,), ())
    step = builder.dense(np.array([_SEEDS, 0], np.int64), ty)
    return builder.build("add", [rng, builder.build("mul", [number, step])])


def lookup(
    name: str, operands: list[ir.Value], dim: int, axes: Sequence[int], moves: Moves
) -> ir.Value:
    """`take`, `gather` or `index_add` where this rank owns a part of the dimension.

    Positions elsewhere are looked up at 0, and count as zero.
    """
    x, index = operands[:2]
    ty, at = builder.type_of(x), builder.type_of(index)
    part = ty.shape[dim]
    begin = builder.convert(_begin(moves, axes, part), at.dtype)
    own = builder.build("sub", [index, builder.broadcast(begin, at.shape, ())])
    zero = builder.splat(0, at)
    inside = builder.build(
        "and",
        [
            builder.build("compare", [own, zero], {"predicate": "ge"}),
            builder.build("compare", [own, builder.splat(part, at)], {"predicate": "lt"}),
        ],
    )
    own = builder.build("select", [inside, own, zero])
    if name == "index_add":
        source = _only(operands[2], inside, dim, at.rank, False)
        return builder.build(name, [x, own, source], {"dim": dim})
    found = builder.build(name, [x, own], {"dim": dim})
    return _only(found, inside, dim, at.rank, name == "gather")


def _only(x: ir.Value, inside: ir.Value, dim: int, rank: int, every: bool) -> ir.Value:
    """`x` where `inside` is true, else zero. every: they have one shape."""
    ty = builder.type_of(x)
    dims = range(ty.rank) if every else range(dim, dim + rank)
    mask = inside if every else builder.broadcast(inside, ty.shape, tuple(dims))
    return builder.build("select", [mask, x, builder.splat(0, ty)])
