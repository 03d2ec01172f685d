"""Which constants are literals in the source of a GPU kernel, and which are kernel arguments.

Kernels that differ only in constants that are arguments share their source.

mul %x, 0.5    →    x * 0.5           a literal, which the compiler may fold
mul %x, 0.1    →    x * const0        an argument, const0 = 0.1
"""

from __future__ import annotations

import math
from typing import Any

#: constants that stay in the source, where the compiler may fold them
_PLAIN = (0.0, 1.0, -1.0, 2.0, 0.5)

#: element types whose constants may be kernel arguments
_PARAMETERS = frozenset({"f64", "f32", "f16", "bf16", "i64", "i32"})


def is_parameter(value: Any, dtype: str) -> bool:
    """Whether a constant is a kernel argument."""
    number = float(value)
    plain = number in _PLAIN or math.isnan(number) or math.isinf(number)
    return dtype in _PARAMETERS and not plain


def signed(stream: int) -> int:
    """A random op's stream number as a kernel argument: its low 32 bits as a signed integer."""
    low = stream & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low
