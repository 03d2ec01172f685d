"""The trace of a function, as graphs trace their `build()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from gflow.call.signature import bind_call
from gflow.errors import ShapeOfValues
from gflow.tracing import tracer
from gflow.tracing.data.trace import Trace
from gflow.tracing.program.modules import collect_modules
from gflow.tracing.request import TraceRequest


def trace_graph(
    name: str,
    build: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    modules: Mapping[str, torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer] = (),
) -> Trace:
    """A call of `build`, traced; nothing is computed."""
    call = bind_call(build, args, kwargs)
    request = TraceRequest(name, call, collect_modules(modules), optimizers)
    try:
        return tracer.trace_graph(request)
    except ShapeOfValues:
        return tracer.trace_graph(replace(request, tail=True))
