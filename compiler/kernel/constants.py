"""Which constants stand in the text of a GPU's kernel, and which a launch passes, so that kernels share a text.

mul %x, 0.5    →    x * 0.5           it may fold
mul %x, 0.1    →    x * const0        const0 = 0.1
"""

from __future__ import annotations

import math
from typing import Any

#: constants that stay in the source, where they may fold
_PLAIN = (0.0, 1.0, -1.0, 2.0, 0.5)

#: element types whose constants may be parameters
_PARAMETERS = frozenset({"f64", "f32", "f16", "bf16", "i64", "i32"})


def is_parameter(value: Any, dtype: str) -> bool:
    """Whether a launch passes a constant."""
    number = float(value)
    plain = number in _PLAIN or math.isnan(number) or math.isinf(number)
    return dtype in _PARAMETERS and not plain


def signed(stream: int) -> int:
    """The number of a random op's stream as a launch passes it: 32 bits with a sign."""
    low = stream & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low
