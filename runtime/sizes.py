"""Programs with dynamic sizes: numbers that depend on the size of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gflow.dialects.extents import Extent, N
from gflow.dialects.program import Place, Size, TensorRef
from gflow.dialects.types import TensorType


def fixed(value: Any, n: N) -> Any:
    """A number, or a tuple of numbers, for a size of `n`."""
    if type(value) is int:
        return value
    if type(value) is tuple:
        return tuple([x if type(x) is int else x.at(n) for x in value])
    return value.at(n) if isinstance(value, Extent) else value


def times(value: int | Extent, factor: int) -> int | Extent:
    """A multiple of a number."""
    if isinstance(value, Extent):
        return Extent(
            tuple(
                [
                    c * factor if isinstance(c, int) else tuple([x * factor for x in c])
                    for c in value.coefficients
                ]
            )
        )
    return value * factor


def fixed_type(ty: TensorType, n: N) -> TensorType:
    """A tensor type for a size of `n`."""
    return TensorType(fixed(ty.shape, n), ty.dtype)


def fixed_ref(ref: TensorRef, n: N) -> TensorRef:
    """A tensor in memory for a size of `n`."""
    place = Place(ref.place.space, ref.place.index, fixed(ref.place.offset, n))
    return TensorRef(place, fixed_type(ref.type, n), fixed(ref.strides, n))


def check(size: Size, n: N) -> None:
    """Check that a program supports the size of a call.

    Raises:
        ValueError: the size is outside of the program's range.
    """
    if isinstance(n, tuple):
        n, m = n
        assert size.second is not None
        check(size.second, m)
    if not size.least <= n <= size.most:
        raise ValueError(
            f"the size {size.name} is {n}, and the program is for {size.least} to {size.most}"
        )


class Numbers:
    """Several extents that are evaluated together."""

    def __init__(self, extents: Sequence[Extent]) -> None:
        terms: dict[tuple[int, int], dict[int, int]] = {}  # by powers of both sizes
        for i, e in enumerate(extents):
            for power, c in enumerate(e.coefficients):
                for other, x in enumerate(c if isinstance(c, tuple) else (c,)):
                    terms.setdefault((power, other), {})[i] = x
        self._powers = [*terms]
        self._coefficients = np.zeros((len(terms), len(extents)), dtype=np.int64)
        for row, found in enumerate(terms.values()):
            self._coefficients[row, [*found]] = [*found.values()]
        self._pieces = np.array(
            [i for i, e in enumerate(extents) if e.limit is not None], dtype=np.int64
        )
        parts = [extents[i] for i in self._pieces]
        self._first = np.array([e.first for e in parts], dtype=np.int64)
        self._limit = np.array([e.limit for e in parts], dtype=np.int64)

    def at(self, n: N) -> np.ndarray:
        """Their numbers for a size of `n`."""
        a, b = n if isinstance(n, tuple) else (n, 1)
        powers = np.array([a**i * b**j for i, j in self._powers], dtype=np.int64)
        total: np.ndarray = powers @ self._coefficients
        if len(self._pieces):
            part = total[self._pieces] - self._first
            total[self._pieces] = np.clip(part, 0, self._limit)
        return total
