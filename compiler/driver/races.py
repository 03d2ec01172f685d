"""Timed comparison of gflow's own CPU products with the BLAS.

`gflow-select-kernels` chooses by a cost model. Where times can be measured, the driver corrects the model by the ratio
of measured to modelled speedup. The table of processors has this ratio for some (`targets/processors.py`: `Measured`).
On others, both ways run for some milliseconds, the largest product first. Products that the corrected model does
not decide are measured as well, after one compilation for all of them. The faster way is written into the op:

{kind = "blas"}    →    {kind = "panels", tile = array<i64: 8, 48, 384>, …, tuned = "AMD EPYC"}
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from gflow.dialects.marks import KERNEL
from gflow.dialects.mlir import func, ir
from gflow.dialects.program import Program, Race
from gflow.dialects.records import record

from ..kernel.blocks import Blocks
from ..kernel.contest import Contest
from ..kernel.selection.choice import choice_of
from ..kernel.selection.cpu.blocking import cut, speedup
from ..kernel.selection.select import contested, decided
from ..memory.liveness import lives_at_entry
from ..passes.memory.plan_memory import arena_of
from ..targets.processors import PROCESSORS, Measured, Processor

#: names of the two ways in reports
_NAMES = {"panels": "own", "blas": "BLAS"}

#: predicted speedup from which on a way is taken without a race, after several races have corrected the model
_SURE = 1.25
#: the same after one race. On one processor the ratios of measured to modelled speedup were between 1.5 and 2.5: a
#: way that is predicted to be this much faster is at most some percent slower.
_SURE_OF_ONE = 1.6

#: the most by which a way that is taken without a race may be slower, for processors in the table
_TOLERATED = 1.1

#: equivalent programs by name
Ways = Callable[[], Mapping[str, Program]]
#: seconds of each program, empty where other work on the machine would decide; the text names the comparison, and is
#: the key of its stored result
Measure = Callable[[str, Ways], Mapping[str, float]]


def _not_known(level: str, threads: int) -> None:
    return None


def _nothing(races: Sequence[tuple[str, Ways]]) -> None:
    pass


@record
class Racing:
    """How kernels are measured.

    measure: see `Measure`. device: the machine's name in reports. prepare: called with all comparisons that come next,
    so that their kernels are compiled together. known: by level and number of threads, what was measured beforehand.
    """

    measure: Measure
    device: str
    prepare: Callable[[Sequence[tuple[str, Ways]]], None] = _nothing
    known: Callable[[str, int], Measured | None] = _not_known


@dataclass
class _Contests:
    """The contests of one function.

    times: the seconds of each way, by measured contest; empty where the measurement had no result. won: whether gflow's
    own kernel is faster, by decided contest. errors: ratios of measured to modelled speedup, by the kernel's precision.
    """

    processor: Processor
    threads: int
    racing: Racing
    times: dict[Contest, Mapping[str, float]] = field(default_factory=dict)
    won: dict[Contest, bool] = field(default_factory=dict)
    errors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def decide(self, contests: Sequence[Contest]) -> None:
        """Decide contests: by the corrected model where its prediction is clear, else by a race.

        Small ones are not raced: what is known of the processor decides them before any race, if it is known. The
        first race corrects the model. The kernels of all races that are then still needed are compiled together,
        since the fixed cost of a compilation is that of several kernels.
        """
        large = [contest for contest in contests if contest.worth_while]
        for contest in contests:
            own = None if contest.worth_while else self._sure(contest)
            if own is not None:
                self.won[contest] = own
        for some in (large[:1], large[1:]):
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
                    if not times:  # the choice of `gflow-select-kernels` stays
                        continue
                    own = times["panels"] <= times["blas"]
                    modelled = self._modelled(contest)
                    if modelled is not None:
                        ratio = times["blas"] / times["panels"] / modelled
                        self.errors[self._blocks(contest).precision].append(ratio)
                self.won[contest] = own

    def _modelled(self, contest: Contest) -> float | None:
        """The modelled speedup of gflow's own kernel over the BLAS; None for products of few rows that read B in
        place, for which there is no model."""
        if not self._blocks(contest).packed:
            return None
        return speedup(self.processor, contest.shorter().product, self.threads)

    def _blocks(self, contest: Contest) -> Blocks:
        return cut(self.processor, contest.shorter(), self.threads)

    def _sure(self, contest: Contest) -> bool | None:
        """Whether gflow's own kernel is faster, by the corrected model; None where that does not decide."""
        modelled, precision = self._modelled(contest), self._blocks(contest).precision
        known = self.racing.known(self.processor.name, self.threads)
        if modelled is None:
            return None if known is None else contest.b in known.few_rows
        if known is not None:
            low, high = known.amx if precision else known.products
            if modelled * low >= 1 / _TOLERATED:
                return True
            if modelled * high <= _TOLERATED:
                return False
            if not contest.worth_while:
                return modelled * math.sqrt(low * high) >= 1
        errors = self.errors[precision]
        if not errors:
            return None
        least = _SURE if len(errors) > 1 else _SURE_OF_ONE
        if modelled * min(errors) >= least:
            return True
        return False if modelled * max(errors) <= 1 / least else None

    def _race(self, contest: Contest) -> tuple[str, Ways]:
        """What is compared, as `Measure` has it."""
        # start-up: most compilations make no timed comparison
        from ..emit.cpu.product.race import programs

        short, blocks = contest.shorter(), self._blocks(contest)
        return (
            f"{short} float32, {self.threads} threads, {self.processor.name}",
            cache(partial(programs, short, blocks, self.threads)),
        )


def race_products(function: func.FuncOp, racing: Racing, threads: int, isa: str) -> list[Race]:
    """Write the faster way into the `gflow.kernel` of each float32 product of a function, in place.

    Args:
        function: after `gflow-select-kernels`, before memory is planned. Under a memory budget for which this
            takes too much scratch, ways that need more than the selected ones are not written.
        threads: the most threads that run a kernel.
        isa: the processor's level of instruction sets.

    Returns:
        What was measured, in the order of ops; `step` is the op's number, times are seconds.
    """
    lives = lives_at_entry(function)
    products = contested(function, lives, threads, isa)
    contests = _Contests(PROCESSORS[isa], threads, racing)
    different = dict.fromkeys(product.contest for product in products.values())
    contests.decide(sorted(different, key=lambda c: c.size, reverse=True))
    found = []
    larger: dict[int, ir.Attribute] = {}
    for index, product in products.items():
        o, contest = product.op, product.contest
        if choice_of(o.op).tuned:
            continue
        if contest not in contests.won:
            if contest in contests.times:
                found.append(Race(index, f"{o.name} {o.op.location}", racing.device, {}))
            continue
        choice = decided(product, function, lives, threads, isa, contests.won, racing.device)
        if choice.scratch > choice_of(o.op).scratch:
            larger[index] = o.op.attributes[KERNEL]
        o.op.attributes[KERNEL] = choice.attribute()
        if contest in contests.times:
            ordered = sorted(contests.times[contest].items(), key=lambda item: item[1])
            seconds = {_NAMES[name]: t for name, t in ordered}
            found.append(Race(index, f"{o.name} {o.op.location}", racing.device, seconds))
    budget = _budget(function)
    if larger and budget and arena_of(function) > budget:
        for index, selected in larger.items():
            products[index].op.op.attributes[KERNEL] = selected
    return found


def _budget(function: func.FuncOp) -> int:
    """The memory budget in bytes into which `gflow-rematerialize` has fitted the function; 0: none."""
    if "gflow.rematerialized" not in function.attributes:
        return 0
    found = ir.DictAttr(function.attributes["gflow.rematerialized"])
    return ir.IntegerAttr(found["budget"]).value
