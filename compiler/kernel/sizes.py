"""Integer arithmetic on sizes, shared by kernel selection and code generation."""

from __future__ import annotations

from collections.abc import Sequence

#: the least number that needs more than 32 bits, signed
WIDE = 1 << 31


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The least power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from a tensor's first to its last in memory, both included."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if 0 not in shape else 0
