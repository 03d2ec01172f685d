"""The rows of a contraction's result in pieces, each made and then followed by what comes after the contraction.

The result goes straight to where the fused op returns it, or into a result's buffer where what follows overwrites it,
or, where that one holds an operand still, into scratch of one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from gflow.compiler.targets.processors import ANY
from gflow.dialects.extents import Count, at_most, pieces, varies
from gflow.dialects.types import TensorType

from ...description import Kernel

#: so that the steps of one op stay few, whatever its size
MOST_PIECES = 4096

#: it pays for results that don't fit a cache, of products with a small K: with more, making the result
#: takes long enough, and a GEMM packs its other operand once for each piece (docs/decisions.md)
_SHORT_K = 256


@dataclass(frozen=True)
class Rows:
    """type: of the result. floating: whether each piece lies in scratch. blas: whether products are calls of BLAS.
    granule: pieces are multiples of so many rows; 0 if what follows must run on all at once."""

    type: TensorType
    floating: bool
    granule: int
    blas: bool

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.type.shape[-1]

    @property
    def rows(self) -> int:
        """Rows of the result, with its batch dimensions."""
        return self.type.numel // max(self.width, 1)

    def pieces(self, k: int, granule: int = 1) -> list[tuple[int, Count]]:
        """Rows to make at a time, as (first, count).

        k: the size of the reduction dimension. granule: of rows.
        """
        row = self.width * self.type.itemsize
        rows = at_most(self.rows)
        size = rows * row
        if self.floating:
            whole = size <= ANY.piece
        else:
            whole = size < ANY.large or at_most(k) > _SHORT_K
        if whole or not self.granule or (varies(self.rows) and not self.blas):
            return [(0, self.rows)]
        both = self.common(granule)
        length = max(1, ANY.piece // (row * both), rows // (MOST_PIECES * both)) * both
        return pieces(self.rows, length)

    def common(self, granule: int) -> int:
        """The least multiple of a granule of rows that what follows can run on, too."""
        return granule * self.granule // gcd(granule, self.granule)


def granule_of(k: Kernel, ty: TensorType) -> int:
    """Rows that a slice of the kernel along its first dimension is a multiple of; 0: no slices."""
    if not k.sizes or ty.numel == 0 or any(walk[0] for walk in k.indices):
        return 0
    unit, width = k.numel // k.sizes[0], ty.shape[-1]
    if unit % width == 0:
        return unit // width
    return 1 if width % unit == 0 else 0
