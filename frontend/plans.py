"""The plans of one graph, by signature: a cache that drops what was not used for longest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gflow.runtime.arena import Arena

if TYPE_CHECKING:
    from .plan import Plan

#: plans that a graph keeps unless its config says otherwise
DEFAULT_SIZE = 16


class PlanCache:
    """At most `size` plans. All run in one arena, as large as the largest needs; one that is dropped
    gives back what only it needed. strict: `add` is not called for more, see `is_full`. apart: each
    new plan keeps an arena of its own."""

    def __init__(self) -> None:
        self.size, self.strict, self.apart = DEFAULT_SIZE, False, False
        self.arena = Arena()
        self._plans: OrderedDict[Any, list[Plan]] = OrderedDict()

    def find(self, key: Any) -> Plan | None:
        """The plan for a signature, for the hyperparameters as they are now."""
        for plan in self._plans.get(key, ()):
            if plan.refresh():
                self._plans.move_to_end(key)
                return plan
        return None

    def add(self, key: Any, plan: Plan) -> None:
        """Take a new plan in, as the first choice of its signature."""
        if not self.apart:
            use_arena(plan.compiled.run, self.arena)
        self._plans.setdefault(key, []).insert(0, plan)
        self._plans.move_to_end(key)
        self._trim()

    def discard(self, plan: Plan) -> None:
        """Drop one plan."""
        for key, plans in [*self._plans.items()]:
            if plan in plans:
                plans.remove(plan)
                _close(plan.compiled.run)
                if not plans:
                    del self._plans[key]

    def resize(self, size: int, strict: bool) -> None:
        self.size, self.strict = size, strict
        self._trim()

    def use_arena(self, arena: Arena) -> None:
        """Run all plans, those to come too, in an arena that others share."""
        self.arena = arena
        for plan in self:
            use_arena(plan.compiled.run, arena)

    def clear(self) -> None:
        """Drop all plans."""
        plans = list(self)
        self._plans.clear()
        for plan in plans:
            _close(plan.compiled.run)

    @property
    def is_full(self) -> bool:
        """Whether another plan is refused."""
        return self.strict and len(self) >= self.size

    def _trim(self) -> None:
        for _ in range(len(self) - self.size):
            key, plans = next(iter(self._plans.items()))
            _close(plans.pop().compiled.run)
            if not plans:
                del self._plans[key]

    def values(self) -> list[list[Plan]]:
        """The plans of each signature, those used last at the end."""
        return list(self._plans.values())

    def __iter__(self) -> Iterator[Plan]:
        return (plan for plans in self._plans.values() for plan in plans)

    def __len__(self) -> int:
        return sum(map(len, self._plans.values()))


def use_arena(run: Any, arena: Arena) -> None:
    """Let what a plan runs work in `arena`."""
    for part in _executables(run):
        part.use_arena(arena)


def _close(run: Any) -> None:
    for part in _executables(run):
        part.close()


def _executables(run: Any) -> Iterator[Any]:
    """What runs in an arena: an executable, or the parts that a runner names."""
    if hasattr(run, "use_arena"):
        yield run
    for part in getattr(run, "executables", ()):
        yield from _executables(part)
