"""From a call to its plan: trace it, make a first step if one is needed, compile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gflow.dialects.records import record
from gflow.errors import GraphTraceError
from gflow.runtime.failures import OtherBranch
from gflow.runtime.interrupts import held
from gflow.tracing.context.watch import current
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.sizes import SizeDecides
from gflow.tracing.data.trace import Trace
from gflow.tracing.request import TraceRequest
from gflow.tracing.tracer import FirstStepNeeded, begin_trace

from ..branching import OtherTruth
from ..dynamic.micro_batches import compile_step, split_call
from ..first_step import FirstStep, Setup, make_first_step
from ..signature import check_call, check_tensors
from ..zero_state import whole
from .plan import Plan


@record
class Traced:
    """The result of tracing a call.

    Attributes: trace: None if an optimizer has skipped the first step, and has no state. first: a step that was made
    op by op, since an optimizer creates its state from gradients; its result is the call's. timings: seconds by phase.
    """

    trace: Trace | None
    first: FirstStep | None
    timings: dict[str, float]


def micro_batch_calls(request: TraceRequest) -> list[BoundCall]:
    """The calls of `build()` for one call of a graph.

    Raises:
        GraphInputError: `build()` does not accept the arguments, or they cannot be split.
        GraphTraceError: options exclude each other.
    """
    call, name = request.call, request.name
    check_call(call.build, call.args, call.kwargs)
    check_tensors(call, request.table)
    if call.dynamic is not None and any(map(request.is_sparse, range(len(request.optimizers)))):
        raise GraphTraceError(
            f"{name}: an input is marked with dynamic_dim(), and an optimizer is sparse: it works on as many "
            "rows of an embedding as a call looks up, which must be a fixed number. Use a dense optimizer, "
            "or leave the dimension static."
        )
    return split_call(call, request.micro_batches) if request.micro_batches > 1 else [call]


def trace_call(request: TraceRequest, setup: Setup | None = None) -> Traced:
    """Trace one call of a graph. setup: undoes the changes that this makes to optimizers.

    Raises:
        GraphInputError, GraphTraceError: no program can be made of it.
    """
    parts = micro_batch_calls(request)
    try:
        return _traced(request, parts, setup)
    except SizeDecides as error:
        if request.call.dynamic is not None:  # not that of one micro-batch
            error.domain = request.call.dynamic.each[error.second].sizes
        raise


def _traced(request: TraceRequest, parts: Sequence[BoundCall], setup: Setup | None) -> Traced:
    first: FirstStep | None = None
    start, stepping = time.perf_counter(), 0.0
    with held():  # replacements made while `build()` runs are undone
        tracing = begin_trace(replace(request, call=parts[0]))
        found = tracing.finish()
    if isinstance(found, FirstStepNeeded):
        before = time.perf_counter()
        first = _first_step(found, request, parts, setup)
        stepping = time.perf_counter() - before
        if first.skipped:
            return Traced(None, first, {})
        with held():
            found = tracing.finish()
    assert isinstance(found, Trace)
    timings = {"trace": time.perf_counter() - start - stepping}
    if first is not None:
        first.keep_gradients(found.kept)
        timings["first step"] = stepping
    return Traced(found, first, timings)


def _first_step(
    needed: FirstStepNeeded, request: TraceRequest, parts: Sequence[BoundCall], setup: Setup | None
) -> FirstStep:
    if setup is not None:
        setup.draws()
    current().phase("first step")
    whole([i.tensor for i in needed.trace.inputs], request.optimizers)
    with held():
        try:
            made = make_first_step(
                needed, parts, request.optimizers, request.scaler, request.stacked
            )
        except OtherBranch as error:
            raise OtherTruth(needed.trace.branches, error) from error
    current().phase("trace")
    return made


def compile_plan(
    trace: Trace, call: BoundCall, options: Any, timings: dict[str, float] | None = None
) -> Plan:
    """Compile the trace of a call. timings: seconds of the previous phases.

    Raises:
        GraphTraceError: state is to be sharded over ranks that share no parameters.
    """
    zero = 0 if options is None else options.passes.zero
    if zero and trace.steps and not trace.groups and trace.mesh is None:
        raise GraphTraceError(
            f"{trace.name}: enable_zero() splits the state of data-parallel training, and build() calls no "
            "data-parallel module: wrap the model, torch.nn.parallel.DistributedDataParallel(model)"
            f"{' over the ranks with the same stages (process_group=…)' if trace.stages else ''}, or leave "
            "enable_zero() out."
        )
    if trace.stages is not None and call.dynamic is not None:
        raise GraphTraceError(
            f"{trace.name}: an input is marked with dynamic_dim(), and modules are in pipeline stages (set_stage), "
            "which hand each other tensors of fixed sizes. Leave one of the two out."
        )
    if trace.divided:
        level = 2 if trace.kept_whole else 1
        passes = replace(options.passes, zero=3, zero_min_size=1, zero_restore_level=level)
        options = replace(options, passes=passes)
    if trace.stages is None:
        compiled = compile_step(trace, options)
    else:
        # start-up: few modules are in pipeline stages
        from .pipeline import compile_pipeline

        compiled = compile_pipeline(trace, options)
    compiled = replace(compiled, timings={**(timings or {}), **compiled.timings})
    return Plan(trace, compiled, call.dynamic)
