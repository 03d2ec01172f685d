"""The elements of a contraction's result in a program's tile, and the offsets of an epilogue's operands there.

    rows, cols = index vectors of a tile of a [M, N] product
    load of a bias, strides (0, 1)        →    tl.load(bias + cols[None, :])
    load of a residual, strides (n, 1)    →    tl.load(residual + (rows * r0)[:, None] + cols[None, :])

The result's dimensions are axes, each with an expression of the tile's indices along it. An epilogue's dimensions
divide the same positions differently: a dimension is an axis, several merged axes, or a part of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.description import Access, Kernel
from gflow.compiler.kernel.sizes import WIDE, extent
from gflow.dialects.records import record

from ..language.dag import Fours
from ..language.parameters import Parameters

#: the columns of a matrix product's tile, and the numbers of its groups of four columns
COLUMNS = "tile_n * BLOCK_N + tl.arange(0, BLOCK_N)"
COLUMN_FOURS = "tile_n * BLOCK_N // 4 + tl.arange(0, BLOCK_N // 4)"


@record
class Axis:
    """One or several neighbouring dimensions of the result.

    Attributes:
        size: the elements along it.
        text: the tile's indices along it: a vector along dimension `dim` of the tile, or a number if that is None.
        dim: the dimension of the tile.
        fours: the numbers of groups of four indices, a vector, if the tile consists of whole groups that begin at
            multiples of four; otherwise None.
        tile: the number of the tile along it, if it is the rows of the result.
        first: the first index of the tile along it, if it is the columns of the result.
    """

    size: int
    text: str
    dim: int | None = 0
    fours: str | None = None
    tile: str | None = None
    first: str | None = None


class Piece(NamedTuple):
    """The intersection of a kernel's dimension and an axis, of `size` elements.

    of_dim, of_axis: the distance of two neighbouring elements along the dimension and along the axis.
    """

    dim: int
    axis: int
    size: int
    of_dim: int
    of_axis: int


@record
class Tile:
    """A program's tile of a contraction's result.

    Attributes:
        axes: the dimensions of the result, in row-major order.
        masks: for each dimension of the tile, the mask of elements inside the result; None: all are.
        width: the columns of the tile, as text.
    """

    axes: tuple[Axis, ...]
    masks: tuple[str | None, ...]
    width: str = "BLOCK_N"

    @property
    def rank(self) -> int:
        """The number of the tile's dimensions."""
        return len(self.masks)

    def spread(self, text: str, dim: int) -> str:
        """The text of a vector along dimension `dim`, broadcast to the tile's rank (`[:, None]`, `[None, :]`)."""
        if self.rank == 1:
            return text
        simple = text.isidentifier() or (text.startswith("(") and text.endswith(")"))
        inner = text if simple else f"({text})"
        return inner + ("[:, None]" if dim == 0 else "[None, :]")

    def padded(self, width: str) -> Tile:
        """The tile with rows of `width` elements in memory, padding included; its columns are the last axis."""
        return replace(self, masks=(*self.masks[:-1], f"{self.axes[-1].text} < {width}"))

    def mask(self, dims: frozenset[int]) -> str | None:
        """The mask of elements inside the result, for a value that varies along `dims` of the tile; None: all are."""
        found = [self.spread(m, d) for d, m in enumerate(self.masks) if d in dims and m is not None]
        return " & ".join(found) if found else None


def pieces(sizes: Sequence[int], axes: Sequence[Axis]) -> list[Piece]:
    """The intersections of a kernel's dimensions and axes, innermost first.

    Raises:
        CannotLower: a dimension ends inside an axis at a position where the axis cannot be split.
    """
    found: list[Piece] = []
    d, a = len(sizes) - 1, len(axes) - 1
    of_dim = of_axis = 1
    while d >= 0 and a >= 0:
        left_dim, left_axis = sizes[d] // of_dim, axes[a].size // of_axis
        step = min(left_dim, left_axis)
        if step and (left_dim % step or left_axis % step):
            raise CannotLower(f"sizes {tuple(sizes)} over axes {[x.size for x in axes]}")
        if step > 1:
            found.append(Piece(d, a, step, of_dim, of_axis))
        of_dim, of_axis = of_dim * step, of_axis * step
        if of_dim >= sizes[d]:
            d, of_dim = d - 1, 1
        if a >= 0 and of_axis >= axes[a].size:
            a, of_axis = a - 1, 1
    return found


class Positions:
    """The offsets of a kernel's accesses at a tile's elements; strides and sizes become parameters."""

    def __init__(self, k: Kernel, tile: Tile, params: Parameters, lines: list[str]) -> None:
        self.k, self.tile, self.params, self.lines = k, tile, params, lines
        self.pieces = pieces(k.sizes, tile.axes)
        self.names: dict[tuple[int, int, int, bool], str] = {}

    def offset(self, strides: Sequence[int], stem: str) -> tuple[str, frozenset[int]]:
        """The offset of an access, and the dimensions of the tile that it varies along.

        strides: in elements. stem: the start of the names of stride parameters.
        """
        return self._sum(self._joined(strides), stem, extent(self.k.sizes, strides) >= WIDE)

    def fours(self, strides: Sequence[int], stem: str) -> Fours | None:
        """The Philox blocks of groups of four columns, if the index increases by one along columns; otherwise None."""
        columns = self.tile.rank - 1
        parts = self._joined(strides)
        own = [p for p in parts if p[3] and self.tile.axes[p[0]].dim == columns]
        if self.tile.rank != 2 or len(own) != 1:
            return None
        axis, size, of_axis, stride = own[0]
        a = self.tile.axes[axis]
        if a.fours is None or (size, of_axis, stride) != (a.size, 1, 1):
            return None
        rest = [p if p != own[0] else (axis, size, of_axis, 0) for p in parts]
        if any(p[3] % 4 for p in rest):
            return None
        text, dims = self._sum(rest, stem, extent(self.k.sizes, strides) >= WIDE)
        block = self.tile.spread(f"({a.fours})", columns)
        shape = f"[{'BLOCK_M' if dims else '1'}, {self.tile.width}]"
        return Fours(block if text == "0" else f"({text}) // 4 + {block}", shape)

    def _sum(
        self, parts: Sequence[tuple[int, int, int, int]], stem: str, wide: bool
    ) -> tuple[str, frozenset[int]]:
        by_dim: dict[int | None, list[str]] = {}
        for n, (axis, size, of_axis, stride) in enumerate(reversed(parts)):
            if stride == 0:
                continue
            coordinate = self._coordinate(axis, size, of_axis, wide)
            text = self.params.stride(f"{stem}_s{n}", stride)
            term = coordinate if text == "1" else f"{_simple(coordinate)} * {text}"
            by_dim.setdefault(self.tile.axes[axis].dim, []).append(term)
        texts, dims = [], set()
        for dim in sorted(by_dim, key=lambda d: -1 if d is None else d):
            text = " + ".join(by_dim[dim])
            if dim is None:
                texts.append(text)
            else:
                texts.append(self.tile.spread(text, dim))
                dims.add(dim)
        return " + ".join(texts) or "0", frozenset(dims)

    def _joined(self, strides: Sequence[int]) -> list[tuple[int, int, int, int]]:
        """(axis, size, of_axis, stride) of the pieces, innermost first, merged where the strides allow it."""
        found: list[tuple[int, int, int, int]] = []
        for p in self.pieces:
            stride = strides[p.dim] * p.of_dim
            if found:
                axis, size, of_axis, inner = found[-1]
                if axis == p.axis and p.of_axis == of_axis * size and stride == inner * size:
                    found[-1] = (axis, size * p.size, of_axis, inner)
                    continue
            found.append((p.axis, p.size, p.of_axis, stride))
        return found

    def _coordinate(self, axis: int, size: int, of_axis: int, wide: bool) -> str:
        """The variable of the indices along a part of an axis, computed once."""
        a = self.tile.axes[axis]
        outermost = size * of_axis == a.size
        text = a.text
        if of_axis == 1 and outermost and not wide:
            return text
        key = (axis, size, of_axis, wide)
        if key not in self.names:
            if of_axis > 1:
                text = f"{_simple(text)} // {self._size(axis, of_axis)}"
            if not outermost:
                text = f"{_simple(text)} % {self._size(axis, size)}"
            if wide:
                text = f"({text}).to(tl.int64)"
            self.names[key] = f"at{len(self.names)}"
            self.lines.append(f"{self.names[key]} = {text}")
        return self.names[key]

    def _size(self, axis: int, size: int) -> str:
        stem = f"size_{axis}"
        for n in range(len(self.params.types) + 1):
            name = f"{stem}_{n}" if n else stem
            if name not in self.params.types:
                return self.params.number(name, size)
            if self.params.values[list(self.params.types).index(name)] == size:
                return name
        raise AssertionError


def _simple(text: str) -> str:
    return text if text.isidentifier() else f"({text})"


def is_raw(access: Access, operands: int) -> bool:
    """Whether a load of an epilogue is the contraction's result."""
    return access.operand == operands
