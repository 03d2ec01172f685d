"""Arithmetic on sizes that choices and code share."""

from __future__ import annotations

from collections.abc import Sequence

#: numbers from here on need 64 bits
WIDE = 1 << 31


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The least power of two that isn't below `n`."""
    return 1 << max(0, n - 1).bit_length()


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The elements that a tensor spans in memory."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if 0 not in shape else 0
