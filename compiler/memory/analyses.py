"""What is known of a function between two passes, so that each analysis is made once for as long as it holds.

The pass manager opens a scope around a pipeline. A pass (`Pass.run` in `compiler/passes/base.py`) forgets what is known
when it ends, except where it says that it kept what analyses read (`Kept`). Outside of a scope nothing is remembered.
A pass that another pass runs, such as on a copy, knows nothing of the other's scope: what runs several of them opens a
scope for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gflow.dialects.mlir import func, ir

T = TypeVar("T")


@dataclass
class _Scope:
    """What is known, by function and by analysis with its options, and whether a pass runs."""

    known: dict[tuple[ir.Operation, Any], Any] = field(default_factory=dict)
    in_pass: bool = False


_scope: ContextVar[_Scope | None] = ContextVar("scope", default=None)


@contextmanager
def analyses_kept() -> Iterator[None]:
    """Remember analyses until the end, or until they are forgotten."""
    token = _scope.set(_Scope())
    try:
        yield
    finally:
        _scope.reset(token)


def forget() -> None:
    """What is known holds no longer."""
    scope = _scope.get()
    if scope is not None:
        scope.known.clear()


def run_forgetting(run: Callable[[], T | None]) -> T | None:
    """Run what may change functions, and forget what is known of them unless it returns what it kept."""
    scope = _scope.get()
    if scope is None:
        return run()
    if scope.in_pass:  # what this one leaves, the outer pass goes on to change, or to erase
        scope.known.clear()
        token = _scope.set(None)
        try:
            return run()
        finally:
            _scope.reset(token)
    kept = None
    scope.in_pass = True
    try:
        kept = run()
    finally:
        scope.in_pass = False
        if kept is None:
            scope.known.clear()
    return kept


def analysis(function: func.FuncOp, key: Any, make: Callable[[], T]) -> T:
    """What `make` finds of a function; what it found before, if that still holds. Who asks must not change it, and asks
    before changing the function.

    key: the analysis, with all that it depends on besides the function.
    """
    scope = _scope.get()
    if scope is None:
        return make()
    at = function.operation, key
    if at not in scope.known:
        scope.known[at] = make()
    return scope.known[at]
