"""What is chosen by measuring on a GPU: configurations, calls of libraries, and which contractions run apart from their
epilogues."""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gflow.dialects.program import LaunchStep, Program
from gflow.dialects.program.form import seal
from gflow.runtime.loading import DEVICE, gpu_for
from gflow.runtime.stored import cache
from gflow.tracing.context.ranks import world_size
from gflow.tracing.context.watch import current

from .device import store

if TYPE_CHECKING:
    from gflow.compiler import CompileOptions

#: by the name of a group (`gflow-unfuse`), the seconds of both ways, the one to use first
Races = Mapping[str, Mapping[str, float]]


_log = logging.getLogger("gflow")


def _seconds_of_races(options: CompileOptions, program: Program, gpu: torch.device | None) -> float:
    """The most seconds in which ways to run a program are measured on a GPU; 0: nothing is measured."""
    if gpu is None or program.target == "cpu" or os.environ.get(DEVICE):
        return 0.0
    if gpu.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return 0.0  # in a caller's own CUDA graph nothing can be measured
    if options.tune_seconds is not None:
        return options.tune_seconds
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.driver import options as defaults

    # another process could choose kernels that round otherwise
    return 0.0 if torch.are_deterministic_algorithms_enabled() else defaults.TUNE_SECONDS


def tuned(program: Program, options: CompileOptions, gpu: torch.device | None) -> Program:
    """The program with launches chosen by measurement on the GPU, within the options' time; its IR records them."""
    seconds = _seconds_of_races(options, program, gpu)
    if not seconds:
        return program
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.emit.triton.library_calls import library_calls
    from gflow.compiler.emit.triton.race_order import expected_of
    from gflow.compiler.emit.triton.toolchain.autotune import tune
    from gflow.compiler.emit.triton.toolchain.compile import compile_kernels, key_of
    from gflow.compiler.emit.triton.winners import with_winners
    from gflow.compiler.targets import parse_target
    from gflow.runtime.cuda.timing import StepTimer

    start, kept, tell = time.perf_counter(), store(), options.on_phase or current().phase
    arch, name = parse_target(program.target).arch, torch.cuda.get_device_name(gpu)
    complete = replace(program, device_code=dict(program.device_code))
    timer = functools.cache(lambda: StepTimer(complete, gpu_for(program.target, gpu)))
    calls = library_calls(program) if options.tune_libraries else {}
    try:
        found = tune(
            complete, lambda step, best: timer()(step, best), name,
            compiled=lambda jobs: compile_kernels(
                jobs, arch, store=kept, tell=tell, failed=lambda kernel, config, why: None
            ),
            calls=calls, store=kept, seconds=seconds, expected=lambda: expected_of(program), tell=tell,
        )  # fmt: skip
    except torch.OutOfMemoryError:
        _say_no_memory(program, name)
        return program
    found = with_winners(program, found, calls, name)
    used = {key_of(s.kernel, s.config) for s in found.steps if isinstance(s, LaunchStep)}
    options.timing["tune"] = options.timing.get("tune", 0.0) + time.perf_counter() - start
    found = replace(found, device_code={k: v for k, v in found.device_code.items() if k in used})
    return replace(found, seal=seal(found))


def _say_no_memory(program: Program, name: str) -> None:
    _log.warning(
        "%s: %s has no memory for a second copy of the program's tensors, so its kernels are not measured and run "
        "as the cost model chooses",
        program.name,
        name,
    )


def races_groups(options: CompileOptions, program: Program, gpu: torch.device | None) -> bool:
    """Whether groups of kernels are compared with their parts. Ranks of one step compile one program, and a memory
    budget decides by memory: groups stay as they are there."""
    passes = options.passes
    free = options.pipeline is None and not (passes.memory_budget or passes.memory_fraction)
    return _seconds_of_races(options, program, gpu) > 0 and free and world_size() == 1


def kept_races(
    seals: Sequence[str], options: CompileOptions, gpu: torch.device | None
) -> Races | None:
    """What `group_races` found before for programs with these seals; None if it did not, or without a cache."""
    name = _name(seals, options, gpu)
    data = None if cache.directory() is None else cache.read("groups", name)
    return None if data is None else json.loads(data)


def group_races(
    seals: Sequence[str],
    programs: Sequence[Program],
    options: CompileOptions,
    gpu: torch.device | None,
) -> Races:
    """Compare each group of kernels with its parts, within what is left of the options' time after `tuned`.

    seals: those of the programs before they were tuned.
    """
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.driver.group_races import Device, race_groups
    from gflow.runtime.cuda.timing import StepTimer

    start = time.perf_counter()
    launcher = gpu_for(programs[0].target, gpu)
    device = Device(
        torch.cuda.get_device_name(gpu),
        lambda program: StepTimer(program, launcher),
        store(),
        options.on_phase or current().phase,
    )
    found: dict[str, Mapping[str, float]] = {}
    left = 0.0
    for program in programs:
        left = _seconds_of_races(options, program, gpu) - options.timing.get("tune", 0.0)
        try:
            found |= race_groups(program, options, device, seconds=left)
        except torch.OutOfMemoryError:
            _say_no_memory(program, device.name)
    options.timing["tune"] = options.timing.get("tune", 0.0) + time.perf_counter() - start
    in_time = left > time.perf_counter() - start
    if cache.directory() is not None and in_time:  # else a later compilation goes on
        cache.write("groups", _name(seals, options, gpu), json.dumps(found).encode())
    return found


def _name(seals: Sequence[str], options: CompileOptions, gpu: torch.device | None) -> str:
    """The name of races in the disk cache: of the programs, the device and what is compared on it."""
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.emit.triton.toolchain.compile import triton_version

    device = torch.cuda.get_device_name(gpu)
    return cache.key("groups", *seals, device, triton_version(), str(options.tune_libraries))
