"""Resharding ops: collectives, or slices where a rank already has all data."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.ir.collectives import build_collective
from gflow.dialects import builder
from gflow.dialects.distribution.mesh import Mesh
from gflow.dialects.distribution.sharding import reduction, split_dim
from gflow.dialects.mlir import ir
from gflow.dialects.ops.distribution import SHARD
from gflow.dialects.types import TensorType

from .resharding import WHOLE

Placed = tuple[str, ...]


class Moves:
    """Builds resharding ops at the current insertion point. block: rank numbers are computed at its start."""

    def __init__(self, mesh: Mesh, block: ir.Block) -> None:
        self.mesh, self.block = mesh, block
        self.numbers: dict[int, ir.Value] = {}

    def number(self, axis: int) -> ir.Value:
        """The number of this rank along a mesh axis, as a tensor<i64>."""
        found = self.numbers.get(axis)
        if found is None:
            ranks = self.mesh.sizes[axis]
            with ir.InsertionPoint.at_block_begin(self.block), ir.Location.name("rank"):
                every = builder.build("iota", [], {"shape": (ranks,), "dim": 0, "dtype": "i64"})
                own = {"axes": (self.mesh.axes[axis],), "ranks": ranks}
                found = builder.reshape(builder.build(SHARD, [every], own), ())
            self.numbers[axis] = found
        return found

    def number_of(self, axes: Sequence[int]) -> ir.Value:
        """The number of this rank's shard along several axes, row-major."""
        scalar = TensorType((), "i64")
        found = builder.splat(0, scalar)
        for axis in axes:
            size = builder.splat(self.mesh.sizes[axis], scalar)
            found = builder.build("add", [builder.build("mul", [found, size]), self.number(axis)])
        return found

    def move(self, x: ir.Value, have: Placed, need: Placed) -> ir.Value:
        """`x` resharded from the placements `have` to `need`.

        If a dimension is sharded along several axes, the first axis is the major one. So the last axes are gathered
        first and sliced last.
        """
        now = list(have)
        while tuple(now) != need:
            axes = range(len(now))
            axis = next((a for a in reversed(axes) if _free(now, need, a)), None)
            to = WHOLE  # a minor axis is gathered while a more major one changes
            if axis is None:
                axis = next(b for b in reversed(axes) if _inside(now, need, b))
            else:
                to = need[axis]
            x = self.along(x, axis, now[axis], to)
            now[axis] = to
        return x

    def along(self, x: ir.Value, axis: int, have: str, need: str) -> ir.Value:
        """`x` resharded along one axis."""
        if have == need or self.mesh.sizes[axis] == 1:
            return x
        own = {"axes": (self.mesh.axes[axis],), "ranks": self.mesh.sizes[axis]}
        split, wanted = split_dim(have), split_dim(need)
        if reduction(have) is not None:
            if wanted is not None and reduction(have) != "avg":
                return build_collective(
                    x, "reduce_scatter", reduction=reduction(have), dim=wanted, **own
                )
            whole = build_collective(x, "all_reduce", reduction=reduction(have), **own)
            return self.along(whole, axis, WHOLE, need)
        if split is not None and wanted is not None:
            return build_collective(x, "all_to_all", dim=wanted, concat_dim=split, **own)
        if split is not None:
            whole = build_collective(x, "all_gather", dim=split, **own)
            return self.along(whole, axis, WHOLE, need)
        if wanted is not None:
            return self._part(x, axis, wanted)
        return self._once(x, axis) if reduction(need) == "sum" else x

    def _part(self, x: ir.Value, axis: int, dim: int) -> ir.Value:
        """This rank's shard of a replicated value."""
        ty, ranks = builder.type_of(x), self.mesh.sizes[axis]
        part = ty.shape[dim] // ranks
        after = ty.shape[dim + 1 :]
        if (value := splat_of(x)) is not None:
            return builder.build(
                "constant",
                [],
                {"value": _smaller(value, TensorType((*ty.shape[:dim], part, *after), ty.dtype))},
            )
        parts = builder.reshape(x, (*ty.shape[:dim], ranks, part, *after))
        return builder.build("take", [parts, self.number(axis)], {"dim": dim})

    def _once(self, x: ir.Value, axis: int) -> ir.Value:
        """A replicated value as a partial sum: `x` on the first rank, and zero on the others."""
        ty = builder.type_of(x)
        zero = builder.splat(0, ty)
        if (value := splat_of(x)) is not None and value == splat_of(zero):
            return x
        first = builder.build(
            "compare",
            [self.number(axis), builder.splat(0, TensorType((), "i64"))],
            {"predicate": "eq"},
        )
        return builder.build("select", [builder.broadcast(first, ty.shape, ()), x, zero])


def _dims(now: Sequence[str], need: Sequence[str], axis: int) -> set[int | None]:
    """The dimensions whose sharding along an axis must change."""
    if now[axis] == need[axis]:
        return set()
    return {split_dim(now[axis]), split_dim(need[axis])} - {None}


def _free(now: Sequence[str], need: Sequence[str], axis: int) -> bool:
    """Whether an axis must and can change now: no later axis splits its dimension further; earlier ones are done."""
    dims = _dims(now, need, axis)
    return (
        now[axis] != need[axis]
        and all(split_dim(later) not in dims for later in now[axis + 1 :])
        and all(split_dim(need[axis]) not in _dims(now, need, a) for a in range(axis))
    )


def _inside(now: Sequence[str], need: Sequence[str], axis: int) -> bool:
    """Whether an axis splits a dimension whose sharding along an earlier axis must change."""
    d = split_dim(now[axis])
    return d is not None and any(d in _dims(now, need, a) for a in range(axis))


def splat_of(x: ir.Value) -> ir.DenseElementsAttr | None:
    """The attribute of a splat constant; None for other values."""
    if isinstance(x.owner, ir.Block) or x.owner.operation.name != "gflow.constant":
        return None
    value = x.owner.operation.attributes["value"]
    return value if isinstance(value, ir.DenseElementsAttr) and value.is_splat else None


def _smaller(value: ir.DenseElementsAttr, ty: TensorType) -> ir.Attribute:
    return ir.DenseElementsAttr.get_splat(ty.mlir(), value.get_splat_value())
