"""The recomputations and live bytes that follow from a choice of values to recompute.

A chosen value has an end: its memory is free after that op. It is recomputed before the first later user, together with
the values on which it depends and that are dead by then, and stays live until its last user.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .problem import Problem, Recipe

Ends = dict[int, int]
"""By chosen value: the op after which its memory is free."""


@dataclass
class Replay:
    """The result of a replay.

    Attributes:
        runs: the recomputations in order, each with the op before which it runs.
        live: for each op, the most live bytes since the op before it.
        seconds: the predicted time that is added: that of the recomputations, less that of results which the first
            runs no longer compute.
        again: by recomputed value, the op before which it is recomputed.
        last: by value, its last user (of its second version, if it is recomputed).
    """

    runs: list[tuple[int, Recipe]]
    live: NDArray[np.int64]
    seconds: float
    again: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """The greatest number of live bytes."""
        return int(self.live.max(initial=0))


class NotPossible(Exception):
    """A recomputation of `value` would read an argument after its update."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def replay(problem: Problem, ends: Ends) -> Replay:
    """Replay a choice.

    Raises:
        NotPossible: a recomputation would read an argument after its update.
    """
    runs = _runs(problem, ends)
    return _measure(problem, runs)


def _runs(problem: Problem, ends: Ends) -> list[tuple[int, Recipe]]:
    runs: list[tuple[int, Recipe]] = []
    done: set[int] = set()

    def compute(first: int, t: int) -> None:
        # a stack of (value, whether its operands are available)
        stack = [(first, False)]
        while stack:
            v, ready = stack.pop()
            if v in done:
                continue
            recipe = _recipe_at(problem, ends, done, v, t)
            if ready:
                runs.append((t, recipe))
                done.update(recipe.results)
                continue
            stack.append((v, True))
            for w in recipe.reads:
                if w in ends and t > ends[w] and w not in done:
                    stack.append((w, False))
                elif problem.updated.get(w, t) < t:
                    raise NotPossible(v)

    for t, values in enumerate(problem.reads):
        for v in values:
            if v in ends and t > ends[v] and v not in done:
                compute(v, t)
    return runs


def _recipe_at(problem: Problem, ends: Ends, done: set[int], value: int, t: int) -> Recipe:
    """The recipe for a value at op `t`, together with other results of its op that are needed there, too."""
    op = problem.maker[value]
    together = [
        v
        for v in problem.makes[op]
        if v == value
        or (
            v in ends and v not in done and ends[v] < t and _next_reader(problem, v, t) <= t + _NEAR
        )
    ]
    recipe = problem.recipe(*together)
    if recipe is None or any(v in ends for v in recipe.reads if v in problem.makes[op]):
        recipe = problem.recipe(value)  # they may depend on each other
    assert recipe is not None
    return recipe


#: results of one op are recomputed together if they are read within so many ops
_NEAR = 24


def _next_reader(problem: Problem, value: int, t: int) -> float:
    return next((float(r) for r in problem.readers[value] if r >= t), float("inf"))


def _measure(problem: Problem, runs: list[tuple[int, Recipe]]) -> Replay:
    """Insert the recomputations between the ops, and compute the live bytes."""
    count = len(problem.reads)
    before: list[int] = [0] * (count + 1)  # the number of recomputations before each op
    for t, _ in runs:
        before[t] += 1
    position, at = [], 0
    for t in range(count):
        at += before[t]
        position.append(at)  # the position of op t
        at += 1
    total = at
    # the live range of each value's first and second version, in positions
    starts: dict[int, int] = {}
    stops: dict[int, int] = {}
    starts2: dict[int, int] = {}
    stops2: dict[int, int] = {}
    again: dict[int, int] = {}
    last: dict[int, int] = {}
    change = np.zeros(total + 1, dtype=np.int64)
    seconds = 0.0
    size = problem.size
    next_run = 0

    def read(v: int, t: int, where: int) -> None:
        if size[v]:
            last[v] = t
            if v in starts2:
                stops2[v] = where
            else:
                stops[v] = where

    for t in range(count):
        where = position[t] - before[t]
        while next_run < len(runs) and runs[next_run][0] == t:
            recipe = runs[next_run][1]
            for v in recipe.reads:
                read(v, t, where)
            for v in recipe.results:
                starts2[v] = stops2[v] = where
                again[v] = t
            if needed := recipe.waste + problem.scratch.get(recipe.op, 0):
                change[where] += needed
                change[where + 1] -= needed
            seconds += recipe.seconds
            next_run += 1
            where += 1
        if needed := problem.scratch.get(t, 0):
            change[where] += needed
            change[where + 1] -= needed
        for v in problem.reads[t]:
            read(v, t, where)
        for v in problem.makes[t]:
            if size[v]:
                starts[v] = stops[v] = where
    seconds -= _saved(problem, {v for v in starts2 if starts.get(v) == stops.get(v, -1)})
    for first, end in ((starts, stops), (starts2, stops2)):
        for v, a in first.items():
            if size[v]:
                change[a] += size[v]
                change[end[v] + 1] -= size[v]
    _take_over(problem, position, [stops, stops2], starts2, change)
    live = np.cumsum(change[:total])
    highest = (
        np.maximum.reduceat(live, np.array([p - b for p, b in zip(position, before)]))
        if count
        else live
    )
    return Replay(runs, highest, seconds, again, last)


def _saved(problem: Problem, dead: set[int]) -> float:
    """The seconds that first runs get shorter, where results are read only after their recomputation."""
    by_op: dict[int, set[int]] = {}
    for v in dead:
        by_op.setdefault(problem.maker[v], set()).add(v)
    return sum(problem.saved(op, frozenset(values)) for op, values in by_op.items())


def _take_over(
    problem: Problem,
    position: list[int],
    stops: list[dict[int, int]],
    starts2: dict[int, int],
    change: NDArray[np.int64],
) -> None:
    """Count a buffer once where a kernel's result takes over the buffer of an operand with its last use there."""
    size = problem.size
    for t, pairs in problem.takeovers:
        where = position[t]
        gone: set[int] = set()
        taken: set[int] = set()
        for r, v in pairs:
            if r in taken or v in gone:
                continue
            second = v in starts2 and starts2[v] < where
            if (stops[1][v] if second else stops[0].get(v)) == where:
                gone.add(v)
                taken.add(r)
                change[where] -= size[r]
                change[where + 1] += size[r]
