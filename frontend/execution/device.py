"""The device for which a graph is compiled: that of its tensors, or another one that is requested."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gflow.dialects.program import LaunchStep, Program
from gflow.dialects.program.form import seal
from gflow.runtime.loading import DEVICE, gpu_for
from gflow.runtime.stored import cache
from gflow.tracing.context.ranks import world_size
from gflow.tracing.context.watch import current
from gflow.tracing.data.trace import Trace

if TYPE_CHECKING:
    from gflow.compiler import CompileOptions


def gpu_of(trace: Trace) -> torch.device | None:
    """The GPU of a trace's tensors; None if they are on the CPU."""
    for entry in trace.inputs:
        device = entry.value.device if entry.tensor is None else entry.tensor.device
        if device.type == "cuda":
            return device
    return None


def for_tensors(options: CompileOptions, gpu: torch.device | None) -> CompileOptions:
    """The options for tensors on a GPU, or on the CPU: for a GPU with its compute capability, unless the options name
    one."""
    if gpu is None or options.target != "cpu":
        return options
    major, minor = torch.cuda.get_device_capability(gpu)
    return replace(options, target=f"cuda:{major}{minor}")


def tf32_kinds() -> tuple[str, ...]:
    """The kinds of float32 products for which PyTorch's switches allow a GPU to use 10 bits of mantissa (tf32)."""
    switches = {
        "matmul": torch.backends.cuda.matmul.fp32_precision,
        "convolution": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
    }
    return tuple(kind for kind, precision in switches.items() if precision == "tf32")


def allow_tf32(module: Any, options: CompileOptions) -> None:
    """Write for a GPU which products may use tf32: `gflow.tf32` of each function."""
    # start-up: the compiler is loaded by the first compilation
    from gflow.dialects.mlir import ir

    kinds = tf32_kinds()
    if options.target == "cpu" or not kinds:
        return
    with module.context:
        listed = ir.ArrayAttr.get([ir.StringAttr.get(kind) for kind in kinds])
        for op in module.body.operations:
            op.operation.attributes["gflow.tf32"] = listed


def add_code(program: Program, options: CompileOptions, always: bool = False) -> None:
    """Compile the Triton kernels of a program for CUDA, or load them from the disk cache.

    always: compile also if no GPU will run it.

    Raises:
        KernelError: a kernel does not compile.
    """
    if program.target == "cpu" or (os.environ.get(DEVICE) and not always):
        return
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.emit.triton.toolchain.device_code import add_device_code

    tell = options.on_phase or current().phase
    add_device_code(program, store=_store(), tell=tell, timing=options.timing)
    program.seal = seal(program)  # the program with the chosen configurations and their code


def _store() -> Any:
    return None if cache.directory() is None else (cache.read, cache.write)


def _measures(options: CompileOptions, program: Program, gpu: torch.device | None) -> bool:
    """Whether ways to run a program are measured: on request, on a GPU."""
    return (
        options.tune and gpu is not None and program.target != "cpu" and not os.environ.get(DEVICE)
    )


def tuned(program: Program, options: CompileOptions, gpu: torch.device | None) -> Program:
    """The program with launches chosen by measurement on the GPU, if the options request it; its IR records them."""
    if not _measures(options, program, gpu):
        return program
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.emit.triton.library_calls import library_calls
    from gflow.compiler.emit.triton.toolchain.autotune import contenders, tune
    from gflow.compiler.emit.triton.toolchain.compile import compile_kernels, key_of
    from gflow.compiler.emit.triton.winners import with_winners
    from gflow.compiler.targets import parse_target
    from gflow.runtime.cuda.timing import StepTimer

    start, store, tell = time.perf_counter(), _store(), options.on_phase or current().phase
    arch = parse_target(program.target).arch
    every = compile_kernels(
        contenders(program), arch, store=store, tell=tell, failed=lambda kernel, config, why: None
    )
    complete = replace(program, device_code={**every, **program.device_code})
    timer = StepTimer(complete, gpu_for(program.target, gpu))
    name = torch.cuda.get_device_name(gpu)
    calls = library_calls(program) if options.tune_libraries else {}
    found = tune(complete, timer, name, calls=calls, store=store, tell=tell)
    found = with_winners(program, found, calls, name)
    used = {key_of(s.kernel, s.config) for s in found.steps if isinstance(s, LaunchStep)}
    options.timing["tune"] = options.timing.get("tune", 0.0) + time.perf_counter() - start
    found = replace(found, device_code={k: v for k, v in found.device_code.items() if k in used})
    return replace(found, seal=seal(found))


def faster_apart(
    programs: Sequence[Program], options: CompileOptions, gpu: torch.device | None
) -> dict[str, Mapping[str, float]]:
    """By the names of the groups of tuned programs (`gflow-unfuse`), the seconds of both ways on the GPU, the faster
    one first.

    Ranks of one step compile one program, and a memory budget decides by memory: groups stay as they are there.
    """
    passes = options.passes
    free = options.pipeline is None and not (passes.memory_budget or passes.memory_fraction)
    if not _measures(options, programs[0], gpu) or not free or world_size() > 1:
        return {}
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.driver.group_races import Device, race_groups
    from gflow.runtime.cuda.timing import StepTimer

    start = time.perf_counter()
    launcher = gpu_for(programs[0].target, gpu)
    device = Device(
        torch.cuda.get_device_name(gpu),
        lambda program: StepTimer(program, launcher),
        _store(),
        options.on_phase or current().phase,
    )
    found: dict[str, Mapping[str, float]] = {}
    for program in programs:
        found |= race_groups(program, options, device)
    options.timing["tune"] = options.timing.get("tune", 0.0) + time.perf_counter() - start
    return found
