"""Activation checkpointing in a pipeline: which values the backward of a stage recomputes.

Of a call of a marked module the rank keeps the operands of the call, values that later ops of the forward read, and
results of ops that draw random numbers or read values that change. The backward recomputes all other values, by the
same ops. These stay marked, so that `gflow-checkpoint` places each call's ops before the gradient that reaches the
call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from ..data.trace import Trace
from ..data.values import TraceOp, TraceValue, values_in
from ..dispatch.failures.pruning import draws, has_effect, needed_ops

_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_WITHOUT_STATISTICS = torch.ops.aten._native_batch_norm_legit.no_stats


def computed_again(
    first: Trace, place: Mapping[TraceOp, int], forward: int, backward: Sequence[TraceOp]
) -> list[TraceOp]:
    """The ops of a stage's forward that its backward repeats, in order.

    Args:
        first: the trace of a micro-batch.
        place: the part of each op.
        forward: the part of the stage's forward.
        backward: the ops of its backward.
    """
    inside = [op for op in first.ops if op.scope and place.get(op) == forward]
    if not inside:
        return []
    changed = {first.inputs[o.alias].value for o in first.outputs if o.alias is not None}
    again = {
        op: copy for op in inside if (copy := _copy(op, changed)) is not None and not has_effect(op)
    }
    call = {r: op.scope[0] for op in inside for r in op.results if r is not None}
    kept = _read_outside(first, call)
    wanted = {v for op in backward for v in _read(op)} - kept
    copies = [again[op] for op in inside if op in again]
    needed = needed_ops(copies, wanted, kept=lambda op: False, stop=kept)
    return [op for op in copies if op in needed]


def _copy(op: TraceOp, changed: Iterable[TraceValue]) -> TraceOp | None:
    """An op that can be repeated with the same result; None if it cannot."""
    if draws(op):
        return None
    if op.func is _BATCH_NORM and op.args[5]:  # its running statistics may have changed by then
        args = (*op.args[:3], *op.args[5:])
        return TraceOp(_WITHOUT_STATISTICS, args, {}, op.results[:3], op.loc, op.scope)
    return op if set(changed).isdisjoint(_read(op)) else None


def _read(op: TraceOp) -> Iterable[TraceValue]:
    return values_in((op.args, op.kwargs))


def _read_outside(first: Trace, call: Mapping[TraceValue, str]) -> set[TraceValue]:
    """Values of marked calls that the rest of the forward reads, or that are results of the micro-batch."""
    found = {out.value for out in first.outputs}
    for op in first.ops:
        if op.loc.phase == "forward":
            mine = op.scope[0] if op.scope else ""
            found.update(v for v in _read(op) if v in call and call[v] != mine)
    return found
