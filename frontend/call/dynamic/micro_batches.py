"""Gradient accumulation: one call of a training graph in several micro-batches.

Every tensor with dimensions among the arguments is split along its first dimension. Each micro-batch runs one program,
forward and backward, which adds its gradients to buffers; after the last, another program runs the optimizers. The
results of `build()` are combined: tensors are concatenated along their first dimension, floating-point scalars are
averaged, and integer scalars (counts) are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gflow.errors import GraphInputError, GraphTraceError
from gflow.execution import executor
from gflow.execution.executor import Compiled
from gflow.runtime.composed.micro_batches import MicroBatches, Split, split
from gflow.tracing.context.location import here
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.global_tensors import global_tensor, is_global, layout_of, local_of
from gflow.tracing.data.sizes import Domain, Dynamic, Fixed, Narrower, size_of
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import OutputRef
from gflow.tracing.program.batch_rows import check_joined


def split_call(call: BoundCall, count: int) -> list[BoundCall]:
    """The calls of the micro-batches.

    Raises:
        GraphInputError: a tensor's first dimension is no multiple of their number.
    """
    pieces: dict[int, Sequence[Any]] = {}
    for i, leaf in enumerate(call.leaves):
        if not isinstance(leaf, torch.Tensor) or not leaf.ndim:
            continue
        shape = local_of(leaf).shape
        if shape[0] % count:
            mine = " (this rank's part)" if is_global(leaf) else ""
            raise GraphInputError(
                f"{here()}: input {call.names[i]!r} of shape {list(shape)}{mine} cannot be split into "
                f"{count} micro-batches (config.set_gradient_accumulation_steps({count})): its first "
                f"dimension is no multiple of {count}. Pass whole batches (DataLoader has drop_last="
                "True); keep what does not belong to samples as a buffer of a module."
            )
        pieces.setdefault(id(leaf), _parts(leaf, call.names[i], count))
    whole = call
    if call.dynamic is not None:
        call = replace(call, dynamic=_of_part(call.dynamic, count))
    return [
        call.with_leaves([pieces[id(x)][k] if id(x) in pieces else x for x in whole.leaves])
        for k in range(count)
    ]


def _parts(leaf: torch.Tensor, name: str, count: int) -> Sequence[torch.Tensor]:
    """A tensor's rows for each micro-batch; of a global tensor, those of each rank combined."""
    layout = layout_of(leaf, name)
    if layout is None:
        return split(leaf, count)
    shape = (leaf.shape[0] // count, *leaf.shape[1:])
    parts = split(local_of(leaf), count)
    return [global_tensor(part, layout.mesh, layout.placements, shape) for part in parts]


def in_micro_batches(dynamic: Dynamic, count: int, leaves: Sequence[Any]) -> Dynamic | None:
    """A range for calls in `count` micro-batches, with the size of these leaves: if the first dimension is dynamic,
    only multiples of `count`. None: there is no such range, or other dimensions have the size that is split."""
    if count == 1 or all(0 not in dims for dims in dynamic.dims.values()):
        return dynamic
    if any(dims != (0,) for dims in dynamic.dims.values()):
        return None
    sizes, n = dynamic.sizes, size_of(dynamic, leaves)
    if sizes.step % count or sizes.rest % count:
        try:
            sizes = sizes.narrowed(Narrower(step=count), n)
        except Fixed:
            return None
    return None if n % count else replace(dynamic, sizes=sizes)


def _of_part(dynamic: Dynamic, count: int) -> Dynamic:
    """The dynamic dimensions of one micro-batch."""
    if all(0 not in dims for dims in dynamic.dims.values()):
        return dynamic
    whole = dynamic.sizes
    sizes = Domain(whole.name, whole.least, whole.most, whole.step // count, whole.rest // count)
    return replace(dynamic, sizes=sizes)


def compile_step(trace: Trace, options: Any) -> Compiled:
    """Compile a trace: as one program, or as those of a step in micro-batches. Reports on the latter (IR, kernels,
    memory) describe the program of each micro-batch."""
    if trace.parts is None:
        return executor.compile_trace(trace, options)
    if not trace.stacked:
        check_results(trace)
    compiled = [executor.compile_trace(part, options) for part in trace.parts]
    check_joined(trace.parts[0], compiled[0].shardings)
    buffers = {id(buffer) for _, buffer in trace.kept}
    kept = [n for n, i in enumerate(trace.inputs) if id(i.tensor) in buffers]
    run = MicroBatches(compiled[0], compiled[1], split_of(trace), kept)
    return executor.composed(run, compiled)


def split_of(trace: Trace) -> Split:
    """Which arguments and results of a step belong to a micro-batch, and which to the call."""
    assert trace.parts is not None
    at = {entry.value: i for i, entry in enumerate(trace.inputs)}
    first, rest = trace.parts
    return Split(
        trace.micro_batches,
        [at[i.value] for i in first.inputs],
        [at[i.value] for i in rest.inputs],
        [at[i.value] for i in first.inputs if i.role == "input" and i.value.shape],
        [at[i.value] for i in first.inputs if i.role == "gradient"],
        sum(o.alias is None for o in first.outputs),
        trace.stacked,
    )


def check_results(trace: Trace) -> None:
    """Check the results of a step.

    Raises:
        GraphTraceError: a result cannot be combined over the micro-batches.
    """
    for leaf in trace.out_leaves:
        if isinstance(leaf, OutputRef):
            value = trace.outputs[leaf.index].value
            if not value.shape and value.dtype == torch.bool:
                raise GraphTraceError(
                    f"{trace.name}: build() returns a single bool, of which there would be one for "
                    "each micro-batch (set_gradient_accumulation_steps). Return a count (.sum()), "
                    "a tensor with one for each sample, or set stack_scalars=True."
                )
