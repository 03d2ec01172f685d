"""The least predicted time that recomputation must add to a program under a limit of live bytes, by the solver HiGHS.

The mixed-integer program is Checkmate's (Jain et al., 2020) on kernels in their scheduled order: before each kernel,
any kernel may run again, any number of times, and a value stays in memory as long as the solver likes. It reads the
data of the search (`compiler/passes/recomputation/problem.py`): sizes, scratch, buffers that are taken over, recipes
and their seconds, and the time that a first run saves when nobody reads its result.

It is a relaxation. So its optimum, and each bound of the solver on it, is a lower bound for every choice of values:

- The kernels are divided into intervals. The order inside an interval is free, and live bytes are limited at one kernel
  of each interval, the one with the most live bytes of its interval.
- Values that are smaller than a share of the limit cost no memory and are always there.

Its linear relaxation alone would be weak: it keeps a small share of a value, and recomputes what depends on it in as
many small shares. Windows exclude that. A window is the rest of the program after a point. What is read in it was kept
at the point, or is recomputed in the window at least once, and so is all that this needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, pairwise
from math import inf

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from gflow.compiler.passes.recomputation.problem import Problem, Recipe
from gflow.compiler.passes.recomputation.replay import replay

#: values smaller than this share of the limit are left out
_SMALL = 1 / 500

#: the fewest ops between two users for a value to be worth recomputing in between
_GAP = 4

#: the most results of a kernel, of which all sets have recipes of their own
_MOST_RESULTS = 6

#: the unit of time for the solver, whose tolerances are absolute: microseconds
_UNIT = 1e-6

Terms = list[tuple[int, float]]


@dataclass
class Bound:
    """What the solver proved.

    Attributes:
        seconds: no choice of values adds less time; infinite if no choice meets the limit.
        variables: the number of variables.
    """

    seconds: float
    variables: int


def lower_bound(
    problem: Problem, limit: int, intervals: int = 30, windows: int = 8, seconds: float = 60.0
) -> Bound:
    """A lower bound of the predicted time that a choice adds whose replay has at most `limit` live bytes.

    Args:
        problem: the data of the function.
        limit: bytes.
        intervals: of the program, each with one limit of live bytes.
        windows: points after which the recomputations are coupled.
        seconds: the solver's time limit; at its end, the bound is what it has proved so far.
    """
    program = _Program(problem, limit, intervals, windows)
    count = len(program.cost)
    rows = program.rows
    matrix = coo_array((rows.factor, (rows.row, rows.column)), shape=(len(rows.low), count))
    sums = np.zeros(count, dtype=bool)
    sums[program.sums] = True
    result = milp(
        np.array(program.cost) / _UNIT,
        integrality=~sums,
        bounds=Bounds(0, np.where(sums, inf, 1)),
        constraints=LinearConstraint(matrix.tocsr(), rows.low, rows.high),
        options={"time_limit": seconds, "mip_rel_gap": 1e-4},
    )
    if result.status == 2:
        return Bound(inf, count)
    proved = result.mip_dual_bound
    return Bound(-inf if proved is None else proved * _UNIT - program.offset, count)


@dataclass
class _Rows:
    """Linear constraints: low <= sum of factor * variable <= high."""

    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    factor: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: Terms, low: float, high: float = inf) -> None:
        for column, factor in terms:
            self.row.append(len(self.low))
            self.column.append(column)
            self.factor.append(factor)
        self.low.append(low)
        self.high.append(high)


@dataclass
class _Point:
    """The variables at a kernel where live bytes are limited.

    Attributes:
        op: the kernel.
        present: by value, whether it is in memory while the kernel runs.
        total: by value, the number of its recomputations until then.
    """

    op: int
    present: dict[int, int]
    total: dict[int, int]


class _Program:
    """The mixed-integer program.

    Attributes:
        cost: by variable, seconds.
        sums: the variables that count recomputations; all others are 0 or 1.
        offset: seconds that are saved in any case.
    """

    def __init__(self, problem: Problem, limit: int, intervals: int, windows: int) -> None:
        self.problem, self.limit = problem, limit
        self.cost: list[float] = []
        self.sums: list[int] = []
        self.offset = 0.0
        self.rows = _Rows()
        self.least = limit * _SMALL
        self.live = replay(problem, {}).live
        self.last = [max(readers, default=-1) for readers in problem.readers]
        self.again = self._recomputable()
        self.recipes = {op: list(self._recipes_of(op)) for op in self._makers()}
        self.until = self._useful_until()
        self.first: dict[int, int] = {}  # by value: the variable of its first run
        self.points: list[_Point] = []
        for t in self._limited(intervals):
            self._interval(t)
        self._windows(windows)

    # -- what is modelled

    def _big(self, value: int) -> bool:
        return self.problem.maker[value] >= 0 and self.problem.size[value] >= self.least

    def _recomputable(self) -> set[int]:
        """The values with a gap between two users, and those from which they are recomputed."""
        problem = self.problem
        stack = []
        for v, made in enumerate(problem.maker):
            gap = max((b - a for a, b in pairwise([made, *problem.readers[v]])), default=0)
            if self._big(v) and gap >= _GAP:
                stack.append(v)
        found: set[int] = set()
        while stack:
            v = stack.pop()
            if v not in found and self._big(v) and (recipe := problem.recipe(v)) is not None:
                found.add(v)
                stack += recipe.reads
        return found

    def _makers(self) -> list[int]:
        return sorted({self.problem.maker[v] for v in self.again})

    def _recipes_of(self, op: int) -> Iterator[Recipe]:
        made = [v for v in self.problem.makes[op] if v in self.again]
        if len(made) > _MOST_RESULTS:
            raise ValueError(f"a kernel with {len(made)} large results; expected {_MOST_RESULTS}")
        for some in filter(None, _sets(made)):
            recipe = self.problem.recipe(*some)
            if recipe is not None and not set(recipe.reads) & set(some):
                yield recipe

    def _useful_until(self) -> dict[int, int]:
        """For each big value, the last kernel that reads it or what may be recomputed from it."""
        until = {v: self.last[v] for v in range(len(self.last)) if self._big(v)}
        for op in sorted(self.recipes, reverse=True):
            for recipe in self.recipes[op]:
                for w in recipe.reads:
                    if w in until:
                        until[w] = max(until[w], *(until[r] for r in recipe.results))
        return until

    def _limited(self, intervals: int) -> list[int]:
        """The kernels at which live bytes are limited, and the last one."""
        makes = [t for t, made in enumerate(self.problem.makes) if made]
        parts = np.array_split(np.array(makes), min(intervals, len(makes)))
        points = {int(part[np.argmax(self.live[part])]) for part in parts}
        return sorted({*points, len(self.problem.reads) - 1})

    # -- variables and constraints

    def _variable(self, cost: float = 0.0) -> int:
        self.cost.append(cost)
        return len(self.cost) - 1

    def _interval(self, point: int) -> None:
        """The kernels after the last point, up to and including `point`."""
        problem = self.problem
        before = self.points[-1] if self.points else _Point(-1, {}, {})
        ops = range(before.op + 1, point + 1)
        fresh = {v for t in ops for v in problem.makes[t]}
        for t in ops:
            if t in self.recipes:
                self._first_run(t)
        runs: dict[int, Terms] = {}
        chosen = []
        for op, recipes in self.recipes.items():
            for recipe in recipes if op <= point else ():
                if max(self.until[v] for v in recipe.results) < ops.start or any(
                    problem.updated.get(w, point) < ops.start for w in recipe.reads
                ):
                    continue
                run = self._variable(recipe.seconds)
                chosen.append((run, recipe))
                for v in recipe.results:
                    runs.setdefault(v, []).append((run, 1.0))

        def there(v: int) -> Terms | None:
            """Terms whose sum is at least 1 if a value is ever there in the interval; None: it may always be."""
            if v not in self.until:
                return None
            if v in fresh:
                return [*runs.get(v, ()), (self.first[v], 1.0)] if v in self.first else None
            kept = [(before.present[v], 1.0)] if v in before.present else []
            return [*runs.get(v, ()), *kept]

        for run, recipe in chosen:
            for w in recipe.reads:
                if (terms := there(w)) is not None:
                    self.rows.add([*terms, (run, -1.0)], 0)
        for v in {v for t in ops for v in problem.reads[t]}:
            if (terms := there(v)) is not None:
                self.rows.add(terms, 1)
        present = {}
        for v, until in self.until.items():
            if problem.maker[v] <= point <= until:
                present[v] = self._variable()
                if (terms := there(v)) is not None:
                    self.rows.add([*terms, (present[v], -1.0)], 0)
        total = dict(before.total)
        for v, terms in runs.items():
            count = self._variable()
            self.sums.append(count)
            earlier = [(total[v], 1.0)] if v in total else []
            self.rows.add([*terms, *earlier, (count, -1.0)], 0, 0)
            total[v] = count
        self._limit(point, present)
        self.points.append(_Point(point, present, total))

    def _first_run(self, t: int) -> None:
        """Variables for sets of results that the first run of a kernel leaves out."""
        big = [v for v in self.problem.makes[t] if v in self.again]
        left_out = {some: self._variable(-self._gain(t, some)) for some in _sets(big) if some}
        self.offset += max(self._gain(t, ()), 0.0)
        self.rows.add([(x, 1.0) for x in left_out.values()], 0, 1)
        for v in big:
            self.first[v] = self._variable()
            terms = [(x, 1.0) for some, x in left_out.items() if v in some]
            self.rows.add([(self.first[v], 1.0), *terms], -inf, 1)

    def _gain(self, t: int, some: tuple[int, ...]) -> float:
        """The most seconds that the first run of a kernel saves without big results.

        It may leave out small results, too, whose recomputation takes at least the time that it adds to any recipe.
        """
        problem = self.problem
        small = [v for v in problem.makes[t] if v not in self.again and problem.readers[v]]
        best = -inf
        for more in _sets(small[:_MOST_RESULTS]):
            dead = frozenset({*some, *more})
            saved = problem.saved(t, dead) if dead else 0.0
            best = max(best, saved - (self._least_extra(t, more) if more else 0.0))
        return best

    def _least_extra(self, t: int, more: tuple[int, ...]) -> float:
        problem = self.problem
        alone = problem.recipe(*more)
        least = inf if alone is None else alone.seconds
        for recipe in self.recipes[t]:
            both = problem.recipe(*(v for v in problem.makes[t] if v in {*recipe.results, *more}))
            if both is not None:
                least = min(least, both.seconds - recipe.seconds)
        return max(least, 0.0)

    def _limit(self, point: int, present: dict[int, int]) -> None:
        """Limit the live bytes at a kernel: its operands and results, what is kept, and its scratch."""
        problem = self.problem
        terms = [(x, float(problem.size[v])) for v, x in present.items()]
        room = float(self.limit - problem.scratch.get(point, 0) + self._taken_over(point))
        for v in {*problem.reads[point], *problem.makes[point]}:
            if v in problem.makes[point] and v in self.first:
                if v in present:
                    self.rows.add([(present[v], 1.0), (self.first[v], -1.0)], 0)
            elif v in present:
                self.rows.add([(present[v], 1.0)], 1)
            elif self._big(v):
                room -= problem.size[v]
        self.rows.add(terms, -inf, room)

    def _taken_over(self, point: int) -> int:
        """The most bytes that results of a kernel save by taking over buffers of operands."""
        pairs = next((pairs for t, pairs in self.problem.takeovers if t == point), [])
        return sum(self.problem.size[r] for r in {r for r, _ in pairs if self._big(r)})

    def _windows(self, count: int) -> None:
        """Couple the recomputations after `count` points, and after the one with the most live bytes."""
        always = self._always_read()
        points, end = self.points[:-1], self.points[-1]
        if not points:
            return
        peak = max(range(len(points)), key=lambda n: self.live[points[n].op])
        for n in sorted({*np.linspace(0, len(points) - 1, count).astype(int).tolist(), peak}):
            self._window(points[n], end, always)

    def _window(self, point: _Point, end: _Point, always: dict[int, set[int]]) -> None:
        runs: dict[int, int] = {}
        for v in self.again:
            if self.problem.maker[v] <= point.op < self.until[v] and v in end.total:
                runs[v] = self._variable()
                terms = [(end.total[v], 1.0), (runs[v], -1.0)]
                self.rows.add([*terms, *((x, -1.0) for x in _if_in(point.total, v))], 0)
        for v, run in runs.items():
            if self.last[v] > point.op:
                kept = [(x, 1.0) for x in _if_in(point.present, v)]
                self.rows.add([(run, 1.0), *kept], 1)
            for w in always[v]:
                if w in self.until and self.problem.maker[w] <= point.op:
                    given = [*_if_in(point.present, w), *_if_in(runs, w)]
                    self.rows.add([(run, -1.0), *((x, 1.0) for x in given)], 0)

    def _always_read(self) -> dict[int, set[int]]:
        """For each value that may be recomputed, the values that all its recipes read."""
        found: dict[int, set[int]] = {}
        for recipe in chain(*self.recipes.values()):
            for v in recipe.results:
                found[v] = found.get(v, set(recipe.reads)) & set(recipe.reads)
        return found


def _sets(values: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All sets of some values, the empty one first."""
    return chain.from_iterable(combinations(values, n) for n in range(len(values) + 1))


def _if_in(variables: dict[int, int], value: int) -> list[int]:
    return [variables[value]] if value in variables else []
