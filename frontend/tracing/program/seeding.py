"""Seeds of PyTorch's generator in `build()`: they would take effect once, while the graph is traced, so they are
refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from gflow.errors import GraphTraceError

from ..context.location import here
from ..context.threads import here_only


def problem(where: str) -> GraphTraceError:
    """The error for a `build()` that seeds."""
    return GraphTraceError(
        f"{where}: build() changes the state of PyTorch's random generator (torch.manual_seed, set_rng_state, "
        "fork_rng), which would happen once, while the graph is traced, and not at each call. Seed before the call."
    )


class Seed:
    """The seed of PyTorch's generator when a trace began, or the one that another thread set since."""

    def __init__(self) -> None:
        self._lock, self._known = threading.Lock(), torch.default_generator.initial_seed()

    def changed(self) -> bool:
        """Whether the thread that traces has seeded, in a way that `refused` does not detect."""
        with self._lock:
            return torch.default_generator.initial_seed() != self._known

    def elsewhere(self, seed: Callable[..., Any]) -> Callable[..., Any]:
        """A function that seeds, for other threads, which may seed while this one traces."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                try:
                    return seed(*args, **kwargs)
                finally:
                    self._known = torch.default_generator.initial_seed()

        return call


def _refuse(*_: Any, **__: Any) -> Any:
    raise problem(here())


def _set_state(state: torch.Tensor) -> None:
    """Allow restoring the current state, which changes nothing: `fork_rng` does so if no number was drawn."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        same = torch.equal(state, torch.default_generator.get_state())
    if not same:
        _refuse()


def refused(seed: Seed) -> list[tuple[Any, str, Callable[..., Any]]]:
    """(module, name, function) of replacements for PyTorch's functions in the thread that traces."""
    found = []
    for name, other in (("manual_seed", _refuse), ("seed", _refuse), ("set_rng_state", _set_state)):
        for module in (torch, torch.random):
            original = getattr(module, name)
            function: Any = here_only(seed.elsewhere(original), other)
            function._torchdynamo_inline = original
            found.append((module, name, function))
    return found
