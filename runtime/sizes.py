"""Programs whose sizes vary: the numbers that a call's size makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gflow.dialects.extents import Extent
from gflow.dialects.program import Place, Size, TensorRef
from gflow.dialects.types import TensorType


def fixed(value: Any, n: int) -> Any:
    """A number, or a tuple of numbers, for a size of `n`."""
    if type(value) is int:
        return value
    if type(value) is tuple:
        return tuple([x if type(x) is int else x.at(n) for x in value])
    return value.at(n) if isinstance(value, Extent) else value


def times(value: int | Extent, factor: int) -> int | Extent:
    """A multiple of a number."""
    if isinstance(value, Extent):
        return Extent(tuple([c * factor for c in value.coefficients]))
    return value * factor


def fixed_type(ty: TensorType, n: int) -> TensorType:
    """A tensor type for a size of `n`."""
    return TensorType(fixed(ty.shape, n), ty.dtype)


def fixed_ref(ref: TensorRef, n: int) -> TensorRef:
    """A tensor in memory for a size of `n`."""
    place = Place(ref.place.space, ref.place.index, fixed(ref.place.offset, n))
    return TensorRef(place, fixed_type(ref.type, n), fixed(ref.strides, n))


def check(size: Size, n: int) -> None:
    """A call's size is one that the program is for.

    Raises:
        ValueError: it isn't.
    """
    if not size.least <= n <= size.most:
        raise ValueError(
            f"the size {size.name} is {n}, and the program is for {size.least} to {size.most}"
        )


class Numbers:
    """Many extents, to be evaluated at once."""

    def __init__(self, extents: Sequence[Extent]) -> None:
        degree = max((len(e.coefficients) for e in extents), default=0)
        self._coefficients = np.zeros((degree, len(extents)), dtype=np.int64)
        for i, e in enumerate(extents):
            self._coefficients[: len(e.coefficients), i] = e.coefficients
        self._pieces = np.array(
            [i for i, e in enumerate(extents) if e.limit is not None], dtype=np.int64
        )
        parts = [extents[i] for i in self._pieces]
        self._first = np.array([e.first for e in parts], dtype=np.int64)
        self._limit = np.array([e.limit for e in parts], dtype=np.int64)

    def at(self, n: int) -> np.ndarray:
        """Their numbers for a size of `n`."""
        total = np.zeros(self._coefficients.shape[1], dtype=np.int64)
        for c in self._coefficients[::-1]:
            total *= n
            total += c
        if len(self._pieces):
            part = total[self._pieces] - self._first
            total[self._pieces] = np.clip(part, 0, self._limit)
        return total
