"""Calls of modules whose activations are recomputed, while a graph is traced.

Every op records which of them it is part of. `torch.utils.checkpoint` means the same for the
function that it is given, so inside `build()` it only marks what that function runs: the graph's own
pass replays it, with the same random numbers.
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
    """The marked calls that run now, outermost first; each has a name of its own."""

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
    """Let `torch.utils.checkpoint.checkpoint` mark what it runs.

    Both of its forms end in a name of its module that is looked up at every call, so it does not
    matter who holds a reference to the function itself.

    module: the path of the module that runs now.
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
