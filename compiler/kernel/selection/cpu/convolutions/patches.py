"""Channels-last float32 convolutions on a CPU: im2col and matrix products, or depthwise.

A patch is the part of the input that one output position reads, as a row of the im2col matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

from gflow.compiler.targets.processors import ANY
from gflow.dialects.extents import Count, Piece, at_most, longest, pieces
from gflow.dialects.records import record
from gflow.dialects.types import TensorType, is_row_major, row_major_strides

from .....ir.errors import CannotLower
from ....blocks import PADDED, Problem
from ....convolution import ROLES, Geometry
from ....description import Kernel
from ....movement import NOWHERE, Copy, copying
from ..rows import MOST_PIECES, Rows

_N = TypeVar("_N", bound=Count)


@record
class Patches:
    """The plan of a convolution by im2col or of a depthwise one.

    Attributes:
        pieces: chunks of output positions, as (first, count).
        channel_major: whether a patch has the order of PyTorch's weights (input channel, then taps).
        copy: scratch bytes of a copy of the weight; 0 without one.
        patches: scratch bytes of the patches of a chunk.
        rows: scratch bytes of the result's rows, where the result has no buffer of its own.
        partial: scratch bytes of partial sums of all threads (gradients of depthwise weights).
        gathered: patches are not stored. gflow's own product gathers them as it packs.
    """

    pieces: list[tuple[int, Count]]
    channel_major: bool = False
    copy: int = 0
    patches: int = 0
    rows: int = 0
    partial: int = 0
    gathered: bool = False

    @property
    def length(self) -> int:
        """The output positions of a chunk; 0: there is only one."""
        return longest(self.pieces) if len(self.pieces) > 1 else 0

    @property
    def scratch(self) -> int:
        """Scratch bytes in total at the greatest size; each part is aligned to 64 bytes."""
        sizes = (self.copy, self.patches, self.rows, self.partial)
        return sum(-(-at_most(size) // 64) * 64 for size in sizes)


def kind_of_patches(
    g: Geometry, types: Sequence[TensorType], strides: Sequence[tuple[int, ...]], blas: bool
) -> str:
    """The kind of kernel of a convolution: "patches", "depthwise", "zero" (empty), or "pytorch".

    types, strides: of its operands, then of its result.
    """
    if not g.last or types[2].dtype != "f32" or not blas or (g.depthwise and g.rank > 2):
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
    length: int | None = None,
    copied: bool | None = None,
    own: bool = False,
) -> Patches:
    """The plan of a convolution.

    Args:
        g: its geometry.
        weight, strides: the type of its weight (or of the weight's gradient), and the strides in elements.
        result: the type of its result.
        rows: the rows of its result, where an epilogue follows.
        threads: the number of threads.
        length: output positions of a chunk, 0 for all; None: chosen here.
        copied: whether the weight is copied; None: chosen here.
        own: whether patches are gathered if they can be, since gflow's own product is used.

    Raises:
        CannotLower: the convolution does not support this length, or needs a copy of its weight.
    """
    if g.depthwise:
        every = result.numel // max(result.shape[-1], 1)
        partial = 4 * weight.numel * threads if g.name == "convolution_weight_grad" else 0
        _, shape, lie = by_taps(weight, strides)
        there = g.name != "convolution_weight_grad" and _same_order(
            shape, lie, row_major_strides(shape)
        )
        copy = 0 if there else 4 * weight.numel
        return Patches([], False, copy, 0, _floating(rows, every), partial)
    positions, k = g.positions, g.taps * g.cg
    reduced = k if g.name == "convolution" else g.og
    granule = 0
    if g.pointwise:
        if g.name != "convolution_weight_grad" and rows is not None:
            granule = rows.granule
            length = rows.length(reduced) if length is None else length
    elif g.name == "convolution_weight_grad":
        granule = g.outputs[-1]
    elif g.name == "convolution":
        granule = _granule(rows, g.outputs[-1])
    else:
        inputs = prod(g.inputs)
        granule = _granule(rows, inputs) // inputs * prod(g.outputs)
    gathered = own and _gathers(g) and not _weight(g, weight, strides, positions, copied)[0]
    if length is None and not g.pointwise:
        whole = gathered and rows is None
        length = 0 if whole else _length(positions, granule, 4 * k, g.groups)
    if length and (not granule or length % granule):
        raise CannotLower(
            f"a convolution is computed in multiples of {granule} output positions, not {length}"
        )
    parts: list[tuple[int, Count]]
    parts = pieces(positions, length) if length else [(0, positions)]
    if g.name == "convolution_weight_grad":
        made, channel_major, copy = weight.numel // max(g.cg, 1), False, 0
    else:
        made = longest(parts)
        if g.name == "convolution_input_grad" and not g.pointwise:
            made = round(made * (prod(g.inputs) / prod(g.outputs)))
        channel_major, copy = _weight(g, weight, strides, positions, copied)
    patches, floating = 0 if gathered else _patches(g, k, parts), _floating(rows, made)
    return Patches(parts, channel_major, copy, patches, floating, gathered=gathered)


def reads_halves(g: Geometry) -> bool:
    """Whether a product of bfloat16 values reads both operands of a convolution as they are, and no patches."""
    return g.pointwise and g.name == "convolution_weight_grad"


def _gathers(g: Geometry) -> bool:
    """Whether gflow's own product can gather patches from the input: each block of K then belongs to one tap."""
    plain = g.name == "convolution" and g.groups == 1 and not g.pointwise and g.rank <= 2
    return plain and g.c > 0 and g.c % PADDED == 0


def weight_copy(g: Geometry, ty: TensorType, strides: tuple[int, ...]) -> Kernel:
    """The kernel that copies a convolution's weight to the layout [o, taps · cg].

    A depthwise weight is copied to [taps…, c], and its gradient back from there. ty, strides: those of the weight.
    """
    if not g.depthwise:
        return copying(Copy(NOWHERE, strides, NOWHERE, row_major_strides(ty.shape), ty)).k
    taps_first, shape, outer = by_taps(ty, strides)
    walks = [outer, row_major_strides(shape)]
    source, target = reversed(walks) if g.name == "convolution_weight_grad" else walks
    return copying(Copy(NOWHERE, source, NOWHERE, target, taps_first)).k


def widened_strides(name: str, ty: TensorType, strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of the float32 copy of a contraction's operand or result: row-major, but a convolution's weight keeps
    the order of its dimensions, in which it may be packed.

    name: of the contraction. ty, strides: those of the value in half precision.
    """
    dims = sorted(range(len(strides)), key=lambda d: -strides[d])
    shape = tuple(ty.shape[d] for d in dims)
    if name not in ROLES or row_major_strides(shape) != tuple(strides[d] for d in dims):
        return row_major_strides(ty.shape)
    return strides


def rows_with(g: Geometry, count: Count) -> Count:
    """The rows of a convolution's result that a chunk of `count` output positions completes."""
    if g.name != "convolution_input_grad" or g.pointwise:
        return count
    inputs, outputs = prod(g.inputs), prod(g.outputs)
    return count.times(inputs, outputs) if isinstance(count, Piece) else count // outputs * inputs


def by_taps(
    weight: TensorType, strides: tuple[int, ...]
) -> tuple[TensorType, tuple[int, ...], tuple[int, ...]]:
    """A depthwise weight [c, taps…, 1] as [taps…, c], which kernels read: type, shape, and strides of the weight."""
    shape = (*weight.shape[1:-1], weight.shape[0])
    return TensorType(shape, weight.dtype), shape, (*strides[1:-1], strides[0])


def product_of(g: Geometry, made: Patches) -> Problem:
    """The largest matrix product of a convolution by im2col: one group, the largest chunk."""
    return Problem(*sizes_of(g, longest(made.pieces)))


def sizes_of(g: Geometry, count: _N) -> tuple[_N | int, _N | int, _N | int]:
    """Rows, columns and K of the matrix product of one group and a chunk of `count` output positions."""
    k = g.taps * g.cg
    if g.name == "convolution":
        return count, g.og, k
    if g.name == "convolution_weight_grad":
        return g.og, k, count
    return count, k, g.og


def _patches(g: Geometry, k: int, parts: list[tuple[int, Count]]) -> int:
    return 0 if g.pointwise else 4 * k * longest(parts)


def _floating(rows: Rows | None, most: int) -> int:
    """Scratch bytes of a result without a buffer of its own; a chunk has at most `most` rows."""
    if rows is None or not rows.floating:
        return 0
    return (most if rows.granule else rows.rows) * rows.type.shape[-1] * rows.type.itemsize


def _weight(
    g: Geometry, ty: TensorType, strides: tuple[int, ...], positions: int, copied: bool | None
) -> tuple[bool, int]:
    """Whether patches have the order of PyTorch's weights, and the bytes of a copy of the weight as [o, taps · cg].

    PyTorch's weights are [o, cg, taps]. With few output positions patches use that order; with many, copying the weight
    is cheaper.
    """
    plain = _same_order(ty.shape, strides, row_major_strides(ty.shape))
    taps = row_major_strides(g.kernel)
    other = _same_order(ty.shape, strides, (g.cg * g.taps, *taps, g.taps))
    if copied is None:
        copied = not plain and not (other and at_most(positions) < g.o)
    if not (copied or plain or other):
        raise CannotLower("a convolution with a weight of this dimension order needs a copy of it")
    return not (copied or plain), 4 * ty.numel * copied


def _same_order(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether strides are equal in all dimensions whose size isn't 1."""
    return all(x == y for size, x, y in zip(shape, a, b) if size != 1)


def _length(positions: int, granule: int, row: int, groups: int) -> int:
    """The output positions of a chunk: a multiple of `granule`, with about `Common.gathered` bytes of patches; 0: all.

    row: bytes of one patch.
    """
    whole = at_most(positions) * groups // (MOST_PIECES * granule)
    length = max(1, ANY.gathered // max(1, row * granule), whole) * granule
    return length if length < at_most(positions) else 0


def _granule(rows: Rows | None, least: int) -> int:
    """The least multiple of `least` rows on which the epilogue can run."""
    return least if rows is None or not rows.granule else rows.common(least)
