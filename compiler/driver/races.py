"""Products on a processor, by a race: our own kernel beside the library's.

`gflow-select-kernels` chooses by a model. Where there is a way to measure, what it left to be compared runs for some
milliseconds, and the faster one is written in its place:

{kind = "blas"}    →    {kind = "panels", tile = array<i64: 8, 48, 384>, …, tuned = "AMD EPYC"}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from gflow.dialects.marks import KERNEL
from gflow.dialects.mlir import func
from gflow.dialects.program import Program, Race

from ..emit.cpu.product.race import programs
from ..kernel.selection.choice import choice_of
from ..kernel.selection.cpu.blocking import cut
from ..kernel.selection.select import contests_of, decided
from ..memory.liveness import lives_of
from ..targets.processors import PROCESSORS

#: what the ways are called in reports
_NAMES = {"panels": "own", "blas": "BLAS"}

#: seconds of each of some programs; the text says what is compared
Measure = Callable[[str, Callable[[], Mapping[str, Program]]], Mapping[str, float]]


@dataclass(frozen=True)
class Racing:
    """How to measure, and what the machine is called."""

    measure: Measure
    device: str


def race_products(function: func.FuncOp, racing: Racing, threads: int, isa: str) -> list[Race]:
    """Have the products of a function with selected kernels made by what is fastest.

    Returns:
        What was measured, in the order of ops; `step` is the op's number.
    """
    lives = lives_of(function)
    found, won, times = [], {}, {}
    asked = contests_of(function, lives, threads, isa)
    for _, contest in asked.values():
        if contest in won or not contest.worth_while:
            continue
        short = contest.shorter()
        blocks = cut(PROCESSORS[isa], short, threads)
        times[contest] = racing.measure(
            f"{short} float32, {threads} threads, {isa}",
            partial(programs, short, blocks, threads),
        )
        won[contest] = times[contest]["panels"] <= times[contest]["blas"]
    for index, (o, contest) in asked.items():
        if contest not in won or choice_of(o.op).tuned:
            continue
        o.op.attributes[KERNEL] = decided(lives, threads, isa, won, o, racing.device).attribute()
        ordered = sorted(times[contest].items(), key=lambda item: item[1])
        seconds = {_NAMES[name]: t for name, t in ordered}
        found.append(Race(index, f"{o.name} {o.op.location}", racing.device, seconds))
    return found
