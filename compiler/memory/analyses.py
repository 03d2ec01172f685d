"""A cache of analyses between passes, so that each analysis is computed once while it is valid.

The pass manager opens a scope around a pipeline. When a pass ends (`Pass.run` in `compiler/passes/base.py`), the cache
is cleared, unless the pass returns that it preserved what analyses read (`Kept`). Outside of a scope nothing is cached.
A pass that another pass runs, for example on a copy, does not use the outer scope. Code that runs several passes opens
a scope for them.
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
    """The cached results by analysis and options, each with its function, and whether a pass is running."""

    known: dict[Any, list[tuple[ir.Operation, Any]]] = field(default_factory=dict)
    in_pass: bool = False


_scope: ContextVar[_Scope | None] = ContextVar("scope", default=None)


@contextmanager
def analyses_kept() -> Iterator[None]:
    """A scope in which analyses are cached, until its end or until `forget`. Inside a scope, outside of passes, it is
    that scope."""
    scope = _scope.get()
    if scope is not None and not scope.in_pass:
        yield
        return
    token = _scope.set(_Scope())
    try:
        yield
    finally:
        _scope.reset(token)


def forget() -> None:
    """Clear the cache of the current scope."""
    scope = _scope.get()
    if scope is not None:
        scope.known.clear()


def run_forgetting(run: Callable[[], T | None]) -> T | None:
    """Call `run`, which may change functions, and clear the cache unless it returns that it preserved analyses."""
    scope = _scope.get()
    if scope is None:
        return run()
    if scope.in_pass:  # the outer pass will change or erase the functions that this one leaves
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
    """The result of an analysis, from the cache if it is still valid.

    The caller must not modify the result, and must not have changed the function in the current pass.

    Args:
        function: the function.
        key: the analysis, with everything else that its result depends on.
        make: computes the result.
    """
    scope = _scope.get()
    if scope is None:
        return make()
    # not by the function's hash, which changes with its attributes
    entries = scope.known.setdefault(key, [])
    for known, found in entries:
        if known == function.operation:
            return found  # type: ignore[no-any-return]
    made = make()
    entries.append((function.operation, made))
    return made
