"""The modules and tensors that a function reads besides its arguments."""

from __future__ import annotations

from typing import Any

import torch

from gflow.tracing.reads.reads import Reads
from gflow.tracing.reads.state import StateGuard


class Captured:
    """The modules and tensors that a callable reaches by its closure, globals, bound object, and arguments of a
    partial, and by their contents; also those of functions that it calls. A module reaches itself.

    The search is repeated when one of the searched objects has changed.
    """

    def __init__(self, target: Any) -> None:
        self.target = target
        self._parts: list[Any] = []
        self._guard: StateGuard | None = None

    def parts(self) -> list[Any]:
        """Modules that no other one contains, and tensors."""
        if isinstance(self.target, torch.nn.Module):
            return [self.target]
        if self._guard is None or not self._guard.holds():
            reads = Reads().walk([("function", self.target)])
            inside: set[int] = set()
            found: dict[int, Any] = {}
            for module in reads.modules.values():
                if id(module) not in inside:
                    found[id(module)] = module
                    inside.update(map(id, module.modules()))
            for read in reads.found:
                for part in read.value if read.kind in ("list", "dict") else (read.value,):
                    if isinstance(part, torch.Tensor) and read.kind not in (
                        "slot",
                        "hooks",
                        "names",
                    ):
                        found.setdefault(id(part), part)
            self._parts = list(found.values())
            self._guard = StateGuard(reads.found, reads.names, [], lambda: None, lambda: 0)
        return self._parts
