"""Values that a part of a pipeline recomputes instead of taking them from another part: views, and marked activations.

A view (a transposed weight, a reshaped activation) costs nothing where it is made. Kept or sent, it is a copy.

Of a call of a marked module the rank keeps the operands of the call, values that later ops of the forward read, and
results of ops that draw random numbers or read values that change. The backward recomputes all other values, by the
same ops. These stay marked, so that `gflow-checkpoint` places each call's ops before the gradient that reaches the
call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from ..data.trace import Trace
from ..data.values import TraceOp, TraceValue, values_in
from ..dispatch.failures.pruning import draws, has_effect, needed_ops

_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
#: ops that read the memory of their operand, in the layout that it has where it is made
BY_MEMORY = frozenset(getattr(torch.ops.aten, f"as_strided{s}") for s in ("", "_copy", "_scatter"))
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


def views_again(
    first: Trace,
    place: Mapping[TraceOp, int],
    part: int,
    stage_of: Sequence[int],
    ops: Sequence[TraceOp],
) -> list[TraceOp]:
    """The views of other parts' values, and of its stage's parameters, that a part makes itself, in order.

    What a view is made of is kept or sent in its place, so it must not be larger. A parameter is there anyway.

    Args:
        place: the part of each op. part: the one that runs `ops`. stage_of: the stage of each part.
    """
    changed = {first.inputs[o.alias].value for o in first.outputs if o.alias is not None}
    inputs = {entry.value for entry in first.inputs}
    makers = {r: op for op in first.ops if _is_repeatable(op) for r in op.results if r is not None}
    own = {r for op in ops for r in op.results}
    found: set[TraceOp] = set()
    wanted = [v for op in ops for v in _read(op)]
    while wanted:
        view = makers.get(value := wanted.pop())
        if view is None or value in own or view in found or view not in place:
            continue
        (base,) = _read(view)
        if base in inputs:
            here = base not in changed and stage_of[place[view]] == stage_of[part]
        else:
            here = base not in own and _elements(base) <= sum(map(_elements, view.results))
        if here:
            found.add(view)
            wanted.append(base)
    return [op for op in first.ops if op in found]


def _is_repeatable(op: TraceOp) -> bool:
    """Whether an op is a view that any part can make. Ops of marked modules are `computed_again`."""
    movable = not op.scope and op.func.overloadpacket not in BY_MEMORY
    return movable and is_view(op) and len([*_read(op)]) == 1


def is_view(op: TraceOp) -> bool:
    """Whether the results are in the memory of an operand."""
    return op.func.is_view or op.func is _UNSAFE_VIEW


def _elements(value: TraceValue | None) -> int:
    return 0 if value is None else math.prod(value.shape)


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
