"""What a program does if some values are not kept: which ops run again and when, and the bytes live
at each op.

A value that is not kept has an end: its memory is free after that op. The first later op that reads
it computes it again, with all that this needs, and from then on it stays to its last reader.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .problem import Problem, Recipe

Ends = dict[int, int]
"""Values that are not kept → the op after which their memory is free."""


@dataclass
class Replay:
    """runs: what is recomputed, with the op in front of which; in order. live: for each op the
    most bytes that are live from the one before it on. again: when each value is recomputed.
    last: the last op that reads a value (its second version, where it has two).
    """

    runs: list[tuple[int, Recipe]]
    live: NDArray[np.int64]
    seconds: float
    again: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """The most bytes that are alive at once."""
        return int(self.live.max(initial=0))


class NotPossible(Exception):
    """An argument that must be read again has been overwritten by then."""


def replay(problem: Problem, ends: Ends) -> Replay:
    """Raises NotPossible."""
    runs = _runs(problem, ends)
    return _measure(problem, runs)


def _runs(problem: Problem, ends: Ends) -> list[tuple[int, Recipe]]:
    runs: list[tuple[int, Recipe]] = []
    done: set[int] = set()

    def compute(first: int, t: int) -> None:
        # a stack of (value, whether its inputs are there)
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
                    raise NotPossible

    for t, values in enumerate(problem.reads):
        for v in values:
            if v in ends and t > ends[v] and v not in done:
                compute(v, t)
    return runs


def _recipe_at(problem: Problem, ends: Ends, done: set[int], value: int, t: int) -> Recipe:
    """How to compute a value at op `t`, with those of its siblings that are needed there too."""
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
    if recipe is None or not set(recipe.reads).isdisjoint(problem.makes[op]):
        recipe = problem.recipe(value)  # they need another sibling, which may need this one
    assert recipe is not None
    return recipe


#: results of one op are computed together if they are read within so many ops
_NEAR = 24


def _next_reader(problem: Problem, value: int, t: int) -> float:
    return next((float(r) for r in problem.readers[value] if r >= t), float("inf"))


def _measure(problem: Problem, runs: list[tuple[int, Recipe]]) -> Replay:
    """Lay the second runs between the ops, and sum up what lives."""
    count = len(problem.reads)
    before: list[int] = [0] * (count + 1)  # second runs in front of each op
    for t, _ in runs:
        before[t] += 1
    position, at = [], 0
    for t in range(count):
        at += before[t]
        position.append(at)  # of op t itself
        at += 1
    total = at
    # of each value's first and second version: from, to, in positions
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
            if recipe.waste:
                change[where] += recipe.waste
                change[where + 1] -= recipe.waste
            seconds += recipe.seconds
            next_run += 1
            where += 1
        for v in problem.reads[t]:
            read(v, t, where)
        for v in problem.makes[t]:
            if size[v]:
                starts[v] = stops[v] = where
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


def _take_over(
    problem: Problem,
    position: list[int],
    stops: list[dict[int, int]],
    starts2: dict[int, int],
    change: NDArray[np.int64],
) -> None:
    """Count a buffer once where a kernel's result lies over an operand that dies in it."""
    body, size = problem.body, problem.size
    for t, where in enumerate(position):
        o = body.ops[t]
        if o.name != "fused":
            continue
        gone: set[int] = set()
        for n, r in enumerate(o.results):
            if not size[r]:
                continue
            for number, v in enumerate(o.operands):
                base = problem.at[v].base
                if size[base] != size[r] or base in gone:
                    continue
                end = (
                    stops[1][base]
                    if base in starts2 and starts2[base] < where
                    else stops[0].get(base)
                )
                if end != where or v != base:
                    continue
                if sum(problem.at[w].base == base for w in o.operands) > 1:
                    continue
                if problem.takes_over(o, number, n):
                    gone.add(base)
                    change[where] -= size[r]
                    change[where + 1] += size[r]
                    break
