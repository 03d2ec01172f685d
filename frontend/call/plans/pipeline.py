"""A step in pipeline stages: the programs of this rank, and its schedule."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from gflow.errors import GraphTraceError
from gflow.execution import executor
from gflow.execution.executor import Compiled
from gflow.runtime.composed.pipeline import Pipeline, PipelinePlan, StageProgram, Value
from gflow.runtime.distributed.groups import along
from gflow.tracing.data.trace import Trace
from gflow.tracing.optimizers.pipeline_stages import StagePart, Stages
from gflow.tracing.program.module_stages import PIPELINE

from ..dynamic.micro_batches import check_results


def compile_pipeline(trace: Trace, options: Any) -> Compiled:
    """Compile the programs of this rank for a step that is divided into stages. Reports on the step (IR, kernels,
    memory) describe the first program of this rank.

    Raises:
        GraphTraceError: the schedule does not support these stages, or a result cannot be combined.
    """
    if not trace.stacked:
        check_results(trace)
    stages: Stages = trace.stages
    mesh = dict(stages.mesh.axes)
    group = along(mesh, PIPELINE)
    rank = dist.get_rank(group)
    at = {entry.value: n for n, entry in enumerate(trace.inputs)}
    compiled: dict[tuple[str, int], Compiled] = {}
    programs: dict[tuple[str, int], StageProgram] = {}
    for part in stages.parts:
        if stages.ranks[part.stage] == rank:
            made = executor.compile_trace(part.trace, options)
            compiled[part.kind, part.stage] = made
            programs[part.kind, part.stage] = _program(part.trace, made, at, part)
    update = executor.compile_trace(stages.updates[rank], options)
    plan = _plan(trace, stages, at)
    run = Pipeline(plan, programs, _program(stages.updates[rank], update, at), group)
    return executor.composed(run, [*compiled.values(), update])


def _program(
    trace: Trace, compiled: Compiled, at: dict[Any, int], part: StagePart | None = None
) -> StageProgram:
    values = {} if part is None else {entry.value: k for k, entry in part.given.items()}
    arguments = [
        ("value", values[i.value]) if i.value in values else ("step", at[i.value])
        for i in trace.inputs
    ]
    results: list[tuple[str, int]] = []
    made = [] if part is None else [*part.made]
    places = [] if part is None else [*part.results]
    for n, out in enumerate(trace.outputs):
        if out.alias is not None:
            results.append(("update", at[trace.inputs[out.alias].value]))
        elif n < len(made):
            results.append(("value", made[n]))
        else:
            results.append(("result", places.pop(0)))
    taken = () if compiled.program is None else compiled.program.arguments
    divided = {
        n for (what, n), a in zip(arguments, taken) if what == "step" and a.pieces is not None
    }
    return StageProgram(
        compiled.run, compiled.takes_rng, tuple(arguments), tuple(results), frozenset(divided)
    )


def _plan(trace: Trace, stages: Stages, at: dict[Any, int]) -> PipelinePlan:
    assert trace.parts is not None
    first = trace.parts[0]
    values: dict[int, Value] = {}
    results: dict[int, Any] = {}
    for part in stages.parts:
        for k, v in part.made.items():
            takers = tuple((p.kind, p.stage) for p in stages.parts if k in p.given)
            values[k] = Value(tuple(v.shape), v.dtype, (part.kind, part.stage), takers)
        for n, v in part.results.items():
            shape = tuple(v.shape) or ((1,) if trace.stacked else ())
            results[n] = (shape, v.dtype, stages.ranks[part.stage])
    return PipelinePlan(
        trace.name,
        trace.micro_batches,
        stages.ranks,
        _actions(trace, stages),
        values,
        tuple(at[i.value] for i in first.inputs if i.role == "input" and i.value.shape),
        tuple(at[i.value] for i in first.inputs if i.role == "gradient"),
        {at[value]: rank for value, rank in stages.owners.items()},
        tuple(results[n] for n in range(len(results))),
        " ".join(f"{axis}={size}" for axis, size in stages.mesh.axes.items()),
        trace.stacked,
    )


def _actions(trace: Trace, stages: Stages) -> tuple[tuple[tuple[str, int, int], ...], ...]:
    """The actions of each rank.

    Raises:
        GraphTraceError: the schedule requires another arrangement of stages.
    """
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.distribution.pipeline import schedule

    world = stages.mesh.length
    each = len(stages.ranks) // world
    name = trace.schedule or ("1f1b" if each == 1 else "interleaved")
    order = stages.ranks[:world]
    if sorted(order) != [*range(world)] or order * each != stages.ranks:
        raise GraphTraceError(
            f"{trace.name}: the stages of the pipeline are on ranks {list(stages.ranks)}, and a schedule goes over all "
            f"{world} ranks of a pipeline in one order, once or several times. Place stage n on rank n % {world}, or "
            "leave placements out."
        )
    try:
        lists = schedule(name, world, trace.micro_batches, each)
    except ValueError as error:
        raise GraphTraceError(f"{trace.name}: {error} (config.set_pipeline_schedule())") from None
    found: list[Any] = [()] * world
    for n, actions in enumerate(lists):
        found[order[n]] = tuple((a.kind, a.stage, a.microbatch) for a in actions)
    return tuple(found)
