"""Partitions a trace of a function with its gradients into a forward and a backward.

The forward computes the results, and the values that the backward needs and cannot cheaply recompute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_flatten

from gflow.dialects.extents import Symbol
from gflow.tracing.data.sizes import Fixed, row_major
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import (
    OutputRef,
    TraceInput,
    TraceOp,
    TraceOutput,
    TraceValue,
    renamed_op,
    values_in,
)
from gflow.tracing.dispatch.failures.pruning import has_effect, needed_ops
from gflow.tracing.program.collectives import is_collective

aten = torch.ops.aten
#: ops without operands, and views: repeated instead of saving their results
_FREE = {
    aten.t, aten.transpose, aten.permute, aten.view, aten._unsafe_view, aten.reshape, aten.expand,
    aten.unsqueeze, aten.squeeze, aten.slice, aten.select, aten.alias, aten.detach, aten.unfold,
    aten.full, aten.zeros, aten.ones, aten.arange, aten.scalar_tensor, aten.full_like,
    aten.zeros_like, aten.ones_like, aten.empty_like, aten._to_copy, aten.lift_fresh_copy,
}  # fmt: skip


class Undivided(Exception):
    """The trace cannot be partitioned; the message says why."""


@dataclass
class Divided:
    """Attributes: forward: a trace; its results are those of the function, then the values that `backward` needs.
    backward: a trace; its inputs are these values, and the gradients of the results. results: the number of the
    function's results. inputs: for each input of `backward`, ("saved", index among the saved values), ("forward",
    index among the forward's inputs) or ("gradient", index among the incoming gradients). gradients: for each tensor
    that receives one, the index among the results of `backward`.
    """

    forward: Trace
    backward: Trace
    results: int
    inputs: list[tuple[str, int]]
    gradients: list[int | None]


def divide_gradients(joint: Trace, results: int, gradients: Sequence[bool]) -> Divided:
    """Partition a trace whose outputs are `results` results, gradients (of the tensors that have one), and the
    placeholders of the incoming gradients.

    Raises:
        Undivided: the backward needs a value that the forward overwrites.
    """
    plain = [o.value for o in joint.outputs if o.alias is None]
    count = sum(gradients)
    outs, grads, coming = (
        plain[:results],
        plain[results : results + count],
        plain[results + count :],
    )
    updates = [o for o in joint.outputs if o.alias is not None]
    made = {r: op for op in joint.ops for r in op.results if r is not None}
    places = {entry.value: i for i, entry in enumerate(joint.inputs)}
    incoming = {value: n for n, value in enumerate(coming)}
    overwritten = {o.alias for o in updates}

    later = _depending(joint.ops, set(coming))
    after = later | set(coming)
    wanted = [*outs, *(o.value for o in updates)]
    forward_ops = needed_ops(joint.ops, wanted, lambda op: has_effect(op) and not _reads(op, after))
    if any(value in later for value in (*outs, *(o.value for o in updates))):
        raise Undivided("a result that is computed from gradients")

    saved: dict[TraceValue, int] = {}
    taken: dict[int, TraceValue] = {}
    again: set[TraceOp] = set()

    def cheap(value: TraceValue, depth: int = 4) -> bool:
        """Whether a few elementwise ops compute a value from available values."""
        op = made[value]
        if value in saved:
            return False
        if op.func.overloadpacket in _FREE:
            return True
        if depth == 0 or torch.Tag.pointwise not in op.func.tags or _is_random(op):
            return False
        operands = (v for v in values_in((op.args, op.kwargs)) if v in made)
        return all(v.shape != value.shape or v in kept or cheap(v, depth - 1) for v in operands)

    backward_ops = needed_ops(joint.ops, grads, lambda op: False, stop=set(coming))
    gradient_ops = [
        op for op in joint.ops if _is_later(op, later) and (op in backward_ops or is_collective(op))
    ]
    used = [v for op in gradient_ops for v in values_in((op.args, op.kwargs))] + grads
    kept = {v for v in used if v in made and v not in later and not _is_light(made[v])}

    def need(value: TraceValue) -> None:
        if value in later or value in incoming:
            return
        if value in places:
            if places[value] in overwritten:
                raise Undivided(
                    f"the old value of {joint.inputs[places[value]].name!r}, which it updates"
                )
            taken[places[value]] = value
            return
        if made[value] in again or value in saved:
            return
        op = made[value]
        marked = bool(op.scope) and not (_is_random(op) or is_collective(op))  # recomputed
        if op not in forward_ops or marked or cheap(value):
            again.add(op)
            for operand in values_in((op.args, op.kwargs)):
                need(operand)
        else:
            saved[value] = len(saved)

    for value in used:
        need(value)

    forward = _part(joint, f"{joint.name}_forward", forward_ops)
    forward.inputs = list(joint.inputs)
    forward.input_leaves = joint.input_leaves
    forward.size = joint.size
    forward.numbers, forward.guards = joint.numbers, joint.guards
    forward.outputs = [
        *(TraceOutput(v, None, f"output.{n}") for n, v in enumerate(outs)),
        *(TraceOutput(v, None, f"saved.{n}") for v, n in saved.items()),
    ]
    forward.out_leaves = [OutputRef(n) for n in range(len(forward.outputs))]
    forward.out_spec = tree_flatten([0] * len(forward.outputs))[1]
    forward.outputs += updates
    forward.views = joint.views

    backward = _part(joint, f"{joint.name}_backward", again.union(gradient_ops))
    inputs: list[tuple[str, int]] = []
    dense: dict[TraceValue, TraceValue] = {}
    for kind, group in (("gradient", incoming), ("saved", saved)):
        for value, n in group.items():
            dense[value] = _dense(value, joint.size)
            backward.inputs.append(TraceInput(dense[value], "input", f"{kind}.{n}", None))
            inputs.append((kind, n))
    for n, entry in enumerate(joint.inputs):
        if entry.role == "size":  # all dynamic sizes depend on it
            taken[n] = entry.value
    for n, value in taken.items():
        entry = joint.inputs[n]
        role = "size" if entry.role == "size" else "input"
        backward.inputs.append(TraceInput(value, role, entry.name, None))
        inputs.append(("forward", n))
    backward.size = joint.size
    renewed = {op: renamed_op(op, dense) for op in backward.ops}
    backward.ops = list(renewed.values())
    backward.proven = {renewed[op] for op in again}
    distinct = list(dict.fromkeys(grads))
    backward.outputs = [
        TraceOutput(dense.get(v, v), None, f"gradient.{n}") for n, v in enumerate(distinct)
    ]
    order = iter(grads)
    found = [distinct.index(next(order)) if has else None for has in gradients]
    return Divided(forward, backward, results, inputs, found)


def _depending(ops: Iterable[TraceOp], on: set[TraceValue]) -> set[TraceValue]:
    """The values that depend on some values."""
    found = set(on)
    for op in ops:
        if any(v in found for v in values_in((op.args, op.kwargs))):
            found.update(r for r in op.results if r is not None)
    return found - on


def _reads(op: TraceOp, values: set[TraceValue]) -> bool:
    """Whether an op depends on some values. A collective counts by its results, since it may have no operands."""
    if is_collective(op):
        return _is_later(op, values)
    return not values.isdisjoint(values_in((op.args, op.kwargs)))


def _is_later(op: TraceOp, later: set[TraceValue]) -> bool:
    return any(r in later for r in op.results if r is not None)


def _is_light(op: TraceOp) -> bool:
    return torch.Tag.pointwise in op.func.tags or op.func.overloadpacket in _FREE


def _is_random(op: TraceOp) -> bool:
    return torch.Tag.nondeterministic_seeded in op.func.tags


def _part(joint: Trace, name: str, ops: set[TraceOp]) -> Trace:
    return Trace(name, ops=[op for op in joint.ops if op in ops], engines=joint.engines)


def _dense(value: TraceValue, symbol: Symbol | None) -> TraceValue:
    """The input as a row-major one, since results of programs are row-major. symbol: the dynamic size."""
    try:
        strides = row_major(value.shape, symbol)
    except Fixed as error:
        raise Undivided(f"{error}, with two sizes that vary") from None
    return TraceValue(value.id, value.shape, value.dtype, strides, value.device)
