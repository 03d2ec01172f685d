"""The division of a trace into the program and its tail (`data.tail`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .data.tail import Tail, Unknown
from .data.trace import Trace
from .data.values import TraceOp, TraceOutput, TraceValue, instances_in, values_in
from .dispatch.failures.pruning import draws, has_effect
from .dispatch.recorder import describe, late_error
from .program.collectives import is_collective
from .program.module_stages import has_stages
from .traced_inputs import TracedInputs

aten = torch.ops.aten
#: ops whose results depend on the strides of operands
_BY_STRIDES = (
    aten.as_strided.default,
    aten.as_strided_scatter.default,
    aten.as_strided_copy.default,
)


def divide_tail(tracing: TracedInputs, trace: Trace) -> None:
    """Move ops on tensors whose shape depends on values out of the program, into `trace.tail`. What they read of the
    program becomes a result of it.

    Raises:
        GraphTraceError: the program depends on one of them, or a graph of this kind has no tail.
    """
    ops, roots = _late_ops(trace.ops, tracing.recorder.late)
    if not ops:
        return
    for out in trace.outputs:
        if (root := roots.get(out.value)) is not None:
            entry = None if out.alias is None else trace.inputs[out.alias]
            what = out.name if entry is None else f"{entry.role} {entry.name!r}"
            raise late_error(root, f"{what} is computed from it")
    moved = {*ops}
    trace.ops = [op for op in trace.ops if op not in moved]
    ops = _needed(ops, tracing.late_results, tracing.recorder.unknown)
    if not ops:
        return
    _check(tracing, ops, roots)
    updated = {o.alias for o in trace.outputs if o.alias is not None}
    kept = {i.value for n, i in enumerate(trace.inputs) if n not in updated}
    results = trace.outputs[: len(tracing.outputs)]
    known = {out.value: n for n, out in enumerate(results)}
    ops = [*_views_of(kept | known.keys(), ops, trace.ops), *map(_for_any_strides, ops)]
    made = {r for op in ops for r in op.results if r is not None}
    read = {v: None for op in ops for v in values_in((op.args, op.kwargs)) if v not in made}
    arguments = [v for v in read if v in kept and not v.is_number]
    outputs = {v: known[v] for v in read if v in known and v not in arguments}
    for value in read:
        if value not in outputs and value not in arguments:
            outputs[value] = len(results)
            results.append(TraceOutput(value, None, f"tail.{len(results)}"))
    trace.outputs = results + trace.outputs[len(tracing.outputs) :]
    sizes = tracing.recorder.sizes
    assert sizes is not None
    unknown = {v: dims for v, dims in tracing.recorder.unknown.items() if v in made}
    symbols = tuple(map(str, sizes.variables))
    given = {*symbols, *(name for dims in unknown.values() for _, name in dims)}
    conditions = [c for c in sizes.assumed() if given.issuperset(c.names)]
    results_of = tracing.late_results
    trace.tail = Tail(ops, results_of, outputs, arguments, unknown, symbols, conditions)


def _late_ops(
    ops: list[TraceOp], late: Mapping[TraceValue, TraceOp]
) -> tuple[list[TraceOp], dict[TraceValue, TraceOp]]:
    """The ops of the tail; and for each value that depends on them, the op that gives the first unknown shape."""
    found, roots = [], dict(late)
    for op in ops:
        values = (*values_in((op.args, op.kwargs)), *(r for r in op.results if r is not None))
        root = next((roots[v] for v in values if v in roots), None)
        if root is not None:
            found.append(op)
            roots.update((r, root) for r in op.results if r is not None)
    return found, roots


def _needed(
    ops: list[TraceOp],
    results: Sequence[TraceValue],
    unknown: Mapping[TraceValue, list[tuple[int, str]]],
) -> list[TraceOp]:
    """The ops that compute `results`, the sizes in them, and what refuses some values. unknown: the new sizes of
    values, by name."""
    makers = {name: value for value, dims in unknown.items() for _, name in dims}
    wanted, found = set[TraceValue](), []

    def want(parts: Any) -> None:
        wanted.update(values_in(parts))
        names = [name for size in instances_in(parts, Unknown) for name in size.names]
        wanted.update(makers[name] for name in names if name in makers)

    for value in results:
        want((value, value.shape))
    for op in reversed(ops):
        made = [r for r in op.results if r is not None]
        if has_effect(op) or not wanted.isdisjoint(made):
            found.append(op)
            want((op.args, op.kwargs, [r.shape for r in made]))
    return found[::-1]


def _views_of(
    bases: Collection[TraceValue], ops: Sequence[TraceOp], program: Sequence[TraceOp]
) -> list[TraceOp]:
    """The views of results and arguments that the tail reads. It makes them itself: they share the memory."""
    makers = {r: op for op in program if _is_view(op.func) for r in op.results if r is not None}
    found: dict[TraceOp, None] = {}
    for value in values_in([(op.args, op.kwargs) for op in ops]):
        chain: dict[TraceOp, None] = {}
        while value not in bases and value in makers:
            chain[makers[value]] = None
            value = next(values_in(makers[value].args))
        if value in bases:
            found |= chain
    return [_for_any_strides(op) for op in program if op in found]


def _is_view(func: torch._ops.OpOverload) -> bool:
    return func not in _BY_STRIDES and any(r.alias_info is not None for r in func._schema.returns)


def _for_any_strides(op: TraceOp) -> TraceOp:
    """An op, for operands with other strides than in the trace: the results of a program are row-major."""
    return replace(op, func=aten.reshape.default) if op.func is aten.view.default else op


def _check(tracing: TracedInputs, ops: list[TraceOp], roots: Mapping[TraceValue, TraceOp]) -> None:
    """
    Raises:
        GraphTraceError: the tail has ops that only a program runs, or the graph is of a kind that has no tail.
    """
    root = next(roots[r] for op in ops for r in op.results if r is not None)
    what = (
        ("set_gradient_accumulation_steps()" if tracing.micro_batches > 1 else "")
        or ("pipeline stages (set_stage)" if has_stages(tracing.table) else "")
        or ("global tensors (DTensor)" if tracing.recorder.meshes else "")
        or ("fully_shard()" if tracing.sharded else "")
    )
    if what:
        raise late_error(root, f"the graph has {what}, with which it cannot be a result")
    for op in ops:
        kind = (
            ("draws random numbers" if draws(op) else "")
            or ("exchanges it with other ranks" if is_collective(op) else "")
            or ("takes the strides of a tensor" if op.func in _BY_STRIDES else "")
        )
        if kind:
            raise late_error(root, f"{op.func} at {describe(op.loc)} {kind}")
