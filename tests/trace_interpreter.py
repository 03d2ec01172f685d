"""The test oracle: graphs whose traces run op by op with PyTorch, without the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gflow.execution import executor
from gflow.tracing.data.trace import Trace
from gflow.tracing.program.interpreter import run_trace


def apply_aliases(
    trace: Trace, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> None:
    """Write the aliased results into the inputs' storage."""
    with torch.no_grad():
        fresh = [
            r.clone() if o.alias is not None else r
            for r, o in zip(results, trace.outputs, strict=True)
        ]
        for value, out in zip(fresh, trace.outputs, strict=True):
            if out.alias is not None:
                inputs[out.alias].detach().copy_(value)


def interpret(trace: Trace, options: Any = None) -> executor.Compiled:
    """Stands in for `gflow.execution.executor.compile_trace`."""

    def run(arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        results = run_trace(trace, arguments)
        fresh = [r.clone() for r, o in zip(results, trace.outputs) if o.alias is None]
        apply_aliases(trace, arguments, results)
        return fresh

    return executor.Compiled(run, False)
