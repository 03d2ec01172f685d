"""What is known of a function between two passes, so that each analysis is made once for as long as it holds.

The pass manager opens a scope around a pipeline and forgets what is known after each pass, except where the pass says
that it kept what analyses read (`Kept` in `compiler/passes/base.py`). Outside of a scope nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from gflow.dialects.mlir import func, ir

T = TypeVar("T")

#: by function and by analysis with its options
_Known = dict[tuple[ir.Operation, Any], Any]

_known: ContextVar[_Known | None] = ContextVar("known", default=None)


@contextmanager
def analyses_kept() -> Iterator[None]:
    """Remember analyses until the end, or until they are forgotten."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def forget() -> None:
    """What is known holds no longer."""
    known = _known.get()
    if known is not None:
        known.clear()


def analysis(function: func.FuncOp, key: Any, make: Callable[[], T]) -> T:
    """What `make` finds of a function; what it found before, if that still holds. Who asks must not change it, and asks
    before changing the function.

    key: the analysis, with all that it depends on besides the function.
    """
    known = _known.get()
    if known is None:
        return make()
    at = function.operation, key
    if at not in known:
        known[at] = make()
    return known[at]
