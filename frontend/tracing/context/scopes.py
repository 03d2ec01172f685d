"""Calls of modules with recomputation, while a graph is traced.

Every op records the marked calls that contain it. `torch.utils.checkpoint` has the same meaning for the function that
it receives, so inside `build()` it only marks the ops of that function. A pass of the graph recomputes them, with the
same random numbers.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import checkpoint as library

from .threads import here_only, replaced

Scopes = tuple[str, ...]


class ScopeStack:
    """The marked calls that are running, outermost first; each has a unique name."""

    def __init__(self) -> None:
        self.current: Scopes = ()
        self._calls: Counter[str] = Counter()

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Ops recorded inside belong to a call of `name`."""
        outer = self.current
        self.current = (*outer, f"{name}#{self._calls[name]}")
        self._calls[name] += 1
        try:
            yield
        finally:
            self.current = outer


@contextlib.contextmanager
def checkpoint_calls(scopes: ScopeStack, module: Callable[[], str]) -> Iterator[None]:
    """Let `torch.utils.checkpoint.checkpoint` mark the ops of its function.

    Both of its forms call a function that is looked up in their module at every call, so replacing that function also
    affects code that holds a reference to `checkpoint`.

    Args:
        module: the path of the module that is running.
    """

    def name() -> str:
        return f"{module()}.checkpoint" if module() else "checkpoint"

    def without_reentrant(*_: Any, **__: Any) -> Iterator[None]:
        with scopes.call(name()):
            yield

    def reentrant(function: Any, preserve: bool, *args: Any) -> Any:
        with scopes.call(name()):
            return function(*args)

    class Reentrant(library.CheckpointFunction):
        apply = staticmethod(here_only(library.CheckpointFunction.apply, reentrant))

    without = here_only(library._checkpoint_without_reentrant_generator, without_reentrant)
    with replaced(
        (library, "_checkpoint_without_reentrant_generator", without),
        (library, "CheckpointFunction", Reentrant),
    ):
        yield
