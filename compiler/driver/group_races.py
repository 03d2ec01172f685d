"""Timed comparison of a GPU's kernels of contractions and their epilogues with the same as two kernels.

    %r = "gflow.fused"(%b, %x, %w) ({ … "gflow.matmul" … "gflow.tanh" … }) {gflow.group = "2424…", …

beside

    %0 = "gflow.matmul"(%x, %w) …                              perhaps by a library
    %r = "gflow.fused"(%b, %0) ({ … "gflow.tanh" … }) …

Each group of equal kernels is compared once: the launches of the first as they were tuned, with the steps of a program
of this kernel alone, split (`unfused.py`), each in its own fastest way. Groups that are faster split are named in
`PipelineOptions.unfused`, and the program is compiled again, with a memory plan of its own.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gflow.dialects.program import DeviceCode, Program, Race
from gflow.dialects.program.form import seal
from gflow.dialects.records import record

from ..emit.triton.library_calls import library_calls
from ..emit.triton.toolchain.autotune import MARGIN, Measure, contenders, seconds_of, tune
from ..emit.triton.toolchain.compile import Job, Store, compile_kernels
from ..targets import parse_target
from .options import CompileOptions
from .unfused import first_steps, groups_of, split_program

#: the most groups of a program that are compared, those that take the most time
MOST = 16
#: names of the two ways in reports
FUSED, UNFUSED = "fused", "unfused"


@record
class Device:
    """How groups are measured.

    Attributes: name: the device's name. timer: gives what measures the steps of a program with machine code. store: as
    for `tune`. tell: called with "tune" or "triton" and the progress.
    """

    name: str
    timer: Callable[[Program], Measure]
    store: Store | None = None
    tell: Callable[[str, str], None] = lambda name, detail: None


def race_groups(
    found: Program,
    options: CompileOptions,
    device: Device,
    *,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Mapping[str, float]]:
    """The seconds of both ways, the one to use first, by the names of the groups of a program.

    Args:
        found: a program that `tune` returned, with machine code.
        options: those that it was compiled with.
        device: the device.
        seconds: no comparison begins after so many seconds.
        clock: gives the time in seconds.

    Raises:
        PipelineError: a split group does not compile.
    """
    groups, ends = groups_of(found), clock() + seconds
    if not groups or seconds <= 0:
        return {}
    timer = _timer(found, device)
    taken = {
        g.name: seconds_of(found, range(g.begin, g.end), timer, device.name, device.store)
        for g in groups
    }
    groups.sort(key=lambda g: -taken[g.name] * g.count)
    races: dict[str, Mapping[str, float]] = {}
    for g in groups[:MOST]:
        if clock() >= ends:
            break
        program = split_program(g, options)
        both = {FUSED: taken[g.name], UNFUSED: _seconds(program, options, device)}
        if not all(map(math.isfinite, both.values())):
            continue  # a way cannot run there
        faster = both[UNFUSED] < MARGIN * both[FUSED]
        order = (UNFUSED, FUSED) if faster else (FUSED, UNFUSED)
        races[g.name] = {way: both[way] for way in order}
    return races


def _timer(program: Program, device: Device) -> Measure:
    """What measures the steps of a program. It takes memory once something is measured."""
    timer = functools.cache(lambda: device.timer(program))
    return lambda step, best: timer()(step, best)


def _seconds(program: Program, options: CompileOptions, device: Device) -> float:
    """The time of all steps of a program, each in its fastest way."""
    arch = parse_target(program.target).arch

    def compiled(jobs: Iterable[Job]) -> dict[str, DeviceCode]:
        return compile_kernels(
            jobs, arch, store=device.store, tell=device.tell,
            failed=lambda kernel, config, why: None,  # it is not tried
        )  # fmt: skip

    program = replace(program, device_code=compiled(contenders(program)))
    timer = _timer(program, device)
    calls = library_calls(program) if options.tune_libraries else {}
    found = tune(
        program, timer, device.name, compiled=compiled, calls=calls, store=device.store, tell=device.tell
    )  # fmt: skip
    return seconds_of(found, range(len(found.steps)), timer, device.name, device.store)


def faster_apart(races: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    """The names of the groups that are faster split, in a fixed order."""
    return tuple(sorted(name for name, seconds in races.items() if next(iter(seconds)) == UNFUSED))


def with_races(program: Program, races: Mapping[str, Mapping[str, float]], device: str) -> Program:
    """A program with the comparisons of its groups among its races. races: as `race_groups` returned them."""
    if not races:
        return program
    at = first_steps(program)
    added = [
        Race(at[name], getattr(program.steps[at[name]], "label", ""), device, dict(seconds))
        for name, seconds in races.items()
        if name in at
    ]
    found = replace(program, races=sorted([*program.races, *added], key=lambda race: race.step))
    return replace(found, seal=seal(found))
