"""The search for the placements of all values on one mesh axis.

Ops are placed in program order, and then changed one by one as long as that reduces the cost. The cost is the bytes
that ranks send for resharding; each value counts once for each placement in which it is needed. Replicated computation
has a price, so a contraction with a sharded or partial operand stays sharded. An op whose operands are replicated is
replicated, unless its users need shards: nothing is sharded without a sharding of an argument or a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gflow.dialects.distribution.sharding import reduction, split_dim

from .choices import Choice
from .resharding import WHOLE, bytes_sent, total_sent

#: the operations that cost as much as sending a byte. They are few, since authors shard what should be distributed
_WORK_OF_BYTE = 0.01
#: tie-breakers: the cost of a replicated operation, and of a replicated byte that is written
_LITTLE = 1e-9
_SWEEPS = 8


@dataclass
class Problem:
    """The search problem of one mesh axis. Values and ops are numbered.

    Attributes:
        ranks: the ranks along the axis.
        nbytes: by value, the bytes that the ranks of this axis hold together.
        given: the placements of arguments.
        returned: (value, needed placement) of results of the function.
        choices: the choices of each op, the replicated one first.
        operands, results: the values of each op.
        work: the operations of each op.
        follows: ops whose results are their operands (views).
        same: ops that must make the same choice, by a common key.
        forced: ops that demand a placement of their result.
        terms: values that may stay partial sums (`_Propagation._terms`).
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
    """The state of a search.

    Attributes:
        have: the placement of each value.
        chosen: the choice of each op.
        changed: for each value, the number of changes when its placement, or a needed placement, last changed.
        seen: for each op, the number of changes when it was last examined.
    """

    def __init__(self, problem: Problem, late: bool) -> None:
        self.p, self.late = problem, late
        self.have: list[str] = [WHOLE] * len(problem.nbytes)
        self.needs: list[Counter[str]] = [Counter() for _ in problem.nbytes]
        self.chosen: list[Choice] = [options[0] for options in problem.choices]
        self.fixed: dict[
            object, str
        ] = {}  # by key: the factor of ops that must make the same choice
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
        """Find placements; returns their cost."""
        count = len(self.chosen)
        for o in range(count):
            self._first(o)
        for sweep in range(_SWEEPS):
            order = range(count) if sweep % 2 else range(count - 1, -1, -1)
            if not sum(self._improve(o) for o in order):
                break
        return self.cost()

    def cost(self) -> float:
        """The cost of the current placements: bytes sent, and the price of replicated computation."""
        moved = sum(self._sent(v) for v in range(len(self.have)))
        return moved + sum(self._price(o, c) for o, c in enumerate(self.chosen))

    # -- one op

    def options(self, o: int) -> list[Choice]:
        """The choices that are possible for an op now."""
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
        """The estimated cost of a choice when only earlier ops are placed.

        It assumes that partial results will be reduced, and that newly sharded results will be gathered.
        """
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
        """The price of a choice's computation: that of an op which is replicated although an operand is sharded."""
        if choice.splits:
            return 0.0
        spared = (self.p.ranks - 1) / self.p.ranks
        if self._parted(o):
            return self.p.work[o] * spared / _WORK_OF_BYTE
        made = sum(self.p.nbytes[v] for v in self.p.results[o])
        return (self.p.work[o] + made) * spared * _LITTLE

    def _parted(self, o: int) -> bool:
        """Whether an operand of an op is sharded or partial."""
        return any(split_dim(self.have[v]) is not None for v in self.p.operands[o])

    def _is_asked(self, o: int) -> bool:
        """Whether an op has a reason to be sharded: an operand that isn't replicated, or a user that needs shards."""
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
        """Replace an op's choice by the best one, with all others unchanged; returns whether it changed."""
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
    """The better of two searches: one that reduces partial sums early, and one that does so late."""
    found = [Search(problem, late) for late in (False, True)]
    return min(found, key=Search.run)
