"""Checks which updates in place a program can make."""

from __future__ import annotations

from typing import Any

import torch

from gflow.dialects.types import share_memory
from gflow.errors import GraphTraceError

from .values import TraceInput, TraceValue

#: the way out for modules that assign a tensor in their first call, as a cache
ONCE = "If a module does so only in its first call, call it once in eager mode before"


def check_update(build: Any, entry: TraceInput, value: TraceValue) -> None:
    """Check that `entry`, a tensor from outside `build()`, can take `value` at the end of a call.

    Raises:
        GraphTraceError: its shape or dtype would change, or its elements share memory.
    """
    old = entry.value
    if (value.shape, value.dtype) != (old.shape, old.dtype):
        problem = (
            f"changes {entry.role} {entry.name!r} in place from {kind(old)} to {kind(value)}; only "
            "the values of a tensor from outside can change. Return the new tensor instead"
        )
    elif share_memory(tuple(old.shape), tuple(old.strides)):
        problem = (
            f"changes {entry.role} {entry.name!r} in place, and some of its elements are one in memory "
            f"(an expanded tensor: shape {list(old.shape)}, strides {list(old.strides)}). Pass a copy "
            "(.clone())"
        )
    else:
        return
    code = getattr(build, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}: " if code else ""
    raise GraphTraceError(f"{where}build() {problem}.")


def kind(value: TraceValue | torch.Tensor) -> str:
    """Dtype and shape as text."""
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
