"""The plans of one graph, by signature; the least recently used one is dropped."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gflow.runtime.arena import Arena

if TYPE_CHECKING:
    from .plan import Plan

#: the default number of plans of a graph
DEFAULT_SIZE = 16
#: with this many programs of one signature, a warning gives the reason
MANY_VARIANTS = 8


class PlanCache:
    """At most `size` plans. All run in one arena, with the size of the largest; if that plan is dropped, the arena
    shrinks.

    Attributes: strict: whether `add` must not be called for a further plan, see `is_full`. apart: whether each new
    plan has an arena of its own.
    """

    def __init__(self) -> None:
        self.size, self.strict, self.apart = DEFAULT_SIZE, False, False
        self.arena = Arena()
        self._plans: OrderedDict[Any, list[Plan]] = OrderedDict()
        self._latest: Sequence[Plan] = ()  # those that are the most recently used
        self._made: dict[Any, int] = {}
        self._uses = 0
        self.cleared = 0

    def find(
        self, key: Any, leaves: Sequence[Any], takes: Callable[[Plan], bool] | None = None
    ) -> Plan | None:
        """The plan for a signature and a call, which is valid for the current Python state and hyperparameters. takes:
        whether a plan may be it; then it is the first choice of later calls."""
        found = self._plans.get(key, ())
        for plan in found:
            if takes is not None and not takes(plan):
                continue
            if plan.given is not None and plan.given.first_change(leaves) is not None:
                continue
            fits = (plan.guard is None or plan.guard.holds()) and plan.refresh()
            if fits and plan.first_other_value(leaves) is None:
                if found is not self._latest:  # a key takes long to hash
                    self._plans.move_to_end(key)
                    self._latest = found
                self._uses += 1
                plan.used = self._uses
                if takes is not None:
                    self._plans[key].remove(plan)
                    self._plans[key].insert(0, plan)
                return plan
        return None

    def add(self, key: Any, plan: Plan) -> None:
        """Add a plan, as the first choice of its signature."""
        if not self.apart:
            use_arena(plan.compiled.run, self.arena)
        variants = self._plans.setdefault(key, [])
        self._count_variant(key, plan, variants)
        self._uses += 1
        plan.used = self._uses
        variants.insert(0, plan)
        self._plans.move_to_end(key)
        self._latest = variants
        self._trim()

    def _count_variant(self, key: Any, plan: Plan, variants: list[Plan]) -> None:
        """Warn, once, if a signature gets many programs, and name the reason: sizes, or Python values of an
        optimizer."""
        self._made[key] = made = self._made.get(key, 0) + 1
        if made != MANY_VARIANTS or not variants:
            return
        if plan.known is not None:  # `Programs._say_why` tells the value
            return
        if plan.trace.branches:
            lines = dict.fromkeys(b.where for p in (plan, *variants) for b in p.trace.branches)
            warnings.warn(
                f"{plan.trace.name} was compiled {made} times for the same inputs, since its programs are for the "
                f"truths of conditions on values ({', '.join([*lines][:3])}), and a call for which one differs runs "
                "another one. "
                "torch.where chooses by value within one program.",
                stacklevel=6,
            )
            return
        reason = variants[0].python.why()
        ranges = dict.fromkeys(
            str(p.dynamic.sizes) for p in (plan, *variants) if p.dynamic is not None
        )
        if reason is None and len(ranges) > 1:
            warnings.warn(
                f"{plan.trace.name} was compiled {made} times for the same inputs, since what it computes depends on "
                f"a size, and each program is for a part of the sizes ({'; '.join([*ranges][:3])}, ...). Branches on "
                "sizes, and numbers made of them by rounding, each end a part; graph.explain_recompiles() tells them. "
                "config.set_cache_size() keeps more programs.",
                stacklevel=6,
            )
            return
        warnings.warn(
            f"{plan.trace.name} was compiled {made} times for the same inputs, since the optimizer's step depends "
            "on a Python value that keeps changing"
            + (f" (the last program does not fit because {reason})" if reason else "")
            + ". A number that step() takes out of Python's arithmetic (int(), float(), as an index) is fixed in "
            "a program: compute with the number itself, or keep it as a tensor in the state. Where a few "
            "values alternate, their programs are kept and compiled once; config.set_cache_size() "
            "keeps more of them.",
            stacklevel=6,
        )

    def discard(self, plan: Plan) -> None:
        """Drop one plan."""
        for key, plans in [*self._plans.items()]:
            if plan in plans:
                plans.remove(plan)
                _close(plan.compiled.run)
                if not plans:
                    del self._plans[key]

    def move(self, plan: Plan, key: Any, to: Any) -> None:
        """Give a plan another signature."""
        if plan in self._plans.get(key, ()):
            self._plans[key].remove(plan)
            if not self._plans[key]:
                del self._plans[key]
            self._plans.setdefault(to, []).insert(0, plan)
            self._latest = ()

    def resize(self, size: int, strict: bool) -> None:
        """Set the maximal number of plans. strict: whether one more is an error instead of dropping the oldest."""
        self.size, self.strict = size, strict
        self._trim()

    def use_arena(self, arena: Arena) -> None:
        """Run all current and future plans in an arena that others share."""
        self.arena = arena
        for plan in self:
            use_arena(plan.compiled.run, arena)

    def clear(self) -> None:
        """Drop all plans."""
        self.cleared += bool(self._plans)
        plans = list(self)
        self._plans.clear()
        self._latest = ()
        self._made.clear()
        for plan in plans:
            _close(plan.compiled.run)

    @property
    def is_full(self) -> bool:
        """Whether another plan is refused."""
        return self.strict and len(self) >= self.size

    def _trim(self) -> None:
        for _ in range(len(self) - self.size):
            key, plans = next(iter(self._plans.items()))
            oldest = min(plans, key=lambda plan: plan.used)
            plans.remove(oldest)
            _close(oldest.compiled.run)
            if not plans:
                del self._plans[key]

    def of(self, key: Any) -> list[Plan]:
        """All plans of a signature, valid or not."""
        return self._plans.get(key, [])

    def values(self) -> list[list[Plan]]:
        """The plans of each signature, the most recently used last."""
        return list(self._plans.values())

    def __iter__(self) -> Iterator[Plan]:
        return (plan for plans in self._plans.values() for plan in plans)

    def __len__(self) -> int:
        return sum(map(len, self._plans.values()))


def use_arena(run: Any, arena: Arena) -> None:
    """Run a plan's programs in `arena`."""
    for part in _executables(run):
        part.use_arena(arena)


def join_results(run: Any, results: Collection[int]) -> list[int]:
    """Let results that only another program of ours reads share a buffer; those that do (`Executable.join_results`)."""
    joined: list[int] = run.join_results(results) if hasattr(run, "join_results") else []
    return joined


def share_buffers(run: Any, results: Collection[int]) -> None:
    """Let calls of all sizes share the buffers of these results, which only another program of ours reads: a caller
    would find storages larger than the tensors."""
    if hasattr(run, "inner"):
        run.inner = frozenset(results)


def _close(run: Any) -> None:
    for part in _executables(run):
        part.close()


def _executables(run: Any) -> Iterator[Any]:
    """The objects with an arena: an executable, or the parts that a runner names."""
    if hasattr(run, "use_arena"):
        yield run
    for part in getattr(run, "executables", ()):
        yield from _executables(part)
