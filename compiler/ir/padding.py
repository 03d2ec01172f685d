"""Values whose rows are longer in memory than they are: kernels then move whole vectors of them.

    %0 = "gflow.matmul"(%x, %y) {gflow.padded = array<i64: 50304>} : … -> tensor<8192x50257xbf16>

Rows of %0 are 50,304 elements apart. Nothing is known of the 47 behind each: who writes rows may write them, too, and
who reads rows may read them, but not use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from gflow.dialects.mlir import ir
from gflow.dialects.types import TensorType, row_major_strides

from .errors import PassError
from .ssa import Body, Op

#: on an op: for each result how many elements its rows take up in memory; 0: they lie one after the other
PADDED = "gflow.padded"

#: rows begin at multiples of so many elements, which kernels know of
STEP = 16


class Row(NamedTuple):
    """Elements of a row, and how many it takes up."""

    size: int
    width: int


def padded_strides(shape: Sequence[int], width: int) -> tuple[int, ...]:
    """Strides of a tensor whose rows take up `width` elements."""
    return row_major_strides((*shape[:-1], width))


def widths_of(o: Op, body: Body) -> list[int]:
    """What rows of each result of an op take up, in elements; 0 for dense results.

    Raises:
        PassError: the attribute is malformed.
    """
    if PADDED not in o.op.attributes:
        return [0] * len(o.results)
    attribute = o.op.attributes[PADDED]
    widths = list(attribute) if isinstance(attribute, ir.DenseI64ArrayAttr) else []
    fits = [
        w == 0 or (w % STEP == 0 and ty.rank > 1 and ty.shape[-1] <= w)
        for w, ty in zip(widths, (body.types[r] for r in o.results))
    ]
    if len(widths) != len(o.results) or not all(fits):
        raise PassError(
            f"'{PADDED}' must be array<i64: …> with a number for each result: 0, or a multiple of {STEP} that is no "
            f"less than a row of a matrix, found {attribute}",
            o.op,
        )
    return widths


def extent_bytes(ty: TensorType, strides: Sequence[int]) -> int:
    """Bytes that a value of the arena takes up, what is behind its last row included. strides: its own."""
    if ty.numel == 0 or not is_padded(ty, strides):
        return ty.nbytes
    return prod(ty.shape[:-1]) * strides[-2] * ty.itemsize


def is_padded(ty: TensorType, strides: Sequence[int]) -> bool:
    """Whether rows of a value are farther apart than they are long, and the rest is row-major."""
    if ty.rank < 2 or strides[-1] != 1 or strides[-2] <= ty.shape[-1]:
        return False
    return tuple(strides) == padded_strides(ty.shape, strides[-2])
