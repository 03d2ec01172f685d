"""Autotuning: timed comparisons of the configurations of each launch's kernel, and of library calls.

Equal launches (the same kernel and numbers) are measured once. The result is kept on disk, under a key with the
device's name and the versions of the software. If the time is limited, products, convolutions and attention come
first, then the launches that take most of the predicted time; the others keep the cost model's choice.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from importlib import metadata
from typing import Any

from gflow.dialects.program import AtenStep, DeviceCode, LaunchStep, Place, Program, Race, Step
from gflow.dialects.records import record

from ..language.grid import grid_of
from ..library_calls import LIBRARY, Instead
from ..race_order import Expected
from .compile import Job, Store, key_of, triton_version, without_comments

#: gives the median time of a step on the device in seconds; infinite if it cannot run there. The number is the time of
#: the fastest contender so far: a step that is much slower need not be measured precisely
Measure = Callable[[LaunchStep | AtenStep, float], float]
#: the most configurations of a kernel that are tried, in the cost model's order
MOST = 6
#: a configuration that spills at least so many bytes a thread is not tried if another one spills less
SPILLED = 64
#: the factor by which a library, or a contraction apart from its epilogue, must be faster to be chosen
MARGIN = 0.98
_KIND = "tuning"


#: gives the code of those kernels and configurations that compile, by `key_of`
Compile = Callable[[Sequence[Job]], Mapping[str, DeviceCode]]
Ways = Mapping[str, LaunchStep | AtenStep]


def contenders(program: Program, most: int = MOST) -> list[Job]:
    """The kernels and configurations that autotuning of a whole program needs compiled. most: as for `tune`."""
    names = {s.kernel: None for s in program.steps if isinstance(s, LaunchStep)}
    kernels = [program.triton[name] for name in names]
    return [(k, c) for k in kernels for c in range(min(len(k.configs), most))]


@record
class Contest:
    """A comparison of ways to run a step. Equal steps share its result, not its ways: these have the step's arguments.

    key: of everything that its result depends on. ways: the contenders by name, the cost model's choice first. steps:
    the numbers of the launches that the result is for.
    """

    key: str
    ways: Ways
    steps: list[int] = field(default_factory=list)


def tune(
    program: Program,
    measure: Measure,
    device: str,
    *,
    compiled: Compile = lambda jobs: {},
    calls: Mapping[int, Instead] | None = None,
    store: Store | None = None,
    most: int = MOST,
    seconds: float = math.inf,
    expected: Callable[[], Mapping[int, Expected]] = dict,
    tell: Callable[[str, str], None] = lambda name, detail: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Program:
    """The program with the fastest configuration of each launch, and the measured times in `races`. A launch that was
    not measured for lack of time has a race without times.

    Args:
        program: the program. Machine code of contenders is added to its `device_code`.
        measure: times a step, in seconds.
        device: the name of the device, which is part of the key of stored results.
        compiled: compiles contenders; those without machine code are not tried.
        calls: library calls that can replace launches, by the number of the first launch.
        store: reads and writes bytes by kind and name; None: results are not kept.
        most: the most configurations of a kernel that are tried.
        seconds: no comparison begins, and no contender is compiled, after so many seconds.
        expected: gives what the cost model expects of each launch; called if something is measured.
        tell: called with "tune" and the progress.
        clock: gives the time in seconds.
    """
    calls = calls or {}
    ends = clock() + seconds
    contests = _contests(program, device, calls, most)
    distinct = {c.key: c for found in contests.values() for c in found}
    known = {key: found for key, c in distinct.items() if (found := _kept(store, key, c.ways))}
    left = [c for key, c in distinct.items() if key not in known]
    if left and seconds > 0:
        at_once = math.inf if math.isinf(seconds) else os.cpu_count() or 1
        ordered = _ordered(left, expected())
        for n, c in enumerate(
            _compiled(program, ordered, compiled, at_once, lambda: clock() < ends)
        ):
            tell("tune", f"{n + 1}/{len(ordered)} {c.steps[0]}")
            known[c.key] = _race(_able(program, c.ways), measure)
            if store is not None:
                store[1](_KIND, c.key, json.dumps(known[c.key]).encode())
    return _decided(program, device, calls, contests, known, compiled)


def _contests(
    program: Program, device: str, calls: Mapping[int, Instead], most: int
) -> dict[int, list[Contest]]:
    """By the number of a launch the contests for it: of its own ways, then of the library calls that can replace it
    together with the following launches."""
    shared: dict[str, list[int]] = {}

    def contest(first: int, end: int, ways: Ways) -> Contest:
        step = program.steps[first]
        assert isinstance(step, LaunchStep)
        key = _key(program, step, device, list(ways))
        steps = shared.setdefault(key, [])
        steps.extend(range(first, end))
        return Contest(key, ways, steps)

    found: dict[int, list[Contest]] = {}
    several = {n: i for n, i in calls.items() if i.end > n + 1}
    for n, step in enumerate(program.steps):
        if not isinstance(step, LaunchStep):
            continue
        alone = n in calls and n not in several
        ways = _ways(program, step, calls[n].calls if alone else {}, most)
        if len(ways) > 1 or any(first <= n < i.end for first, i in calls.items()):
            found[n] = [contest(n, n + 1, ways)]
    for n, instead in several.items():
        launches = range(n, instead.end)
        if all(i in found for i in launches):
            found[n].append(contest(n, instead.end, instead.calls))
    return found


def _ordered(contests: Sequence[Contest], expected: Mapping[int, Expected]) -> list[Contest]:
    """Contests in the order in which they are run: contractions first, then by the predicted time of all launches."""

    def order(c: Contest) -> tuple[bool, float]:
        launches = [expected[n] for n in c.steps if n in expected]
        return not any(e.contraction for e in launches), -sum(e.seconds for e in launches)

    return sorted(contests, key=order)


def _compiled(
    program: Program,
    contests: Sequence[Contest],
    compiled: Compile,
    at_once: float,
    in_time: Callable[[], bool],
) -> Iterator[Contest]:
    """The contests for which there is time, after their contenders have been compiled: about `at_once` of them
    together."""
    begin = 0
    while begin < len(contests):
        jobs: list[Job] = []
        end = begin
        while end < len(contests) and (end == begin or len(jobs) < at_once):
            jobs += _missing(program, contests[end].ways.values(), jobs)
            end += 1
        if not in_time():
            return
        program.device_code.update(compiled(jobs) if jobs else {})
        for contest in contests[begin:end]:
            if not in_time():
                return
            yield contest
        begin = end


def _missing(program: Program, steps: Iterable[Step], others: Sequence[Job] = ()) -> list[Job]:
    """The kernels and configurations of launches that have no machine code yet, besides `others`."""
    keys = {key_of(kernel.name, config) for kernel, config in others}
    wanted = {
        key_of(s.kernel, s.config): (program.triton[s.kernel], s.config)
        for s in steps
        if isinstance(s, LaunchStep)
    }
    return [job for key, job in wanted.items() if key not in program.device_code.keys() | keys]


def _able(program: Program, ways: Ways) -> Ways:
    """The ways that have machine code. One that spills much is left out if another one does not."""
    codes = {
        way: program.device_code.get(key_of(step.kernel, step.config))
        for way, step in ways.items()
        if isinstance(step, LaunchStep)
    }
    least = min((code.spills for code in codes.values() if code is not None), default=0)

    def able(way: str) -> bool:
        if way not in codes:
            return True
        code = codes[way]
        return code is not None and (code.spills < SPILLED or least >= SPILLED)

    return {way: step for way, step in ways.items() if able(way)}


def _decided(
    program: Program,
    device: str,
    calls: Mapping[int, Instead],
    contests: Mapping[int, Sequence[Contest]],
    known: Mapping[str, Mapping[str, float]],
    compiled: Compile,
) -> Program:
    """The program with the winners. known: the seconds of the contests that were run, by their keys."""
    steps, races = list(program.steps), []
    best: dict[int, float] = {}
    first = [
        c.ways[next(iter(_order(known[c.key])))]
        for found in contests.values()
        for c in found
        if known.get(c.key)
    ]
    if jobs := _missing(program, first):  # results were kept, and the code was not
        program.device_code.update(compiled(jobs))
    for n, (own, *_) in contests.items():
        label = program.steps[n].label
        seconds = known.get(own.key, {})
        order = _runnable(program, own.ways, _order(seconds))
        if order:  # else it was not measured, or none can run; the run raises the error
            steps[n], best[n] = own.ways[order[0]], seconds[order[0]]
        if len(own.ways) > 1 and (order or own.key not in known):
            races.append(Race(n, label, device, {way: seconds[way] for way in order}))
    replaced: dict[int, int] = {}
    for n, (_, *together) in contests.items():
        for contest in together:
            launches = range(n, calls[n].end)
            if not known.get(contest.key) or not all(i in best for i in launches):
                continue
            seconds = {**known[contest.key], KERNELS: sum(best[i] for i in launches)}
            order = _order(seconds)
            label = program.steps[n].label
            races.append(Race(n, label, device, {way: seconds[way] for way in order}))
            if order[0] != KERNELS:
                steps[n], replaced[n] = contest.ways[order[0]], calls[n].end
    return _without(replace(program, steps=steps, races=races), replaced)


def _runnable(program: Program, ways: Ways, order: Sequence[str]) -> list[str]:
    """The names of contenders with the first one that has machine code in front; none if none has it."""
    first = next((way for way in order if not _missing(program, [ways[way]])), None)
    return [] if first is None else [first, *(way for way in order if way != first)]


def seconds_of(
    found: Program, steps: range, measure: Measure, device: str, store: Store | None = None
) -> float:
    """The time of steps of a program that `tune` returned. Those without a comparison are measured.

    The other arguments are those of `tune`.
    """
    total = 0.0
    races = sorted(found.races, key=_of_one)  # that of a launch is known better than that of all
    best = {race.step: next(iter(race.seconds.values())) for race in races if race.seconds}
    for n in steps:
        step = found.steps[n]
        if n not in best:
            assert isinstance(step, (LaunchStep, AtenStep))
            key = _key(found, step, device, [ALONE])
            seconds = _kept(store, key, {ALONE: step}) or _race({ALONE: step}, measure)
            if store is not None:
                store[1](_KIND, key, json.dumps(seconds).encode())
            best[n] = seconds.get(ALONE, math.inf)
        total += best[n]
    return total


#: the only way of a step that is measured without a comparison
ALONE = "alone"
#: the alternative of all kernels of an op, in a comparison with library calls
KERNELS = "kernels"


def _without(program: Program, replaced: Mapping[int, int]) -> Program:
    """The program without the launches that library calls replace; the call itself is in place of the first launch."""
    gone = {n for first, end in replaced.items() for n in range(first + 1, end)}
    number = {n: n - sum(g < n for g in gone) for n in range(len(program.steps))}
    lost = gone | set(replaced)
    races = [
        replace(race, step=number[race.step])
        for race in program.races
        if race.step not in gone and not (race.step in lost and _of_one(race))
    ]
    steps = [step for n, step in enumerate(program.steps) if n not in gone]
    return replace(program, steps=steps, races=sorted(races, key=lambda race: race.step))


def _of_one(race: Race) -> bool:
    """Whether a comparison is of a single launch."""
    return KERNELS not in race.seconds


def _ways(program: Program, step: LaunchStep, calls: Mapping[str, AtenStep], most: int) -> Ways:
    """The contenders for a step, the cost model's choice first."""
    kernel = program.triton[step.kernel]
    found: dict[str, LaunchStep | AtenStep] = {}
    for n, config in enumerate(kernel.configs):
        if n < most or n == step.config:
            grid = grid_of(kernel, config, step.args)
            if 0 not in grid:
                found[str(config)] = replace(step, config=n, grid=grid)
    return {**found, **calls}


def _race(ways: Ways, measure: Measure) -> dict[str, float]:
    found: dict[str, float] = {}
    for way, step in ways.items():
        seconds = measure(step, min(found.values(), default=math.inf))
        if math.isfinite(seconds):
            found[way] = seconds
    return found


def _order(seconds: Mapping[str, float]) -> list[str]:
    """The names of contenders, the one to use first."""
    order = sorted(seconds, key=lambda way: seconds[way])
    own = [way for way in order if not way.startswith(LIBRARY)]
    if own and own[0] != order[0] and seconds[order[0]] > MARGIN * seconds[own[0]]:
        order.remove(own[0])
        order.insert(0, own[0])
    return order


def _key(program: Program, step: LaunchStep | AtenStep, device: str, ways: Sequence[str]) -> str:
    """A key of everything that the result of a comparison depends on."""
    if isinstance(step, AtenStep):
        refs = [r and [str(r.type), r.strides] for r in (*step.inputs, *step.outputs)]
        what: list[Any] = [step.overload, step.args, refs]
    else:
        numbers = [None if isinstance(a, Place) else a for a in step.args]
        kernel = program.triton[step.kernel]
        kernel = replace(kernel, source=without_comments(kernel.source))
        what = [asdict(kernel), numbers]
    versions = [triton_version(), _torch_version()]
    parts = [device, program.target, versions, *what, list(ways)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _kept(store: Store | None, key: str, ways: Ways) -> dict[str, float] | None:
    data = store[0](_KIND, key) if store is not None else None
    if data is None:
        return None
    try:
        found = json.loads(data)
    except ValueError:
        return None
    good = isinstance(found, dict) and found.keys() <= set(ways)
    return found if good and found else None


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
