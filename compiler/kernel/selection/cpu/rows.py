"""The rows of a contraction's result in pieces, each made and then followed by what comes after the contraction.

The result goes straight to where the fused op returns it, or into a result's buffer where what follows overwrites it,
or, where that one holds an operand still, into scratch of one piece.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from gflow.compiler.targets.processors import ANY
from gflow.dialects.extents import Count, Piece, at_most, pieces, varies
from gflow.dialects.records import record
from gflow.dialects.types import TensorType, row_major_strides

from ...description import Kernel
from ...movement import NOWHERE, Copy, copying
from .loops import runs

#: so that the steps of one op stay few, whatever its size
MOST_PIECES = 4096

#: it pays for results that don't fit a cache, of products with a small K: with more, making the result
#: takes long enough, and a GEMM packs its other operand once for each piece (docs/decisions.md)
_SHORT_K = 256


@record
class Rows:
    """type: of the result. floating: whether each piece lies in scratch. blas: whether products are calls of BLAS.
    kernel: what follows. granule: pieces are multiples of so many rows; 0 if it must run on all at once."""

    type: TensorType
    floating: bool
    granule: int
    blas: bool
    kernel: Kernel

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.type.shape[-1]

    @property
    def rows(self) -> int:
        """Rows of the result, with its batch dimensions."""
        return self.type.numel // max(self.width, 1)

    def length(self, k: int) -> int:
        """The rows that it pays to make at a time, of a product that sums over so many; 0: all."""
        row = self.width * self.type.itemsize
        rows = at_most(self.rows)
        size = rows * row
        if self.floating:
            whole = size <= ANY.piece
        else:
            whole = size < ANY.large or at_most(k) > _SHORT_K
        if whole or not self.granule or (varies(self.rows) and not self.blas):
            return 0
        both = self.granule
        length = max(1, ANY.piece // (row * both), rows // (MOST_PIECES * both)) * both
        return length if length < rows else 0

    def divides(self, length: int) -> bool:
        """Whether what follows can run on so many rows at a time."""
        return self.granule > 0 and length % self.granule == 0

    def pieces(self, length: int) -> list[tuple[int, Count]]:
        """(first, count) of pieces of so many rows; of all for 0."""
        return pieces(self.rows, length) if length else [(0, self.rows)]

    def part(self, count: Count) -> Kernel:
        """The kernel of what follows for so many rows."""
        k = self.kernel
        if not isinstance(count, Piece) and count >= self.rows:
            return k
        unit = k.numel // k.sizes[0]
        if isinstance(count, Piece):
            size = count.times(self.width, unit).like
        else:
            size = count * self.width // unit
        return replace(k, sizes=(size, *k.sizes[1:]))

    def common(self, granule: int) -> int:
        """The least multiple of a granule of rows that what follows can run on, too."""
        return granule * self.granule // gcd(granule, self.granule)

    def after(self, k: Kernel, strides: tuple[int, ...] | None) -> list[Kernel]:
        """The kernels that run on rows that were made: what follows, and a copy of the result to where it has other
        strides.

        k: what follows, for these rows.
        """
        found = [k] if runs(k) else []
        if strides is not None:
            dense = row_major_strides(self.type.shape)
            found.append(copying(Copy(NOWHERE, dense, NOWHERE, strides, self.type)).k)
        return [one for one in found if runs(one)]


def granule_of(k: Kernel, ty: TensorType) -> int:
    """Rows that a slice of the kernel along its first dimension is a multiple of; 0: no slices."""
    if not k.sizes or ty.numel == 0 or any(walk[0] for walk in k.indices):
        return 0
    unit, width = k.numel // k.sizes[0], ty.shape[-1]
    if unit % width == 0:
        return unit // width
    return 1 if width % unit == 0 else 0
