"""The device for which a graph is compiled: that of its tensors, or another one that is requested."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gflow.dialects.program import Program
from gflow.dialects.program.form import seal
from gflow.runtime.loading import DEVICE
from gflow.runtime.stored import cache
from gflow.tracing.context.watch import current
from gflow.tracing.data.trace import Trace

if TYPE_CHECKING:
    from gflow.compiler import CompileOptions


_precision: Any = torch._C._get_fp32_precision_getter  # type: ignore[attr-defined]


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
    add_device_code(program, store=store(), tell=tell, timing=options.timing)
    program.seal = seal(program)  # the program with the chosen configurations and their code


def store() -> Any:
    """What reads and writes entries of the disk cache, by kind and name; None without a cache."""
    return None if cache.directory() is None else (cache.read, cache.write)
