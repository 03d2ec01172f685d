"""Operands of a product as matrices, and which of them are copied so that whole vectors of them can be loaded.

[8192, 50257], rows of 50257 elements    →    scratch, rows of 50264 elements, of which the last 7 are never read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gflow.dialects.records import record
from gflow.dialects.types import TensorType

from ....sizes import cdiv

#: bytes that are loaded at once
VECTOR = 16


@record
class Operand:
    """Memory seen as matrices: batch strides, then those of the two dimensions.

    even: whether it begins at a multiple of a vector. width: how much of a row may be read, where rows are padded in
    memory; 0: as much as it has.
    """

    dtype: str
    batch: tuple[int, ...]
    rows: int
    cols: int
    even: bool = True
    width: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return TensorType((), self.dtype).itemsize

    def vectorized(self, others: Sequence[int] = ()) -> bool:
        """As the function of this name. others: strides between matrices, in elements."""
        return vectorized((self.rows, self.cols), others, self.itemsize)

    def ragged(self, shape: tuple[int, int]) -> bool:
        """Whether loads that end exactly where the matrix, of this shape, does go element by element."""
        side = shape[1] if self.cols == 1 else shape[0]
        return not self.width and side * self.itemsize % VECTOR != 0

    def padded(self, shape: tuple[int, int]) -> tuple[Operand, int]:
        """The operand, of this shape, as a copy whose rows begin at multiples of a vector, and the copy's bytes."""
        step = VECTOR // self.itemsize
        rows_outside = self.rows >= self.cols
        width = cdiv(shape[1] if rows_outside else shape[0], step) * step
        strides = (width, 1) if rows_outside else (1, width)
        elements = width * (shape[0] if rows_outside else shape[1])
        size = cdiv(elements * self.itemsize, 64) * 64
        return replace(self, rows=strides[0], cols=strides[1], even=True), size


def vectorized(matrix: Sequence[int], others: Sequence[int], item: int) -> bool:
    """Whether 16 bytes can be loaded at a time: one stride of a matrix is 1, all others are multiples of so many."""
    if 1 not in matrix:
        return False
    rest = [s for s in matrix if s != 1]
    return all(s * item % VECTOR == 0 for s in (*rest, *others))


def stride_class(strides: Sequence[int]) -> tuple[int, ...]:
    """What a kernel's text knows of strides: 0, 1, or another number (2)."""
    return tuple(min(s, 2) if s >= 0 else 2 for s in strides)
