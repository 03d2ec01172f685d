"""Autotuning: timed comparisons of the configurations of each launch's kernel, and of library calls.

Equal launches (the same kernel and numbers) are measured once. The result is kept on disk, under a key with the
device's name and the versions of the software.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

from gflow.dialects.program import AtenStep, LaunchStep, Place, Program, Race

from ..language.grid import grid_of
from ..library_calls import LIBRARY, Instead
from .compile import Job, Store, key_of, triton_version, without_comments

#: gives the median time of a step on the device in seconds; infinite if it cannot run there
Measure = Callable[[LaunchStep | AtenStep], float]
#: the most configurations of a kernel that are tried, in the cost model's order
MOST = 6
#: a configuration that spills at least so many bytes a thread is not tried if another one spills less
SPILLED = 64
#: the factor by which a library, or a contraction apart from its epilogue, must be faster to be chosen
MARGIN = 0.98
_KIND = "tuning"


def contenders(program: Program, most: int = MOST) -> list[Job]:
    """The kernels and configurations that autotuning of a program needs compiled. most: as for `tune`."""
    names = {s.kernel: None for s in program.steps if isinstance(s, LaunchStep)}
    kernels = [program.triton[name] for name in names]
    return [(k, c) for k in kernels for c in range(min(len(k.configs), most))]


def tune(
    program: Program,
    measure: Measure,
    device: str,
    *,
    calls: Mapping[int, Instead] | None = None,
    store: Store | None = None,
    most: int = MOST,
    tell: Callable[[str, str], None] = lambda name, detail: None,
) -> Program:
    """The program with the fastest configuration of each launch, and the measured times in `races`.

    Args:
        program: the program.
        measure: times a step, in seconds. Configurations without machine code are not tried.
        device: the name of the device, which is part of the key of stored results.
        calls: library calls that can replace launches, by the number of the first launch.
        store: reads and writes bytes by kind and name; None: results are not kept.
        most: the most configurations of a kernel that are tried.
        tell: called with "tune" and the progress.
    """
    steps, races = list(program.steps), []
    calls = calls or {}
    known: dict[str, dict[str, float]] = {}

    def raced(
        n: int, step: LaunchStep, ways: Mapping[str, LaunchStep | AtenStep]
    ) -> dict[str, float]:
        key = _key(program, step, device, list(ways))
        if key not in known:
            tell("tune", f"{n}/{len(steps)} {step.kernel}")
            known[key] = _kept(store, key, list(ways)) or _race(ways, measure)
            if store is not None:
                store[1](_KIND, key, json.dumps(known[key]).encode())
        return known[key]

    best: dict[int, float] = {}
    for n, step in enumerate(program.steps):
        if not isinstance(step, LaunchStep):
            continue
        instead = calls.get(n)
        several = instead is not None and instead.end > n + 1
        ways = _ways(program, step, {} if instead is None or several else instead.calls, most)
        if len(ways) < 2 and not any(first <= n < i.end for first, i in calls.items()):
            continue
        seconds = raced(n, step, ways)
        if not seconds:
            continue  # none can run; the run raises the error
        order = _order(seconds)
        steps[n], best[n] = ways[order[0]], seconds[order[0]]
        if len(ways) > 1:
            races.append(Race(n, step.label, device, {way: seconds[way] for way in order}))
    replaced: dict[int, int] = {}
    for n, instead in calls.items():
        launches, first = range(n, instead.end), program.steps[n]
        if len(launches) < 2 or not all(i in best for i in launches):
            continue
        assert isinstance(first, LaunchStep)
        found = raced(n, first, instead.calls)
        if not found:
            continue
        seconds = {**found, KERNELS: sum(best[i] for i in launches)}
        order = _order(seconds)
        label = program.steps[n].label
        races.append(Race(n, label, device, {way: seconds[way] for way in order}))
        if order[0] != KERNELS:
            steps[n], replaced[n] = instead.calls[order[0]], instead.end
    return _without(replace(program, steps=steps, races=races), replaced)


def seconds_of(
    found: Program, steps: range, measure: Measure, device: str, store: Store | None = None
) -> float:
    """The time of steps of a program that `tune` returned. Those without a comparison are measured.

    The other arguments are those of `tune`.
    """
    total = 0.0
    races = sorted(found.races, key=_of_one)  # that of a launch is known better than that of all
    best = {race.step: next(iter(race.seconds.values())) for race in races}
    for n in steps:
        step = found.steps[n]
        if n not in best:
            assert isinstance(step, (LaunchStep, AtenStep))
            key = _key(found, step, device, [ALONE])
            seconds = _kept(store, key, [ALONE]) or _race({ALONE: step}, measure)
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


def _ways(
    program: Program, step: LaunchStep, calls: Mapping[str, AtenStep], most: int
) -> dict[str, LaunchStep | AtenStep]:
    """The contenders for a step, the cost model's choice first."""
    kernel = program.triton[step.kernel]
    found: dict[str, LaunchStep | AtenStep] = {}
    spills = {
        n: program.device_code[key_of(kernel.name, n)].spills
        for n in range(len(kernel.configs[:most]))
        if key_of(kernel.name, n) in program.device_code
    }
    least = min(spills.values(), default=0)
    for n, config in enumerate(kernel.configs[:most]):
        hopeless = spills.get(n, 0) >= SPILLED and least < SPILLED
        if n == step.config or (n in spills and not hopeless):
            grid = grid_of(kernel, config, step.args)
            if 0 not in grid:
                found[str(config)] = replace(step, config=n, grid=grid)
    found.update(calls)
    return found


def _race(ways: Mapping[str, LaunchStep | AtenStep], measure: Measure) -> dict[str, float]:
    found = {way: measure(step) for way, step in ways.items()}
    return {way: seconds for way, seconds in found.items() if math.isfinite(seconds)}


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


def _kept(store: Store | None, key: str, ways: Sequence[str]) -> dict[str, float] | None:
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
