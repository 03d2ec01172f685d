"""Gradients that outlive a step: sums over micro-batches, and those that `graph.grad()` reads.

They are kept in buffers, one for each parameter. All programs of all graphs that train a parameter share its buffer.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from gflow.errors import GraphTraceError

from ..data.global_tensors import Layout, global_tensor, layout_of, local_of
from ..data.trace import Trace
from ..data.values import TraceOutput, renamed_op, values_in

#: parameter → its buffers by layout; a buffer exists as long as a program refers to it
_buffers: Any = WeakIdKeyDictionary()


def gradient_buffer(
    parameter: torch.Tensor, whole: bool = False, layout: Layout | None = None
) -> torch.Tensor:
    """The buffer for a parameter's gradient; a global tensor for a global parameter, with the same placements.

    Args:
        whole: whether each rank has a gradient of the full shape, although it has only a shard of the parameter.
        layout: the sharding of the gradient, if it differs from the parameter's.
    """
    buffers = _buffers.setdefault(parameter, {})
    key = (whole, None if layout is None else layout.placements)
    known = buffers.get(key)
    buffer: Any = known() if known is not None else None
    if buffer is None or buffer.shape != parameter.shape or buffer.dtype != parameter.dtype:
        own = local_of(parameter)
        if layout is None and not whole:
            layout = layout_of(parameter, "a parameter")
        shape = parameter.shape if layout is None else layout.part(parameter.shape)
        buffer = torch.zeros(shape, dtype=own.dtype, device=own.device)
        if layout is not None:
            buffer = global_tensor(buffer, layout.mesh, layout.placements, parameter.shape)
        buffers[key] = weakref.ref(buffer)
    return buffer  # type: ignore[no-any-return]


def divide_micro_batches(
    trace: Trace, first: Trace, updates: Iterable[TraceOutput]
) -> tuple[Trace, Trace]:
    """The two programs of a step in micro-batches: `first`, which each micro-batch runs, and the rest of `trace`,
    which runs after the last micro-batch and makes `updates`.

    The second reads the parameters, buffers and gradients that the first has updated.

    Raises:
        GraphTraceError: the second needs another value of the first.
    """
    made = {r for op in first.ops for r in op.results if r is not None}
    stored = {o.value: first.inputs[o.alias].value for o in first.outputs if o.alias is not None}
    done = {(o.value, o.alias) for o in first.outputs}
    ops = [renamed_op(op, stored) for op in trace.ops[len(first.ops) :]]
    outputs = [
        replace(o, value=stored.get(o.value, o.value))
        for o in updates
        if (o.value, o.alias) not in done
    ]
    read = [(v, str(op.loc)) for op in ops for v in values_in((op.args, op.kwargs))]
    for value, where in [*read, *((o.value, o.name) for o in outputs)]:
        if value in made:
            raise GraphTraceError(
                f"{where}: with gradient accumulation, an update reads "
                "parameters, buffers, gradients and its own state; this one reads a value that "
                "build() computes for one micro-batch. Write it to a buffer of a module first."
            )
    rest = Trace(f"{trace.name}_update", list(trace.inputs), ops, outputs)
    return first, rest
