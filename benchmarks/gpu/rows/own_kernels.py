"""What a graph runs, and the kernels of gflow's own alone: each configuration, checked and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from benchmarks.gpu.children import error_of
from benchmarks.gpu.setting import Setting, medians

#: samples of each configuration
_ROUNDS = 5


def program_of(graph: Any) -> Any:
    """The program of a graph's latest call."""
    return graph._state.latest.compiled.program


def what_ran(graph: Any) -> dict[str, Any]:
    """What a graph's program is made of.

    kernels: launches of our own. configurations: of these, by kernel. library: calls of PyTorch's libraries, and what
    they stand for. steps: each, where they are few. races: seconds of each way to run a step, where they were measured;
    the first one runs.
    """
    program = program_of(graph)
    raced = {race.step: race for race in program.races}
    steps, library = [], []
    chosen: dict[str, str] = {}
    for n, step in enumerate(program.steps):
        if hasattr(step, "kernel"):
            chosen[step.kernel] = str(program.triton[step.kernel].configs[step.config])
            steps.append(f"{step.kernel} ({chosen[step.kernel]})")
            continue
        way = next(iter(raced[n].seconds), "") if n in raced else ""
        steps.append(f"{step.overload} {way}".strip())
        library.append(steps[-1])
    return {
        "kernels": len(steps) - len(library),
        "configurations": chosen,
        "library": library,
        **({"steps": steps} if len(steps) <= 8 else {}),
        "races": [
            {"op": race.label.split(" ")[0], "step": race.step, "seconds": dict(list(race.seconds.items())[:8])}
            for race in program.races
        ],
    }  # fmt: skip


def configurations(program: Any) -> list[tuple[str, Any]]:
    """The program with each configuration of its kernels that a race would try; kernels with fewer keep their last."""
    from gflow.compiler.emit.triton.language.grid import grid_of
    from gflow.compiler.emit.triton.toolchain.autotune import MOST
    from gflow.dialects.program import LaunchStep

    launches = [s for s in program.steps if isinstance(s, LaunchStep)]
    count = max((len(program.triton[s.kernel].configs) for s in launches), default=0)
    found = []
    for n in range(min(count, MOST)):
        steps, names = [], []
        for step in program.steps:
            if isinstance(step, LaunchStep):
                kernel = program.triton[step.kernel]
                at = min(n, len(kernel.configs) - 1)
                grid = grid_of(kernel, kernel.configs[at], step.args)
                step = replace(step, config=at, grid=grid)
                names.append(str(kernel.configs[at]))
            steps.append(step)
        found.append(
            (f"{n}: {'; '.join(dict.fromkeys(names))}", replace(program, steps=steps, races=[]))
        )
    return found


def each_configuration(
    setting: Setting,
    graph: Any,
    inputs: Sequence[Tensor],
    check: Callable[[Sequence[Tensor]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Milliseconds and errors of a graph's own kernels by configuration.

    check: of results, as `exactness.compare`.
    """
    from gflow.compiler.emit.triton.toolchain.compile import compile_kernels
    from gflow.compiler.targets import parse_target
    from gflow.dialects.program import LaunchStep
    from gflow.runtime import Executable
    from gflow.runtime.loading import gpu_for

    program, rows = program_of(graph), []
    ways = configurations(program)
    arch = parse_target(program.target).arch
    code = dict(program.device_code)
    if not setting.stand_in:
        jobs = {
            (s.kernel, s.config): (p.triton[s.kernel], s.config)
            for _, p in ways for s in p.steps if isinstance(s, LaunchStep)
        }  # fmt: skip
        code |= compile_kernels(
            jobs.values(), arch, store=kept_code(), failed=lambda kernel, config, why: None
        )
    for name, way in ways:
        row: dict[str, Any] = {"config": name}
        rows.append(row)
        try:
            # the code of all of them, so that what is missing is told by the device's own error
            run = Executable(replace(way, device_code=code), gpu_for(way.target, _gpu(setting)))
            found = run(list(inputs))
            setting.sync()
            row |= check(found)
            samples = setting.interleaved({"ms": partial(run, list(inputs))}, _ROUNDS)
            row |= medians(samples)
        except Exception as error:  # a configuration that cannot run is a row that says so
            row |= {"ok": None, "error": error_of(error)}
    return rows


def kept_code() -> Any:
    """Where machine code is kept on disk, as `compile_kernels` takes it."""
    from gflow.runtime.stored import cache

    return None if cache.directory() is None else (cache.read, cache.write)


def _gpu(setting: Setting) -> Any:
    return setting.where if setting.where.type == "cuda" else None
