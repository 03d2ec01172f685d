"""Products on a processor, by a race: our own kernel beside the library's.

`gflow-select-kernels` chooses by a model. Where there is a way to measure, some of what it left to be compared runs for
some milliseconds, the largest product first. How far the model was off there corrects it for the rest, and only what
the corrected model is not sure of is measured, too; all that runs of it is compiled at once. The faster one is written
in its place:

{kind = "blas"}    →    {kind = "panels", tile = array<i64: 8, 48, 384>, …, tuned = "AMD EPYC"}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from gflow.dialects.marks import KERNEL
from gflow.dialects.mlir import func
from gflow.dialects.program import Program, Race

from ..emit.cpu.product.race import programs
from ..kernel.contest import Contest
from ..kernel.selection.choice import choice_of
from ..kernel.selection.cpu.blocking import FEW_ROWS, cut, speedup
from ..kernel.selection.select import contests_of, decided
from ..memory.liveness import lives_at_entry
from ..targets.processors import PROCESSORS, Processor

#: what the ways are called in reports
_NAMES = {"panels": "own", "blas": "BLAS"}

#: how many times faster one way must be, by a model that several races corrected, to be taken without a race
_SURE = 1.25
#: the same after one race. On one processor, measured over modelled speedups were between 1.5 and 2.5, so what seems
#: this much faster is slower by some percent at most.
_SURE_OF_ONE = 1.6

#: programs that do the same, by what they are called
Ways = Callable[[], Mapping[str, Program]]
#: seconds of each of some programs, none where other work on the machine would decide; the text says what is compared
Measure = Callable[[str, Ways], Mapping[str, float]]


def _nothing(races: Sequence[tuple[str, Ways]]) -> None:
    pass


@dataclass(frozen=True)
class Racing:
    """How to measure, and what the machine is called. prepare: told of what will be measured, as `measure` is."""

    measure: Measure
    device: str
    prepare: Callable[[Sequence[tuple[str, Ways]]], None] = _nothing


@dataclass
class _Contests:
    """The contests of one function.

    times: of those that were to be measured, the seconds of each way. won: of all that are decided, whether our own is
    faster. errors: measured speedups over the model's.
    """

    processor: Processor
    threads: int
    racing: Racing
    times: dict[Contest, Mapping[str, float]] = field(default_factory=dict)
    won: dict[Contest, bool] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)

    def decide(self, contests: Sequence[Contest]) -> None:
        """Have contests decided: by the model where that is sure by now, else by races.

        The first corrects the model. What it is not sure of then is prepared together, since most of what a small
        kernel takes to compile is the same for a hundred.
        """
        for some in (contests[:1], contests[1:]):
            races = {}
            for contest in some:
                own = self._sure(contest)
                if own is None:
                    races[contest] = self._race(contest)
                else:
                    self.won[contest] = own
            if races:
                self.racing.prepare(list(races.values()))
            for contest, race in races.items():
                own = self._sure(contest)
                if own is None:
                    times = self.times[contest] = self.racing.measure(*race)
                    if not times:  # what `gflow-select-kernels` chose stays
                        continue
                    own = times["panels"] <= times["blas"]
                    modelled = self._modelled(contest)
                    if modelled is not None:
                        self.errors.append(times["blas"] / times["panels"] / modelled)
                self.won[contest] = own

    def _modelled(self, contest: Contest) -> float | None:
        """How many times faster our own is, as the model has it; None for what it has no opinion on."""
        short = contest.shorter().product
        return speedup(self.processor, short, self.threads) if short.rows > FEW_ROWS else None

    def _sure(self, contest: Contest) -> bool | None:
        """Whether our own is faster; None where nobody knows."""
        modelled = self._modelled(contest)
        if modelled is None or not self.errors:
            return None
        least = _SURE if len(self.errors) > 1 else _SURE_OF_ONE
        if modelled * min(self.errors) >= least:
            return True
        return False if modelled * max(self.errors) <= 1 / least else None

    def _race(self, contest: Contest) -> tuple[str, Ways]:
        """What is compared, as `Measure` has it."""
        short = contest.shorter()
        blocks = cut(self.processor, short, self.threads)
        return (
            f"{short} float32, {self.threads} threads, {self.processor.name}",
            cache(partial(programs, short, blocks, self.threads)),
        )


def race_products(function: func.FuncOp, racing: Racing, threads: int, isa: str) -> list[Race]:
    """Have the products of a function with selected kernels made by what is fastest.

    Returns:
        What was measured, in the order of ops; `step` is the op's number.
    """
    lives = lives_at_entry(function)
    asked = contests_of(function, lives, threads, isa)
    contests = _Contests(PROCESSORS[isa], threads, racing)
    different = dict.fromkeys(c for _, c in asked.values() if c.worth_while)
    contests.decide(sorted(different, key=lambda c: c.size, reverse=True))
    found = []
    for index, (o, contest) in asked.items():
        if choice_of(o.op).tuned:
            continue
        if contest not in contests.won:
            if contest in contests.times:
                found.append(Race(index, f"{o.name} {o.op.location}", racing.device, {}))
            continue
        choice = decided(lives, threads, isa, contests.won, o, racing.device)
        o.op.attributes[KERNEL] = choice.attribute()
        if contest in contests.times:
            ordered = sorted(contests.times[contest].items(), key=lambda item: item[1])
            seconds = {_NAMES[name]: t for name, t in ordered}
            found.append(Race(index, f"{o.name} {o.op.location}", racing.device, seconds))
    return found
