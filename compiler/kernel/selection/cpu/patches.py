"""Convolutions of channels-last float32 in one or two dimensions: by patches and matrix products, or depthwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from gflow.compiler.targets.processors import ANY
from gflow.dialects.extents import Count, at_most, longest, pieces
from gflow.dialects.types import TensorType, is_row_major, row_major_strides

from ...blocks import Problem
from ...convolution import ROLES, Geometry
from .rows import MOST_PIECES, Rows


@dataclass(frozen=True)
class Patches:
    """How a convolution is made.

    pieces: output positions at a time. channel_major: whether columns of patches are in the order of PyTorch's
    weights, OI*. copy: bytes of a copy of the weight, 0 without one; then in scratch those of `patches`, of the
    result's `rows`, and of `partial` sums.
    """

    pieces: list[tuple[int, Count]]
    channel_major: bool = False
    copy: int = 0
    patches: int = 0
    rows: int = 0
    partial: int = 0

    @property
    def scratch(self) -> int:
        """Bytes that all of it needs while the op runs, at the greatest size; each part begins at a multiple of 64."""
        sizes = (self.copy, self.patches, self.rows, self.partial)
        return sum(-(-at_most(size) // 64) * 64 for size in sizes)


def kind_of_patches(
    g: Geometry, types: Sequence[TensorType], strides: Sequence[tuple[int, ...]], blas: bool
) -> str:
    """What a convolution runs as. types, strides: of its operands, then its result."""
    if not g.last or types[2].dtype != "f32" or g.rank > 2 or not blas:
        return "pytorch"
    if any(ty.numel == 0 for ty in types):
        return "zero"
    x, _, y = ROLES[g.name]
    dense = all(is_row_major(types[n].shape, strides[n]) for n in (x, y))
    if not dense or (g.groups > MOST_PIECES and not g.depthwise):
        return "pytorch"
    if g.depthwise and g.name == "convolution_input_grad" and set(g.dilation) != {1}:
        return "pytorch"
    return "depthwise" if g.depthwise else "patches"


def patches_of(
    g: Geometry,
    weight: TensorType,
    strides: tuple[int, ...],
    result: TensorType,
    rows: Rows | None,
    threads: int,
) -> Patches:
    """How a convolution is made. weight, strides: the weight's. rows: of its result, where something follows."""
    if g.depthwise:
        every = result.numel // max(result.shape[-1], 1)
        partial = 4 * weight.numel * threads if g.name == "convolution_weight_grad" else 0
        return Patches([], False, 4 * weight.numel, 0, _floating(rows, every), partial)
    positions, k = g.positions, g.taps * g.cg
    if g.name == "convolution_weight_grad":
        parts: list[tuple[int, Count]] = [(0, positions)]
        if not g.pointwise:
            parts = _pieces(positions, g.outputs[-1], 4 * k, g.groups)
        every = weight.numel // max(g.cg, 1)
        return Patches(parts, False, 0, _patches(g, k, parts), _floating(rows, every))
    channel_major, copy = _weight(g, weight, strides, positions)
    reduced = k if g.name == "convolution" else g.og
    made: Count | int
    if g.pointwise:
        parts = [(0, positions)] if rows is None else rows.pieces(reduced)
        made = longest(parts)
    elif g.name == "convolution":
        parts = _pieces(positions, _granule(rows, g.outputs[-1]), 4 * k, g.groups)
        made = longest(parts)
    else:
        inputs, outputs = prod(g.inputs), prod(g.outputs)
        images = _granule(rows, inputs) // inputs
        parts = _pieces(positions, images * outputs, 4 * k, g.groups)
        made = round(longest(parts) * (inputs / outputs))
    return Patches(parts, channel_major, copy, _patches(g, k, parts), _floating(rows, made))


def product_of(g: Geometry, made: Patches) -> Problem:
    """The largest product of a convolution by patches, of one group."""
    count, k = longest(made.pieces), g.taps * g.cg
    if g.name == "convolution":
        return Problem(count, g.og, k)
    if g.name == "convolution_weight_grad":
        return Problem(g.og, k, count)
    return Problem(count, k, g.og)


def _patches(g: Geometry, k: int, parts: list[tuple[int, Count]]) -> int:
    return 0 if g.pointwise else 4 * k * longest(parts)


def _floating(rows: Rows | None, most: int) -> int:
    """Bytes of a result that has no place, of which at most so many rows are made at a time."""
    if rows is None or not rows.floating:
        return 0
    return (most if rows.granule else rows.rows) * rows.type.shape[-1] * rows.type.itemsize


def _weight(
    g: Geometry, ty: TensorType, strides: tuple[int, ...], positions: int
) -> tuple[bool, int]:
    """Whether patches follow the order of PyTorch's weights, and bytes of a copy of the weight as [o, taps · cg].

    PyTorch keeps weights as OI*. With few output positions the patches follow that order; with many it is cheaper to
    copy the weight.
    """
    if _same_order(ty.shape, strides, row_major_strides(ty.shape)):
        return False, 0
    taps = row_major_strides(g.kernel)
    if at_most(positions) < g.o and _same_order(ty.shape, strides, (g.cg * g.taps, *taps, g.taps)):
        return True, 0
    return False, 4 * ty.numel


def _same_order(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether strides agree where the size is not 1."""
    return all(x == y for size, x, y in zip(shape, a, b) if size != 1)


def _pieces(positions: int, granule: int, row: int, groups: int) -> list[tuple[int, Count]]:
    """Output positions in pieces (first, count) of whole granules, of about `Common.gathered` bytes.

    row: bytes of a position.
    """
    whole = at_most(positions) * groups // (MOST_PIECES * granule)
    return pieces(positions, max(1, ANY.gathered // max(1, row * granule), whole) * granule)


def _granule(rows: Rows | None, least: int) -> int:
    """The least multiple of so many rows of the result that what follows can run on, too."""
    return least if rows is None or not rows.granule else rows.common(least)
