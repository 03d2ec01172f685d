"""Integers at known addresses, all read by one call of NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Words:
    """Integers of `width` bytes at addresses. The caller keeps the memory alive."""

    def __init__(self, at: npt.NDArray[np.int64], width: int) -> None:
        """at: the addresses: multiples of `width`, or at distances from the first one that are multiples of
        `width`."""
        first, last = int(at.min()), int(at.max())
        self._at = (at - first) // width
        self._memory = np.asarray(_Memory(first, (last - first) // width + 1, width))

    def read(self) -> npt.NDArray[np.generic]:
        """The present values of the integers, in the order of the addresses."""
        return self._memory.take(self._at)


class _Memory:
    """Memory from an address on as `count` integers, for NumPy."""

    def __init__(self, address: int, count: int, width: int) -> None:
        self.__array_interface__ = {
            "data": (address, True), "shape": (count,), "typestr": f"<i{width}", "version": 3,
        }  # fmt: skip
