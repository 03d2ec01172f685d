"""The device for which a graph is compiled: that of its tensors, or another one that is requested."""

from __future__ import annotations

import functools
import logging
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gflow.dialects.program import LaunchStep, Program
from gflow.dialects.program.form import seal
from gflow.runtime.loading import DEVICE, gpu_for
from gflow.runtime.stored import cache
from gflow.tracing.context.watch import current
from gflow.tracing.data.trace import Trace

if TYPE_CHECKING:
    from gflow.compiler import CompileOptions


_precision: Any = torch._C._get_fp32_precision_getter  # type: ignore[attr-defined]
_log = logging.getLogger("gflow")


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
    # `torch.backends.cuda.matmul.fp32_precision` and `.cudnn.conv.fp32_precision`, of which each call of a graph asks
    found = ("matmul",) if _precision("cuda", "matmul") == "tf32" else ()
    return (*found, "convolution") if _precision("cuda", "conv") == "tf32" else found


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


def tuned(program: Program, options: CompileOptions, gpu: torch.device | None) -> Program:
    """The program with launches chosen by measurement on the GPU, within the options' time; its IR records them."""
    if gpu is None or program.target == "cpu" or os.environ.get(DEVICE):
        return program
    seconds = _seconds_of_races(options)
    capturing = gpu.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if not seconds or capturing:  # in a caller's own CUDA graph nothing can be measured
        return program
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.emit.triton.library_calls import library_calls
    from gflow.compiler.emit.triton.race_order import expected_of
    from gflow.compiler.emit.triton.toolchain.autotune import tune
    from gflow.compiler.emit.triton.toolchain.compile import compile_kernels, key_of
    from gflow.compiler.emit.triton.winners import with_winners
    from gflow.compiler.targets import parse_target
    from gflow.runtime.cuda.timing import StepTimer

    start, store, tell = time.perf_counter(), _store(), options.on_phase or current().phase
    arch, name = parse_target(program.target).arch, torch.cuda.get_device_name(gpu)
    complete = replace(program, device_code=dict(program.device_code))
    timer = functools.cache(lambda: StepTimer(complete, gpu_for(program.target, gpu)))
    calls = library_calls(program) if options.tune_libraries else {}
    try:
        found = tune(
            complete, lambda step, best: timer()(step, best), name,
            compiled=lambda jobs: compile_kernels(
                jobs, arch, store=store, tell=tell, failed=lambda kernel, config, why: None
            ),
            calls=calls, store=store, seconds=seconds, expected=lambda: expected_of(program), tell=tell,
        )  # fmt: skip
    except torch.OutOfMemoryError:
        _log.warning(
            "%s: %s has no memory for a second copy of the program's tensors, so its kernels are not measured and run "
            "as the cost model chooses",
            program.name,
            name,
        )
        return program
    found = with_winners(program, found, calls, name)
    used = {key_of(s.kernel, s.config) for s in found.steps if isinstance(s, LaunchStep)}
    options.timing["tune"] = time.perf_counter() - start
    found = replace(found, device_code={k: v for k, v in found.device_code.items() if k in used})
    return replace(found, seal=seal(found))


def _seconds_of_races(options: CompileOptions) -> float:
    """The most seconds of a program's races."""
    if options.tune_seconds is not None:
        return options.tune_seconds
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.driver import options as defaults

    # another process could choose kernels that round otherwise
    return 0.0 if torch.are_deterministic_algorithms_enabled() else defaults.TUNE_SECONDS
