"""Which ops and inputs of a trace are needed, and which ops may not be dropped or repeated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from ...data.trace import Trace
from ...data.values import TraceInput, TraceOp, TraceValue, values_in
from ...program.collectives import is_collective
from .refusals import name_if_refusing


def has_effect(op: TraceOp) -> bool:
    """Whether an op is needed even if its results are unused: a collective, an op that refuses some values, or a draw
    of eager's random numbers."""
    return is_collective(op) or is_eager_draw(op) or name_if_refusing(op.func) is not None


def is_eager_draw(op: TraceOp) -> bool:
    """Whether an op draws random numbers as eager does, and leaves PyTorch's generator in eager's state."""
    return bool(op.func._schema.name == "gflow::draw")


def draws(op: TraceOp) -> bool:
    """Whether an op draws random numbers; attention without dropout does not."""
    return draws_from(op.func, op.args, op.kwargs)


def draws_from(func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call with these arguments draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    named = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
    defaults = {a.name: a.default_value for a in func._schema.arguments}
    return "dropout_p" not in defaults or named.get("dropout_p", defaults["dropout_p"]) != 0.0


def needed_ops(
    ops: Sequence[TraceOp],
    values: Iterable[TraceValue],
    kept: Callable[[TraceOp], bool] = has_effect,
    stop: Collection[TraceValue] = (),
) -> set[TraceOp]:
    """The ops that compute `values`. kept: other ops that are needed; stop: values that exist already."""
    return _needed(ops, values, kept, stop)[0]


def _needed(
    ops: Sequence[TraceOp],
    values: Iterable[TraceValue],
    kept: Callable[[TraceOp], bool] = has_effect,
    stop: Collection[TraceValue] = (),
) -> tuple[set[TraceOp], set[TraceValue]]:
    """As `needed_ops`, with all values that these ops read, and `values`."""
    wanted, found = set(values), set()
    for op in reversed(ops):
        if kept(op) or any(r in wanted and r not in stop for r in op.results if r is not None):
            found.add(op)
            wanted.update(values_in((op.args, op.kwargs)))
    return found, wanted


def prune(trace: Trace, keep_inputs: bool = True) -> None:
    """Drop ops that are not needed, and arguments (except graph inputs, with `keep_inputs`) that no op and no output
    uses."""
    late = () if trace.tail is None else trace.tail.arguments
    needed, live = _needed(trace.ops, [*(o.value for o in trace.outputs), *late])
    trace.ops = [op for op in trace.ops if op in needed]
    aliased = {o.alias for o in trace.outputs}
    index: dict[int, int] = {}
    inputs: list[TraceInput] = []
    for i, entry in enumerate(trace.inputs):
        always = entry.role == "size" or (keep_inputs and entry.role == "input")
        if always or entry.value in live or i in aliased:
            index[i] = len(inputs)
            inputs.append(entry)
    trace.inputs = inputs
    for out in trace.outputs:
        if out.alias is not None:
            out.alias = index[out.alias]
