"""Timed comparison of gflow's own CPU attention with ATen's.

Each distinct attention above a least size is timed both ways for some milliseconds, unless the table of processors says
that gflow's own is fast enough (`targets/processors.py`: `Measured`). The faster way is written into the op:

{kind = "attention", tile = array<i64: 12, 32, 256>, …}    →    {kind = "pytorch", tuned = "AMD EPYC"}
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from gflow.dialects.marks import KERNEL
from gflow.dialects.mlir import func
from gflow.dialects.program import Race

from ..ir.ssa import Op
from ..kernel.attention_contest import AttentionContest
from ..kernel.selection.choice import Choice, choice_of
from ..kernel.selection.cpu.attention import NEEDED, blocks_of, contest_of
from ..memory.liveness import lives_at_entry
from ..targets.processors import PROCESSORS
from .races import Racing, Ways

#: names of the two ways in reports
_NAMES = {"own": "own", "aten": "ATen"}


def race_attentions(function: func.FuncOp, racing: Racing, threads: int, isa: str) -> list[Race]:
    """Write the faster way into the `gflow.kernel` of each float32 attention of a function, in place.

    Args:
        function: after `gflow-select-kernels`, before memory is planned.
        threads: the most threads that run a kernel.
        isa: the processor's level of instruction sets.

    Returns:
        What was measured, in the order of ops; `step` is the op's number, times are seconds.
    """
    names = {f"gflow.{name}" for name in NEEDED}
    if all(o.operation.name not in names for o in function.regions[0].blocks[0].operations):
        return []
    known = racing.known(isa, threads)
    settled = frozenset[str]() if known is None else known.attention
    body = lives_at_entry(function).body
    asked: list[tuple[Op, Choice, AttentionContest]] = []
    for o in body.ops:
        if o.name not in NEEDED or KERNEL not in o.op.attributes:
            continue
        choice, contest = choice_of(o.op), contest_of(o, body.types)
        if contest is None or choice.tuned or choice.kind not in ("attention", "attention_rows"):
            continue
        if contest.worth_while and contest.kind not in settled:
            asked.append((o, choice, contest.shorter()))
    races = {short: _race(short, threads, isa) for short in dict.fromkeys(c for *_, c in asked)}
    racing.prepare(list(races.values()))
    times = {short: racing.measure(*race) for short, race in races.items()}
    found = []
    for o, choice, short in asked:
        measured = times[short]
        if not measured:  # the machine was busy: gflow's own, as the model chose
            found.append(Race(o.index, f"{o.name} {o.op.location}", racing.device, {}))
            continue
        if measured["own"] > measured["aten"]:
            choice = Choice("pytorch")
        o.op.attributes[KERNEL] = replace(choice, tuned=racing.device).attribute()
        ordered = sorted(measured.items(), key=lambda item: item[1])
        seconds = {_NAMES[name]: t for name, t in ordered}
        found.append(Race(o.index, f"{o.name} {o.op.location}", racing.device, seconds))
    return found


def _race(short: AttentionContest, threads: int, isa: str) -> tuple[str, Ways]:
    """What is compared, as `Measure` has it."""
    # start-up: most programs have no attention
    from ..emit.cpu.attention.race import programs

    types = short.types()
    blocks = blocks_of(PROCESSORS[isa], types["q"], types["k"], threads, short.grad)
    what = f"{short} float32, {threads} threads, {isa}"
    return what, cache(partial(programs, short, blocks, threads))
