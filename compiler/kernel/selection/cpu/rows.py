"""A contraction in chunks of rows, each computed and then processed by the epilogue while it is in cache.

The contraction writes to the buffer of the fused op's result if the op returns it, else to the buffer of a result that
the epilogue overwrites. If all of these buffers still hold operands, it writes to scratch that holds one chunk.
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

#: the most chunks of one op, which bounds the number of its steps
MOST_PIECES = 4096

#: the greatest K of a product that is computed in chunks. With more, the product takes much longer than the epilogue,
#: and a GEMM packs its other operand again for each chunk (docs/decisions.md)
_SHORT_K = 256


@record
class Rows:
    """The rows of a contraction's result, and its epilogue.

    Attributes:
        type: the type of the result.
        floating: whether chunks are written to scratch.
        granule: the rows of a chunk are a multiple of it; 0: the epilogue must run on all rows at once.
        blas: whether kernels may call the BLAS.
        kernel: the epilogue.
    """

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
        """The number of rows of the result, batch dimensions included."""
        return self.type.numel // max(self.width, 1)

    def length(self, k: int) -> int:
        """The rows of a chunk of a product with reduction size `k`; 0: all rows at once."""
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
        """Whether the epilogue can run on `length` rows at a time."""
        return self.granule > 0 and length % self.granule == 0

    def pieces(self, length: int) -> list[tuple[int, Count]]:
        """(first, count) of chunks of `length` rows; 0: one chunk of all rows."""
        return pieces(self.rows, length) if length else [(0, self.rows)]

    def part(self, count: Count) -> Kernel:
        """The epilogue's kernel for `count` rows."""
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
        """The least multiple of `granule` on which the epilogue can run, too."""
        return granule * self.granule // gcd(granule, self.granule)

    def after(self, k: Kernel, strides: tuple[int, ...] | None) -> list[Kernel]:
        """The kernels that run after rows were computed: the epilogue, and a copy of the result to other strides.

        k: the epilogue for these rows. strides: the strides of the copy; None: there is none.
        """
        found = [k] if runs(k) else []
        if strides is not None:
            dense = row_major_strides(self.type.shape)
            found.append(copying(Copy(NOWHERE, dense, NOWHERE, strides, self.type)).k)
        return [one for one in found if runs(one)]


def granule_of(k: Kernel, ty: TensorType) -> int:
    """The rows that one step of an epilogue's first dimension covers, at least 1; 0: it cannot run on part of the rows.

    k: the epilogue. ty: the type of the contraction's result.
    """
    if not k.sizes or ty.numel == 0 or any(walk[0] for walk in k.indices):
        return 0
    unit, width = k.numel // k.sizes[0], ty.shape[-1]
    if unit % width == 0:
        return unit // width
    return 1 if width % unit == 0 else 0
