"""The local version of ops for which it isn't just the same op on smaller tensors."""

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

#: the difference of the seeds of neighbouring shards. It is odd, so that 2^64 shards have different seeds (2^64 divided
#: by the golden ratio)
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
    """The attributes of a rank's local op that differ from those of the global op.

    Args:
        name: the op's name.
        attrs: the attributes of the global op.
        operands: the local types of operands.
        needs: the placements of operands.
        results: the local types of results.
        sizes: the sizes of the mesh's axes.
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
    """The number of a convolution's groups on a rank, by the sharding of the first operand's channels.

    Groups are split before the channels in them.
    """
    _, channel, _ = conv_dims(attrs["layout"], rank)
    ranks = prod(sizes[axis] for axis in axes_of(placed, channel))
    return max(1, attrs["groups"] // ranks)


def iota(attrs: dict[str, Any], placed: Placed, ty: TensorType, moves: Moves) -> ir.Value:
    """An iota of global positions: the local iota plus the offset of the shard."""
    dim, dtype = attrs["dim"], attrs["dtype"]
    axes = axes_of(placed, dim)
    if not axes:
        return builder.build("iota", [], {"shape": ty.shape, "dim": dim, "dtype": dtype})
    own = builder.build("iota", [], {"shape": ty.shape, "dim": dim, "dtype": "i64"})
    begin = builder.broadcast(_begin(moves, axes, ty.shape[dim]), ty.shape, ())
    return builder.convert(builder.build("add", [own, begin]), dtype)


def _begin(moves: Moves, axes: Sequence[int], part: int) -> ir.Value:
    """The offset of this rank's shard of a dimension, as a tensor<i64>. part: the size of a shard."""
    scalar = TensorType((), "i64")
    return builder.build("mul", [moves.number_of(axes), builder.splat(part, scalar)])


def other_numbers(rng: ir.Value, axes: Sequence[int], moves: Moves) -> ir.Value:
    """A random generator's state that differs between shards; ranks with copies of a shard draw equal numbers."""
    if not axes:
        return rng
    ty = TensorType((2,), "i64")
    number = builder.broadcast(moves.number_of(axes), (2,), ())
    step = builder.dense(np.array([_SEEDS, 0], np.int64), ty)
    return builder.build("add", [rng, builder.build("mul", [number, step])])


def lookup(
    name: str, operands: list[ir.Value], dim: int, axes: Sequence[int], moves: Moves
) -> ir.Value:
    """A `take`, `gather` or `index_add` whose indexed dimension is sharded.

    Indices of other shards are replaced by 0, and their elements by zeros. The results of all ranks are to be added.
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
    """`x` where `inside` is true, otherwise zero. every: both have the same shape."""
    ty = builder.type_of(x)
    dims = range(ty.rank) if every else range(dim, dim + rank)
    mask = inside if every else builder.broadcast(inside, ty.shape, tuple(dims))
    return builder.build("select", [mask, x, builder.splat(0, ty)])
