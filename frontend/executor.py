"""From a trace to something that runs: lowering, compiler, runtime."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .tracing.trace import Trace

Runner = Callable[[list[torch.Tensor]], Any]


@dataclass(frozen=True)
class Compiled:
    """`run` takes the arguments of the traced function in order, then, if `takes_rng`, an
    int64 tensor (seed, offset). `ir` is the module as it runs, `timings` seconds by phase."""

    run: Runner
    takes_rng: bool
    ir: str = ""
    timings: dict[str, float] = field(default_factory=dict)


def compile_trace(trace: Trace, options: Any = None) -> Compiled:
    """Lower, compile and load one trace."""
    from gflow.compiler import CompileOptions, compile_module
    from gflow.runtime import Executable

    from .lowering import lower

    options = options or CompileOptions()
    start = time.perf_counter()
    module = lower(trace)
    lowered = time.perf_counter()
    takes_rng = _argument_count(module) > len(trace.inputs)
    program = compile_module(module, options)
    compiled = time.perf_counter()
    executable = Executable(program)
    loaded = time.perf_counter()
    timings = {"lower": lowered - start, **options.timing, "load": loaded - compiled}
    return Compiled(executable, takes_rng, program.ir, timings)


def lowered_ir(trace: Trace) -> str:
    """The module of a trace before any pass."""
    from .lowering import lower

    return lower(trace).operation.get_asm(enable_debug_info=True)


def _argument_count(module: Any) -> int:
    function = next(iter(module.body.operations))
    return len(function.arguments)
