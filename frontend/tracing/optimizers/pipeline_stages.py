"""A training step in pipeline stages: the trace of a micro-batch as a forward and a backward for each stage, and the
updates of each rank.

A stage has the ops of the modules that were put into it (`set_stage`). Other ops of the forward follow their operands;
ops that read only inputs of the graph are repeated wherever they are needed. Ops of the backward belong to the stage
of their forward op; sums of gradients belong to the stage of the last term. A value that one part computes and another
reads is a message between their ranks, or is kept if one rank runs both. Skip connections are no special case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from gflow.dialects.records import record
from gflow.dialects.types import row_major_strides
from gflow.errors import GraphTraceError

from ..data.trace import Trace
from ..data.values import (
    TraceInput,
    TraceOp,
    TraceOutput,
    TraceValue,
    renamed_op,
    values_in,
)
from ..dispatch.failures.pruning import draws, has_effect, needed_ops, prune
from ..program.collectives import is_collective
from ..program.module_stages import ModuleStages, PipelineMesh
from .pipeline_recomputation import BY_MEMORY, computed_again, is_view, views_again
from .pipeline_updates import divide_updates

#: roles of inputs that one rank keeps
_OWNED = ("parameter", "buffer", "gradient")


@record
class StagePart:
    """The program of one stage for a micro-batch.

    Args:
        kind: "F" forward or "B" backward.
        given: values of other parts, by number, with the arguments for them.
        made: values that other parts read, by number.
        results: results of `build()` that it computes, by index.
    """

    kind: str
    stage: int
    trace: Trace
    given: dict[int, TraceInput] = field(default_factory=dict)
    made: dict[int, TraceValue] = field(default_factory=dict)
    results: dict[int, TraceValue] = field(default_factory=dict)


@record
class Stages:
    """The programs of a step. Ranks are positions in a pipeline.

    Args:
        ranks: the rank of each stage.
        updates: the update program of each rank.
        owners: the rank that keeps an input, for inputs that only one rank keeps.
    """

    mesh: PipelineMesh
    ranks: tuple[int, ...]
    parts: tuple[StagePart, ...]
    updates: tuple[Trace, ...]
    owners: Mapping[TraceValue, int]


def divide_stages(trace: Trace, stages: ModuleStages) -> Stages:
    """Divide the programs of a step in micro-batches among the ranks of a pipeline.

    Raises:
        GraphTraceError: a stage reads a value of a later stage, two ranks would keep the same tensor, or an update
            reads tensors of several ranks.
    """
    assert trace.parts is not None
    first, rest = trace.parts
    ranks = stages.ranks
    place = _places(first, stages, len(ranks))
    parts = _parts(first, place, len(ranks))
    owners = _owners(trace.name, parts, ranks)
    updates = divide_updates(rest, owners, stages.mesh)
    return Stages(stages.mesh, ranks, tuple(parts), tuple(updates), owners)


def _places(first: Trace, stages: ModuleStages, count: int) -> dict[TraceOp, int]:
    """The part of each op, as an index into F0, …, Fn, Bn, …, B0; without ops that are repeated where they are needed.

    Raises:
        GraphTraceError: a stage reads a value of a later stage.
    """
    found: dict[TraceOp, int] = {}
    holders = {i.value: i.name.rpartition(".")[0] for i in first.inputs if i.role == "buffer"}
    of: dict[TraceValue, int] = {}
    for op in first.ops:
        read = [of[v] for v in values_in((op.args, op.kwargs)) if v in of]
        named = stages.of(op.loc.module)
        if named is None and is_collective(
            op
        ):  # of buffers, where a data-parallel module is called
            held = [holders[v] for v in values_in((op.args, op.kwargs)) if v in holders]
            named = next(filter(lambda n: n is not None, map(stages.of, held)), None)
        if named is None and not read and not has_effect(op) and not draws(op):
            continue  # it reads only inputs of the graph, or nothing
        after = max(read, default=0)
        if op.loc.phase == "forward":
            at = after if named is None else named
            if after > at:
                raise GraphTraceError(
                    f"{op.loc}: stage {at} of the pipeline reads a value of stage {after}, which runs after it. "
                    "Put modules into stages in the order in which they run."
                )
        elif named is not None:
            at = max(2 * count - 1 - named, after)
        else:
            at = after if after >= count else 2 * count - 1 - after
        found[op] = at
        of.update((r, at) for r in op.results if r is not None)
    return found


def _parts(first: Trace, place: Mapping[TraceOp, int], count: int) -> list[StagePart]:
    of = {r: at for op, at in place.items() for r in op.results if r is not None}
    outputs: list[list[tuple[int, TraceOutput]]] = [[] for _ in range(2 * count)]
    number = 0
    for out in first.outputs:
        at = of.get(out.value, count - 1 if out.alias is None else 0)
        outputs[at].append((number if out.alias is None else -1, out))
        number += out.alias is None
    ops: list[list[TraceOp]] = []
    stage_of = [*range(count), *reversed(range(count))]
    for at in range(2 * count):
        mine = [op for op in first.ops if place.get(op) == at]
        if at >= count:
            mine = computed_again(first, place, stage_of[at], mine) + mine
        mine = views_again(first, place, at, stage_of, mine) + mine
        wanted = [v for op in mine for v in values_in((op.args, op.kwargs))]
        wanted += [out.value for _, out in outputs[at]]
        free = [op for op in first.ops if op not in place]
        shared = needed_ops(free, wanted, kept=lambda op: False)
        ops.append([op for op in free if op in shared] + mine)
    read = [_read(each, of) for each in ops]
    parts = []
    for at in range(2 * count):
        kind, stage = "F" if at < count else "B", stage_of[at]
        crossing = {v.id: v for each in read for v in each if of[v] == at}
        parts.append(_part(first, kind, stage, ops[at], outputs[at], crossing, read[at]))
    _check_kept(first, parts)
    return parts


def _read(ops: Sequence[TraceOp], of: Mapping[TraceValue, int]) -> dict[TraceValue, None]:
    """The values of other parts that a part reads. of: the part that computes a value."""
    own = {r for op in ops for r in op.results}
    values = (v for op in ops for v in values_in((op.args, op.kwargs)))
    return {v: None for v in values if v in of and v not in own}


def _part(
    first: Trace,
    kind: str,
    stage: int,
    ops: Sequence[TraceOp],
    outputs: Sequence[tuple[int, TraceOutput]],
    crossing: Mapping[int, TraceValue],
    read: Mapping[TraceValue, None],
) -> StagePart:
    given = {
        v.id: TraceInput(
            replace(v, strides=row_major_strides(v.shape)), "input", f"value.{v.id}", None
        )
        for v in read
    }
    _check_memory(first, ops, read)
    names = {v: given[v.id].value for v in read}
    results = {n: out.value for n, out in outputs if n >= 0}
    made = [TraceOutput(v, None, f"value.{k}") for k, v in crossing.items()]
    trace = Trace(
        f"{first.name}_{kind}{stage}",
        [*first.inputs, *given.values()],
        [renamed_op(op, names) for op in ops],
        [*made, *(replace(out) for _, out in outputs)],
    )
    trace.proven, trace.groups, trace.copied = first.proven, first.groups, first.copied
    prune(trace, keep_inputs=False)
    return StagePart(kind, stage, trace, given, dict(crossing), results)


def _check_memory(first: Trace, ops: Sequence[TraceOp], read: Mapping[TraceValue, None]) -> None:
    """Values of other parts arrive row-major, at the beginning of memory of their own.

    Raises:
        GraphTraceError: `as_strided` of a value that another part makes as a view or in another layout, or of a view
            of such a view.
    """
    bases = {r: op.args[0] for op in first.ops if is_view(op) for r in op.results}
    for op in ops:
        if op.func.overloadpacket not in BY_MEMORY:
            continue
        source = given = op.args[0]
        while given not in read and given in bases:
            given = bases[given]
        turned = given is source and tuple(given.strides) != row_major_strides(given.shape)
        if given in read and (given in bases or turned):
            raise GraphTraceError(
                f"{op.loc}: as_strided reads the memory of a tensor that another stage of the pipeline makes, or "
                "the same stage in its forward, as a view or not in row-major order. Stages pass tensors in "
                "row-major order. Call .contiguous() first, or use slicing, expand or permute."
            )


def _check_kept(first: Trace, parts: Sequence[StagePart]) -> None:
    """Check that values for the backward survive.

    Raises:
        GraphTraceError: a backward reads an input that a forward, perhaps of another micro-batch, has overwritten.
    """
    written: dict[TraceValue, StagePart] = {}
    for part in parts:
        for entry in part.trace.inputs:
            if entry.value in written and entry.role != "gradient":
                raise GraphTraceError(
                    f"{first.name}: {entry.role} {entry.name!r} is updated in the forward of stage "
                    f"{written[entry.value].stage}, and read in another part of the pipeline, which would see the "
                    "value of another micro-batch. Read it before it is updated, in the same stage."
                )
        aliases = [o.alias for o in part.trace.outputs if o.alias is not None]
        written |= {part.trace.inputs[a].value: part for a in aliases}


def _owners(name: str, parts: Sequence[StagePart], ranks: Sequence[int]) -> dict[TraceValue, int]:
    stages: dict[TraceValue, tuple[TraceInput, set[int]]] = {}
    for part in parts:
        for entry in part.trace.inputs:
            if entry.role in _OWNED:
                stages.setdefault(entry.value, (entry, set()))[1].add(part.stage)
    for entry, found in stages.values():
        if len({ranks[s] for s in found}) > 1:
            listed = " and ".join(map(str, sorted(found)))
            raise GraphTraceError(
                f"{name}: {entry.role} {entry.name!r} is used in stages {listed} of the pipeline, on several "
                "ranks, each of which would have its own copy. Put the modules that share it into one stage, "
                "or give each module its own."
            )
    return {value: ranks[min(found)] for value, (_, found) in stages.items()}
