"""The placements of all values on one mesh axis: op by op in order, then changed where that sends less.

What is minimized is the bytes that ranks send to place values otherwise, each value once for each way in which it is
needed. Work is never done twice to save bytes: a contraction of which an operand is split, or partial, stays so, by the
price of doing it on every rank. Beyond that an op whose operands are whole is whole, unless what reads it needs
parts of it: nothing is split that neither an argument nor a result asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gflow.dialects.distribution.sharding import reduction, split_dim

from .choices import Choice
from .resharding import WHOLE, bytes_sent, total_sent

#: operations for which a byte is sent rather than work done on every rank: few, since authors split what they want
#: to be shared
_WORK_OF_BYTE = 0.01
#: what decides between equals: an operation that need not be done twice, a byte that need not be written twice
_LITTLE = 1e-9
_SWEEPS = 8


@dataclass
class Problem:
    """One mesh axis. Values and ops are numbered.

    ranks: along the axis. nbytes: of values, as the ranks of this axis hold them together. given: placements of
    arguments. returned: (value, need) for what leaves. choices: of each op, the whole one first. operands, results:
    values of each op. work: operations of each op. follows: ops whose results are their operands. same: ops that must
    choose alike, by a key of theirs. forced: ops that ask for a placement of their result. terms: values
    that are best terms of a sum, see `_Propagation._terms`.
    """

    ranks: int
    nbytes: Sequence[float]
    given: dict[int, str]
    returned: Sequence[tuple[int, str]]
    choices: Sequence[list[Choice]]
    operands: Sequence[list[int]]
    results: Sequence[list[int]]
    work: Sequence[float]
    follows: frozenset[int]
    same: dict[int, object]
    forced: dict[int, Choice]
    terms: frozenset[int] = frozenset()


class Search:
    """have: by value its placement. chosen: by op its choice. changed: by value, how many choices had been exchanged
    when it was last placed, or needed, otherwise; seen: by op, when it was last looked at."""

    def __init__(self, problem: Problem, late: bool) -> None:
        self.p, self.late = problem, late
        self.have: list[str] = [WHOLE] * len(problem.nbytes)
        self.needs: list[Counter[str]] = [Counter() for _ in problem.nbytes]
        self.chosen: list[Choice] = [options[0] for options in problem.choices]
        self.fixed: dict[object, str] = {}  # the factors of ops that must choose alike
        for value, placement in problem.given.items():
            self.have[value] = placement
        for value, need in problem.returned:
            self.needs[value][need] += 1
        self.exchanged = 1
        self.changed, self.seen = [1] * len(problem.nbytes), [0] * len(problem.choices)
        self.users = [0] * len(problem.nbytes)
        for operands in problem.operands:
            for v in operands:
                self.users[v] += 1

    def run(self) -> float:
        """Find placements; returns what they cost."""
        count = len(self.chosen)
        for o in range(count):
            self._first(o)
        for sweep in range(_SWEEPS):
            order = range(count) if sweep % 2 else range(count - 1, -1, -1)
            if not sum(self._improve(o) for o in order):
                break
        return self.cost()

    def cost(self) -> float:
        """Bytes sent, and the price of work done on every rank."""
        moved = sum(self._sent(v) for v in range(len(self.have)))
        return moved + sum(self._price(o, c) for o, c in enumerate(self.chosen))

    # -- one op

    def options(self, o: int) -> list[Choice]:
        """What an op may choose now."""
        if o in self.p.forced:
            return [self.p.forced[o]]
        if o in self.p.follows:
            placed = tuple(self.have[v] for v in self.p.operands[o])
            return [Choice(placed, placed)]
        found = self.p.choices[o]
        key = self.p.same.get(o)
        if key in self.fixed and key is not None:
            found = [c for c in found if c.factor == self.fixed[key]] or found[:1]
        return found

    def _first(self, o: int) -> None:
        operands = self.p.operands[o]
        options = self.options(o)
        best = options[0]
        if len(options) > 1 and any(self.have[v] != WHOLE for v in operands):
            best = min(options, key=lambda c: self._guess(o, c))
        self._take(o, best)
        if o in self.p.same:
            self.fixed.setdefault(self.p.same[o], best.factor)

    def _guess(self, o: int, choice: Choice) -> float:
        """What a choice costs as far as is known in order: partial results will be added up one day, and parts
        that are made here put together."""
        p, total = self.p, self._price(o, choice)
        for v, need in {(v, n) for v, n in zip(p.operands[o], choice.needs)}:
            before = self.needs[v]
            total += self._sent_with(v, need) - total_sent(
                self.have[v], before, p.nbytes[v], p.ranks
            )
        for v, placed in zip(p.results[o], choice.gives):
            made = split_dim(placed) is not None and not self._parted(o)
            if v in p.terms:
                total += 0.0 if reduction(placed) is not None else p.nbytes[v]
            elif reduction(placed) is not None or made:
                total += bytes_sent(placed, WHOLE, p.nbytes[v], p.ranks)
            if reduction(placed) is not None:
                alone = all(self.users[x] == 1 for x in p.operands[o])
                total += -1.0 if self.late or alone else 1.0
        return total

    def _sent_with(self, v: int, need: str) -> float:
        return total_sent(self.have[v], {*self.needs[v], need}, self.p.nbytes[v], self.p.ranks)

    def _price(self, o: int, choice: Choice) -> float:
        """Of work: what is done on every rank though an operand lies in parts."""
        if choice.splits:
            return 0.0
        spared = (self.p.ranks - 1) / self.p.ranks
        if self._parted(o):
            return self.p.work[o] * spared / _WORK_OF_BYTE
        made = sum(self.p.nbytes[v] for v in self.p.results[o])
        return (self.p.work[o] + made) * spared * _LITTLE

    def _parted(self, o: int) -> bool:
        """Whether an operand of an op lies in parts."""
        return any(split_dim(self.have[v]) is not None for v in self.p.operands[o])

    def _is_asked(self, o: int) -> bool:
        """Whether an op has a reason to be split: an operand that is no whole, or a reader that needs parts."""
        return any(self.have[v] != WHOLE for v in self.p.operands[o]) or any(
            split_dim(need) is not None for v in self.p.results[o] for need in self.needs[v]
        )

    def _take(self, o: int, choice: Choice) -> None:
        for v, need in zip(self.p.operands[o], choice.needs):
            self.needs[v][need] += 1
        for v, placed in zip(self.p.results[o], choice.gives):
            self.have[v] = placed
        self.chosen[o] = choice

    def _drop(self, o: int) -> None:
        for v, need in zip(self.p.operands[o], self.chosen[o].needs):
            counts = self.needs[v]
            counts[need] -= 1
            if not counts[need]:
                del counts[need]

    def _sent(self, v: int) -> float:
        return total_sent(self.have[v], self.needs[v], self.p.nbytes[v], self.p.ranks)

    def _improve(self, o: int) -> bool:
        """Exchange an op's choice for the best one, with everything else as it is."""
        if o in self.p.same or o in self.p.forced:
            return False
        around = {*self.p.operands[o], *self.p.results[o]}
        if all(self.changed[v] <= self.seen[o] for v in around):
            return False
        self.seen[o] = self.exchanged
        before, asked = self.chosen[o], self._is_asked(o)
        options = [c for c in self.options(o) if c != before and (asked or not c.splits)]
        if not options:
            return False
        best, least = before, sum(map(self._sent, around)) + self._price(o, before)
        self._drop(o)
        for choice in options:
            self._take(o, choice)
            cost = sum(map(self._sent, around)) + self._price(o, choice)
            if cost < least - 1e-12 or o in self.p.follows:
                best, least = choice, cost
            self._drop(o)
        self._take(o, best)
        if best == before:
            return False
        self.exchanged += 1
        for v in around:
            self.changed[v] = self.exchanged
        return True


def place(problem: Problem) -> Search:
    """The best placements found: with partial sums added up soon, and late."""
    found = [Search(problem, late) for late in (False, True)]
    return min(found, key=Search.run)
