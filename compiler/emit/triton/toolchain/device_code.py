"""The machine code of a program's launches, and the choice of another configuration where a kernel spills.

The cost model estimates registers; the assembler reports them. If the model's first choice spills, the next ones are
compiled, and the first that doesn't spill is used, or the one that spills least. Autotuned launches are not changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from gflow.compiler.targets import Target, parse_target
from gflow.dialects.program import DeviceCode, LaunchStep, Program

from ..language.grid import grid_of
from .compile import Job, Store, compile_kernels, key_of

#: the configurations that are tried after one that spills
MORE = 3
#: spilling up to so many bytes a thread is accepted: two numbers, kept around a loop
FEW = 8
#: the same of kernels whose spills were seen to be around their loops, by their names without the digest
AROUND = {"attention": 32}

#: gives the code of those kernels and configurations that compile, by `key_of`
Compile = Callable[[Iterable[Job]], dict[str, DeviceCode]]


def add_device_code(
    program: Program,
    *,
    store: Store | None = None,
    tell: Callable[[str, str], None] = lambda name, detail: None,
    timing: dict[str, float] | None = None,
) -> None:
    """Compile the kernels of a GPU program for its target's architecture, and add the code to the program.

    Launches of a kernel that spills get another configuration, unless they were autotuned.

    Args:
        program: the program, which is modified.
        store: reads and writes bytes by kind and name; None: nothing is kept.
        tell: called with "triton" and the progress.
        timing: the time in seconds is added to its entry "triton".

    Raises:
        KernelError: a kernel does not compile.
    """
    start = time.perf_counter()
    wanted = {(s.kernel, s.config): s.label for s in program.steps if isinstance(s, LaunchStep)}
    jobs = [
        (program.triton[kernel], config)
        for kernel, config in wanted
        if key_of(kernel, config) not in program.device_code
    ]
    labels = {kernel: label for (kernel, _), label in reversed(wanted.items())}
    arch = parse_target(program.target).arch
    program.device_code |= compile_kernels(jobs, arch, store=store, tell=tell, labels=labels)
    new = {k.name for k, _ in jobs}

    def again(jobs: Iterable[Job]) -> dict[str, DeviceCode]:
        return compile_kernels(jobs, arch, store=store, tell=tell, failed=lambda *why: None)

    avoid_spills(program, new, again)
    if timing is not None:
        timing["triton"] = timing.get("triton", 0.0) + time.perf_counter() - start


def avoid_spills(program: Program, kernels: Iterable[str], compiled: Compile) -> None:
    """Replace the configuration of launches whose kernels spill. compiled: compiles kernels with configurations."""
    target = parse_target(program.target)
    raced = {race.step for race in program.races if race.seconds}
    launches = [
        (n, s)
        for n, s in enumerate(program.steps)
        if isinstance(s, LaunchStep) and s.config == 0 and n not in raced
    ]
    tried: dict[str, dict[int, DeviceCode]] = {}
    for name in set(kernels) & {s.kernel for _, s in launches}:
        code = program.device_code[key_of(name, 0)]
        if badness(code, target, few_of(name)):
            tried[name] = {0: code}
    for config in range(1, MORE + 1):
        jobs = [
            (program.triton[name], config)
            for name, found in tried.items()
            if config < len(program.triton[name].configs)
            and all(badness(code, target, few_of(name)) for code in found.values())
        ]
        found = compiled(jobs) if jobs else {}
        for kernel, _ in jobs:
            if key_of(kernel.name, config) in found:
                tried[kernel.name][config] = found[key_of(kernel.name, config)]
    best = {
        name: min((badness(code, target, few_of(name)), c) for c, code in found.items())[1]
        for name, found in tried.items()
    }
    for n, step in launches:
        config = best.get(step.kernel, 0)
        if config:
            kernel = program.triton[step.kernel]
            grid = grid_of(kernel, kernel.configs[config], step.args)
            program.steps[n] = replace(step, config=config, grid=grid)
    used = {(s.kernel, s.config) for s in program.steps if isinstance(s, LaunchStep)}
    for name, config in best.items():
        program.device_code[key_of(name, config)] = tried[name][config]
        if (name, 0) not in used:
            program.device_code.pop(key_of(name, 0), None)


def few_of(kernel: str) -> int:
    """The bytes a thread of a kernel may spill."""
    return AROUND.get(kernel.rpartition("_")[0], FEW)


def badness(code: DeviceCode, target: Target, few: int) -> float:
    """The bytes that a thread spills, 0 if few; infinite if a block needs more shared memory than the device has."""
    if code.shared > target.device.shared_memory:
        return math.inf
    return code.spills if code.spills > few else 0
