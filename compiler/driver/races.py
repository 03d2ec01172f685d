"""Products on a processor, by a race: our own kernel beside the library's.

`gflow-select-kernels` chooses by a model. Where there is a way to measure, some of what it left to be compared runs for
some milliseconds, the largest products first. How far the model was off with these corrects it for the rest, and only
what the corrected model is not sure of is measured, too. The faster one is written in its place:

{kind = "blas"}    →    {kind = "panels", tile = array<i64: 8, 48, 384>, …, tuned = "AMD EPYC"}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from gflow.dialects.marks import KERNEL
from gflow.dialects.mlir import func
from gflow.dialects.program import Program, Race

from ..emit.cpu.product.race import programs
from ..kernel.contest import Contest
from ..kernel.selection.choice import choice_of
from ..kernel.selection.cpu.blocking import FEW_ROWS, cut, speedup
from ..kernel.selection.select import contests_of, decided
from ..memory.liveness import lives_of
from ..targets.processors import PROCESSORS, Processor

#: what the ways are called in reports
_NAMES = {"panels": "own", "blas": "BLAS"}

#: contests of a function that are measured at least, before the model speaks for others
_MEASURED = 2
#: how many times faster one way must be, by the corrected model, to be taken without a race
_SURE = 1.25

#: seconds of each of some programs; the text says what is compared
Measure = Callable[[str, Callable[[], Mapping[str, Program]]], Mapping[str, float]]


@dataclass(frozen=True)
class Racing:
    """How to measure, and what the machine is called."""

    measure: Measure
    device: str


@dataclass
class _Contests:
    """The contests of one function.

    times: of those that were measured, the seconds of each way. won: of all that are decided, whether our own is
    faster. errors: measured speedups over the model's.
    """

    processor: Processor
    threads: int
    measure: Measure
    times: dict[Contest, Mapping[str, float]] = field(default_factory=dict)
    won: dict[Contest, bool] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)

    def decide(self, contest: Contest) -> None:
        """Have a contest decided: by the model where that is sure by now, else by a race."""
        short = contest.shorter()
        modelled = None
        if short.product.rows > FEW_ROWS:
            modelled = speedup(self.processor, short.product, self.threads)
        own = self._sure(modelled)
        if own is None:
            times = self.times[contest] = self._race(short)
            own = times["panels"] <= times["blas"]
            if modelled is not None:
                self.errors.append(times["blas"] / times["panels"] / modelled)
        self.won[contest] = own

    def _sure(self, modelled: float | None) -> bool | None:
        """Whether our own is faster; None where nobody knows."""
        if modelled is None or len(self.errors) < _MEASURED:
            return None
        if modelled * min(self.errors) >= _SURE:
            return True
        return False if modelled * max(self.errors) <= 1 / _SURE else None

    def _race(self, short: Contest) -> Mapping[str, float]:
        blocks = cut(self.processor, short, self.threads)
        return self.measure(
            f"{short} float32, {self.threads} threads, {self.processor.name}",
            partial(programs, short, blocks, self.threads),
        )


def race_products(function: func.FuncOp, racing: Racing, threads: int, isa: str) -> list[Race]:
    """Have the products of a function with selected kernels made by what is fastest.

    Returns:
        What was measured, in the order of ops; `step` is the op's number.
    """
    lives = lives_of(function)
    asked = contests_of(function, lives, threads, isa)
    contests = _Contests(PROCESSORS[isa], threads, racing.measure)
    different = dict.fromkeys(c for _, c in asked.values() if c.worth_while)
    for contest in sorted(different, key=lambda c: c.size, reverse=True):
        contests.decide(contest)
    found = []
    for index, (o, contest) in asked.items():
        if contest not in contests.won or choice_of(o.op).tuned:
            continue
        choice = decided(lives, threads, isa, contests.won, o, racing.device)
        o.op.attributes[KERNEL] = choice.attribute()
        if contest in contests.times:
            ordered = sorted(contests.times[contest].items(), key=lambda item: item[1])
            seconds = {_NAMES[name]: t for name, t in ordered}
            found.append(Race(index, f"{o.name} {o.op.location}", racing.device, seconds))
    return found
