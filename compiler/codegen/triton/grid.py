"""How many programs a launch has: expressions of a kernel over its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import CodeType
from typing import Any

from gflow.dialects.program import Place, TritonConfig, TritonKernel


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


_KNOWN = {"cdiv": cdiv, "min": min, "max": max, "__builtins__": {}}


def grid_of(
    kernel: TritonKernel, config: TritonConfig, args: Sequence[int | float | Place]
) -> tuple[int, ...]:
    """The three sizes of a launch's grid."""
    numbers: dict[str, Any] = {
        name: value
        for name, value in zip(kernel.parameters, args, strict=True)
        if not isinstance(value, Place)
    }
    numbers |= kernel.constants | config.constants
    sizes = [int(eval(_code(text), dict(_KNOWN), numbers)) for text in kernel.grid]
    return (*sizes, *(1,) * (3 - len(sizes)))


@cache
def _code(text: str) -> CodeType:
    return compile(text, "<grid>", "eval")
