"""The operands of a product as matrices, and padded copies of them that make vectorized loads possible.

[8192, 50257], rows of 50257 elements    →    scratch, rows of 50264 elements, of which the last 7 are never read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gflow.dialects.records import record
from gflow.dialects.types import TensorType

from ....sizes import cdiv

#: bytes of a vectorized load
VECTOR = 16


@record
class Operand:
    """An operand as a batch of matrices. Strides are in elements.

    Attributes:
        dtype: the element type.
        batch: the strides of the batch dimensions.
        rows, cols: the strides from row to row and from column to column.
        even: whether it is aligned to a 16-byte vector.
        width: the elements of a padded row, all of which may be read; 0: rows are not padded.
    """

    dtype: str
    batch: tuple[int, ...]
    rows: int
    cols: int
    even: bool = True
    width: int = 0

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return TensorType((), self.dtype).itemsize

    def vectorized(self, others: Sequence[int] = ()) -> bool:
        """Whether its strides allow vectorized loads (the function `vectorized`). others: batch strides."""
        return vectorized((self.rows, self.cols), others, self.itemsize)

    def ragged(self, shape: tuple[int, int]) -> bool:
        """Whether its contiguous dimension isn't a multiple of a vector, and not padded. shape: rows and columns."""
        side = shape[1] if self.cols == 1 else shape[0]
        return not self.width and side * self.itemsize % VECTOR != 0

    def padded(self, shape: tuple[int, int]) -> tuple[Operand, int]:
        """A copy whose rows (columns, if these are contiguous) are aligned to a vector, and its bytes.

        shape: the number of rows and columns.
        """
        step = VECTOR // self.itemsize
        rows_outside = self.rows >= self.cols
        width = cdiv(shape[1] if rows_outside else shape[0], step) * step
        strides = (width, 1) if rows_outside else (1, width)
        elements = width * (shape[0] if rows_outside else shape[1])
        size = cdiv(elements * self.itemsize, 64) * 64
        return replace(self, rows=strides[0], cols=strides[1], even=True), size


def vectorized(matrix: Sequence[int], others: Sequence[int], item: int) -> bool:
    """Whether strides allow 16-byte loads: one stride of the matrix is 1, and all others are multiples of 16 bytes.

    matrix: the strides of rows and columns. others: batch strides. item: bytes of an element.
    """
    if 1 not in matrix:
        return False
    rest = [s for s in matrix if s != 1]
    return all(s * item % VECTOR == 0 for s in (*rest, *others))


def stride_class(strides: Sequence[int]) -> tuple[int, ...]:
    """What a kernel's source depends on of strides: 0, 1, or 2 for any other stride."""
    return tuple(min(s, 2) if s >= 0 else 2 for s in strides)
