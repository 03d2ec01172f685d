"""From a trace to something that runs: lowering, compiler, runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .tracing.trace import Trace

Runner = Callable[[list[torch.Tensor]], Any]


@dataclass(frozen=True)
class Compiled:
    """`run` takes the arguments of the traced function in order, then, if `takes_rng`, an
    int64 tensor (seed, offset)."""

    run: Runner
    takes_rng: bool


def compile_trace(trace: Trace, options: Any = None) -> Compiled:
    """Lower, compile and load one trace."""
    from gflow.compiler import compile_module
    from gflow.runtime import Executable

    from .lowering import lower

    module = lower(trace)
    takes_rng = _argument_count(module) > len(trace.inputs)
    return Compiled(Executable(compile_module(module, options)), takes_rng)


def _argument_count(module: Any) -> int:
    function = next(iter(module.body.operations))
    return len(function.arguments)
