"""The search for values to recompute, so that a program stays under a limit of live bytes at the least cost.

The search is greedy. The candidates are values with a long gap between two users. The next one is the value with the
least recomputation time in seconds for each byte that it frees, summed over the ops that exceed the limit. The operands
of a recomputation may be dead by then: each is kept longer, or recomputed as well, whichever is cheaper. Prices change
with every choice, and are computed again when a value is considered. A replay (`replay.py`) then gives the exact live
bytes, and the search continues until they fit. At the end, values are kept again where there is room, the most
expensive ones first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from .problem import Problem, Recipe
from .replay import Ends, NotPossible, Replay, replay

#: the fewest ops between two users for a value to be dropped in between
_SHORTEST_GAP = 4

#: values that are smaller than the peak divided by this factor are not considered
_NEGLIGIBLE = 20000

#: the most additional values that one recomputation may recompute
_MOST_WITH_IT = 24

#: the least share of the freed bytes that must remain after those that further recomputations need
_LEAST_GAIN = 0.2

#: the most values whose live range one recomputation may extend
_MOST_EXCHANGED = 2

#: up to this depth, operands of a recomputation are recomputed rather than kept
_DEPTHS = (-1, 0, 1, 2)

#: the most additional values at greater depth
_LITTLE = 3

#: prices that differ by less than this factor count as equal
_CLOSE = 1.1

#: the most replays of a search
_ROUNDS = 24

#: the same, from a start
_FEW_ROUNDS = 8


@dataclass
class Choice:
    """The values that are recomputed, and the resulting program."""

    ends: Ends
    result: Replay


@dataclass
class _Step:
    """One more value to recompute, with all consequences.

    They are further values to recompute (with the ends of their live ranges), when values are recomputed, extended live
    ranges, changes of live bytes as (bytes, from, to), and the reads of recomputations.
    """

    seconds: float = 0.0
    freed: float = 0.0
    ends: Ends = field(default_factory=dict)
    again: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)

    @property
    def price(self) -> float:
        return self.seconds / self.freed

    def copy(self) -> _Step:
        return _Step(
            self.seconds, self.freed, dict(self.ends), dict(self.again), dict(self.last),
            list(self.changes), list(self.reads),
        )  # fmt: skip


@dataclass
class _Terms:
    """How the operands of a recomputation are provided.

    Attributes:
        worth: the bytes that the value itself would free, summed over the ops that exceed the limit.
        repeat: recompute all operands that would otherwise have to live longer.
        count: the number of further values that are recomputed.
        longer: the values whose live ranges are extended.
    """

    worth: float
    repeat: int
    depth: int = 0
    count: int = 0
    work: int = 0
    longer: list[int] = field(default_factory=list)


class _Impossible(Exception):
    pass


class _Search:
    """The state of the search: the decisions so far, and the expected live bytes at each op."""

    def __init__(self, problem: Problem, limit: int, allowed: float, negligible: int) -> None:
        self.problem, self.limit = problem, limit
        self.allowed, self.negligible = allowed, negligible
        self.spent = 0.0
        self.ends: Ends = {}
        self.gaps: dict[int, tuple[int, int]] = {}
        self.extra: dict[
            int, list[int]
        ] = {}  # by kept value: the ops at which recomputations read it
        self.least = 0
        self.blocked: set[int] = set()
        self.last: dict[int, int] = {}
        self.again: dict[int, int] = {}
        self.live: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.over: list[int] = []
        self.above: list[int] = []

    def look(self, result: Replay) -> None:
        """Start from the result of a replay."""
        if not self.gaps:
            self.least = result.peak // self.negligible
            for v, size in enumerate(self.problem.size):
                if size > self.least and (gap := gap_of(self.problem, v)) is not None:
                    self.gaps[v] = gap
        self.last, self.again, self.live = dict(result.last), dict(result.again), result.live.copy()
        self.spent = result.seconds
        self._count()

    def _count(self) -> None:
        """Count the ops that exceed the limit, and the bytes above it, up to each op."""
        above = np.maximum(self.live - self.limit, 0)
        self.over = [0, *np.cumsum(above > 0).tolist()]
        self.above = [0, *np.cumsum(above).tolist()]

    @property
    def fits(self) -> bool:
        return self.over[-1] == 0

    def crowded(self, start: int, end: int) -> int:
        """The number of ops among start … end - 1 that exceed the limit."""
        return self.over[end] - self.over[start] if end > start else 0

    # -- one value

    def price(self, value: int) -> _Step | None:
        """The cost and gain of recomputing a value; None if that frees nothing."""
        if value in self.ends or value in self.blocked or value not in self.gaps:
            return None
        start, end = self.gaps[value]
        size = self.problem.size[value]
        worth = size * self.crowded(start + 1, end)
        if not worth:
            return None
        best: _Step | None = None
        longer = True
        for repeat in _DEPTHS:
            if not longer:
                break
            terms = _Terms(worth, repeat)
            step = _Step(ends={value: start}, again={value: end})
            step.last[value] = max(self.last.get(value, end), end)
            self._change(step, -size, start + 1, end)
            try:
                self._provide_inputs(step, value, end, terms)
            except _Impossible:
                continue
            longer = bool(terms.longer)
            step.freed = self._relief(step.changes)
            if longer:
                step = self._exchange(step, terms)
            step.seconds = max(step.seconds - self._saved(step.ends), 0.0)
            if step.freed < _LEAST_GAIN * self._relief(step.changes[:1]):
                continue
            if step.freed > 0 and (best is None or step.price < best.price):
                best = step
        return best

    def _saved(self, ends: Ends) -> float:
        """The seconds that first runs get shorter with these values: they compute no result that nobody reads."""
        problem = self.problem
        total = 0.0
        for op in dict.fromkeys(
            problem.maker[v] for v, end in ends.items() if end == problem.maker[v]
        ):
            before = frozenset(v for v in problem.makes[op] if self.ends.get(v) == op)
            after = before | {v for v in problem.makes[op] if ends.get(v) == op}
            total += problem.saved(op, after) - problem.saved(op, before)
        return total

    def _exchange(self, step: _Step, terms: _Terms) -> _Step:
        """Where a value's live range is extended, drop values that can be recomputed from it.

        An example is a normalized activation, which can be recomputed from the activation before it.
        """
        for w in terms.longer[:_MOST_EXCHANGED]:
            for u in self.problem.users.get(w, ())[: 2 * _MOST_EXCHANGED]:
                if u in step.ends or u in self.ends or u in self.blocked or u not in self.gaps:
                    continue
                start, end = self.gaps[u]
                trial = step.copy()
                trial.ends[u], trial.again[u] = start, end
                trial.last[u] = max(self.last.get(u, end), end)
                self._change(trial, -self.problem.size[u], start + 1, end)
                try:
                    self._provide_inputs(trial, u, end, _Terms(terms.worth, -1))
                except _Impossible:
                    continue
                trial.freed = self._relief(trial.changes)
                if trial.freed > max(step.freed, 0.0):
                    step = trial
        return step

    def _relief(self, changes: list[tuple[int, int, int]]) -> float:
        """The bytes above the limit that changes save, summed over the ops."""
        low, high = min(c[1] for c in changes), max(c[2] for c in changes)
        delta = np.zeros(high - low + 1, dtype=np.int64)
        for size, start, end in changes:
            delta[start - low] += size
            delta[end - low] -= size
        after = delta[:-1].cumsum()
        after += self.live[low:high]
        after -= self.limit
        above = int(np.maximum(after, 0, out=after).sum())
        return float(self.above[high] - self.above[low] - above)

    def _change(self, step: _Step, size: int, start: int, end: int) -> None:
        if end > start and size:
            step.changes.append((size, start, end))
            step.freed -= size * self.crowded(start, end)

    def _provide_inputs(self, step: _Step, value: int, t: int, terms: _Terms) -> None:
        """Add the recomputation of `value` before op `t` to a step."""
        recipe = self.problem.recipe(value)
        terms.count += 1
        terms.depth += 1
        try:
            self._provide_all(step, recipe, t, terms)
        finally:
            terms.depth -= 1

    def _provide_all(self, step: _Step, recipe: Recipe | None, t: int, terms: _Terms) -> None:
        terms.work += 1
        if recipe is None or terms.count > _MOST_WITH_IT or terms.work > 2 * _MOST_WITH_IT:
            raise _Impossible
        step.seconds += recipe.seconds
        for w in recipe.reads:
            if self.problem.updated.get(w, t) < t:
                raise _Impossible
            if self.problem.size[w]:
                step.reads.append((w, t))
                self._provide(step, w, t, terms)

    def _provide(self, step: _Step, w: int, t: int, terms: _Terms) -> None:
        """Provide the operand `w` at op `t`: keep it, extend its live range, or recompute it."""
        problem = self.problem
        size = problem.size[w]
        ended = step.ends.get(w, self.ends.get(w))
        last = step.last.get(w, self.last.get(w, problem.maker[w]))
        if ended is not None:
            if t <= ended:
                return
            again = step.again.get(w, self.again.get(w))
            if again is None:
                self._change(step, size, t, t + 1)
                step.again[w], step.last[w] = t, t
                self._provide_inputs(step, w, t, terms)
            elif t < again:  # it is recomputed earlier than before
                self._change(step, size, t, again)
                step.again[w] = t
                recipe = problem.recipe(w)
                assert recipe is not None
                for x in recipe.reads:
                    if problem.size[x]:
                        self._provide(step, x, t, terms)
            elif t > last:
                self._change(step, size, last + 1, t + 1)
                step.last[w] = t
            return
        if t <= last:
            return
        longer = size * self.crowded(last + 1, t + 1)
        if longer and size > self.least and w not in self.blocked and terms.repeat >= 0:
            trial = _Step(ends={**step.ends, w: last}, again=dict(step.again), last=dict(step.last))
            trial.again[w], trial.last[w] = t, t
            before, known = terms.count, len(terms.longer)
            try:
                self._change(trial, size, t, t + 1)
                self._provide_inputs(trial, w, t, terms)
            except _Impossible:
                pass
            else:
                saved = longer + trial.freed
                # at greater depth, only if nearly all of its operands are available
                little = len(terms.longer) == known and terms.count - before <= _LITTLE
                if (saved > 0 and little) or terms.depth <= terms.repeat:
                    step.seconds += trial.seconds
                    step.freed += trial.freed
                    step.changes += trial.changes
                    step.reads += trial.reads
                    step.ends, step.again, step.last = trial.ends, trial.again, trial.last
                    return
            terms.count = before
            del terms.longer[known:]
        terms.longer.append(w)
        self._change(step, size, last + 1, t + 1)
        step.last[w] = t

    # -- the search

    def take(self, step: _Step) -> None:
        self.spent += step.seconds
        self.ends.update(step.ends)
        self.again.update(step.again)
        self.last.update(step.last)
        for v, t in step.reads:
            if v not in self.ends:
                self.extra.setdefault(v, []).append(t)
                gap = gap_of(self.problem, v, self.extra[v])
                if gap is not None and self.problem.size[v] > self.least:
                    self.gaps[v] = gap
            elif v in self.gaps and self.gaps[v][0] < t < self.gaps[v][1]:
                self.gaps[v] = (self.gaps[v][0], t)
        for size, start, end in step.changes:
            self.live[start:end] += size
        self._count()

    def grow(self, candidates: Iterable[int]) -> bool:
        """Choose values until the expected live bytes fit, or the allowed time is spent; returns whether any was
        chosen."""
        heap: list[tuple[float, int]] = []
        for v in candidates:
            step = self.price(v)
            if step is not None:
                heap.append((step.price, v))
        heapq.heapify(heap)
        taken = False
        while heap and not self.fits:
            _, v = heapq.heappop(heap)
            step = self.price(v)
            if step is None:
                continue
            price = step.price
            if heap and price > heap[0][0] * _CLOSE:
                heapq.heappush(heap, (price, v))
                continue
            if self.spent + step.seconds > self.allowed:
                continue
            self.take(step)
            taken = True
            near = {u for w in step.ends for u in self.problem.users.get(w, ())}
            near |= {w for w, _ in step.reads}
            for u in near:
                again = self.price(u)
                if again is not None:
                    heapq.heappush(heap, (again.price, u))
        return taken


def gap_of(problem: Problem, value: int, extra: Sequence[int] = ()) -> tuple[int, int] | None:
    """The longest gap between two consecutive users of a value (or its producer and the first user); None: no gap.

    extra: additional users: recomputations.
    """
    made = problem.maker[value]
    if made < 0 or not problem.size[value] or problem.recipe(value) is None:
        return None
    times = sorted([made, *problem.readers[value], *extra])
    length, start = max(((b - a, a) for a, b in pairwise(times)), default=(0, 0))
    return (start, start + length) if length >= _SHORTEST_GAP else None


def choose(
    problem: Problem, limit: int, allowed: float = inf, negligible: int = _NEGLIGIBLE
) -> Choice:
    """The values to recompute so that at most `limit` bytes are live at any op.

    If the search does not reach the limit, the result is the choice with the lowest peak that it found.

    Args:
        problem: the data of the function.
        limit: bytes.
        allowed: the most time that the recomputations may take, in seconds.
        negligible: values that are smaller than the peak divided by this factor are kept.
    """
    best = Choice({}, replay(problem, {}))
    if best.result.peak <= limit:
        return best
    search = _Search(problem, limit, allowed, negligible)
    search.look(best.result)
    for _ in range(_ROUNDS):
        if not search.grow(list(search.gaps)):
            break
        found = _replay(search)
        if found.result.peak < best.result.peak and found.result.seconds <= allowed:
            best = found
        if found.result.peak <= limit:
            return keep_again(problem, limit, found)
        search.look(found.result)
    return best


def grow(problem: Problem, limit: int, ends: Ends, whole: Replay) -> Choice:
    """As `choose`, from a choice that drops some values already. whole: the replay without a choice."""
    search = _Search(problem, limit, inf, _NEGLIGIBLE)
    search.look(whole)
    search.ends = dict(ends)
    best = found = _replay(search)
    for _ in range(_FEW_ROUNDS):
        search.look(found.result)
        if found.result.peak <= limit or not search.grow(list(search.gaps)):
            break
        found = _replay(search)
        if found.result.peak < best.result.peak:
            best = found
    return best


def _replay(search: _Search) -> Choice:
    """Replay the decisions; values that cannot be recomputed are kept after all."""
    while True:
        try:
            return Choice(dict(search.ends), replay(search.problem, search.ends))
        except NotPossible as error:  # other decisions moved it behind an update
            del search.ends[error.value]
            search.blocked.add(error.value)


def keep_again(problem: Problem, limit: int, found: Choice) -> Choice:
    """Keep values again where there is room, those with the most expensive recomputation first."""
    room = limit - found.result.live
    seconds: dict[int, float] = {}
    for _, recipe in found.result.runs:
        for v in recipe.results:
            seconds[v] = recipe.seconds
    ends = dict(found.ends)
    best = found
    kept: list[int] = []
    for v in sorted(seconds, key=lambda v: -seconds[v]):
        start, end = ends[v] + 1, found.result.again[v]
        if end <= start or room[start:end].min() >= problem.size[v]:
            room[start:end] -= problem.size[v]
            kept.append(v)
    while kept:
        trial = {v: t for v, t in ends.items() if v not in set(kept)}
        try:
            result = replay(problem, trial)
        except NotPossible:
            break
        if result.peak <= limit and result.seconds <= best.result.seconds:
            best = Choice(trial, result)
            break
        kept = kept[: len(kept) // 2]
    return best
