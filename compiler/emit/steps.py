"""Dispatch from the ops of a planned function to the functions that add their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gflow.dialects.constants import ConstantError, element_bytes
from gflow.dialects.extents import at_most
from gflow.dialects.ops.distribution import WAIT
from gflow.dialects.program import KernelStep, LaunchStep, Place

from ..ir.errors import CannotLower
from ..ir.ssa import Op
from ..ir.views import IN_PLACE, is_view
from ..kernel.selection.choice import choice_of
from . import collectives
from .placement import Placement

B = TypeVar("B", bound=Placement)

#: by op name: the function that adds its steps
Steps = Mapping[str, Callable[[B, Op], None]]


def add_op(b: B, o: Op, steps: Steps[B], target: str) -> None:
    """Add the steps of an op.

    Views and ops that their operands' producers write in place have no steps. Constants become data of the program.

    Args:
        b: the program so far.
        o: the op.
        steps: the functions that add steps, by op name.
        target: the kind of target, for messages.

    Raises:
        CannotLower: the op has no address, no kernel is selected for it, or the selected kernel cannot be generated.
    """
    if o.name == WAIT:
        collectives.wait(b, o)
        return
    if is_view(o, b.at):
        return
    if o.name == "constant":
        _constant(b, o)
        return
    if "gflow.buffers" not in o.op.attributes:
        raise CannotLower(f"gflow.{o.name} has no place in memory; run gflow-plan-memory first")
    b.assign(o)
    if IN_PLACE in o.op.attributes:
        return
    if o.name not in steps:
        raise CannotLower(f"gflow.{o.name} has no {target} code; run gflow-fuse first")
    if nothing(b, o):
        return
    begin = len(b.steps)
    with b.planned_scratch(o) as fits:
        steps[o.name](b, o)
        state_reach(b, [o], begin)
    if not fits():  # such as planned for fewer threads: the scratch is then behind the arena
        del b.steps[begin:]
        steps[o.name](b, o)
        state_reach(b, [o], begin)


def nothing(b: Placement, o: Op) -> bool:
    """Whether no kernel was chosen for an op (kind "none"), since its results are empty.

    Raises:
        CannotLower: no kernel was chosen for an op whose results are not empty.
    """
    choice = choice_of(o.op)
    if choice.kind != "none":
        return False
    empty = bool(o.results) and all(b.body.types[r].numel == 0 for r in o.results)
    choice.check(empty, "leaves out an op that has elements")
    return True


def state_reach(b: Placement, ops: Sequence[Op], begin: int) -> None:
    """Set `reach` in the steps from number `begin` on: for each address, the bytes that the kernel may access from it.

    They end with the value of `ops`, or the scratch, that contains the address.
    """
    spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for v in dict.fromkeys([v for o in ops for v in (*o.operands, *o.results)]):
        ty = b.body.types[v]
        if b.at[v].base in b.places and ty.numel:
            space, index, low = b.place(v)
            last = sum([(n - 1) * s for n, s in zip(ty.shape, b.strides(v))])
            size = (1 + last) * ty.itemsize
            # the arena is planned for the greatest size
            high = low + (at_most(size) if space == "arena" else size)
            spans.setdefault((space, index), []).append((low, high))
    scratch = b.arena, b.arena + -(-at_most(b.scratch_bytes) // 64) * 64
    spans.setdefault(("arena", 0), []).append(scratch)
    for n in range(begin, len(b.steps)):
        step = b.steps[n]
        if isinstance(step, KernelStep):
            b.steps[n] = replace(step, reach=_reach(step.words, spans))
        elif isinstance(step, LaunchStep):
            b.steps[n] = replace(step, reach=_reach(step.args, spans))


def _reach(
    words: Sequence[Any], spans: Mapping[tuple[str, int], Sequence[tuple[int, int]]]
) -> tuple[int, ...]:
    found = []
    for word in words:
        if isinstance(word, Place):
            at = word.offset
            reach = 0
            for low, high in spans.get((word.space, word.index), ()):
                if low <= at <= high:
                    reach = max(reach, high - at)
            found.append(reach)
    return tuple(found)


def _constant(b: Placement, o: Op) -> None:
    """Add a constant to the program's data; a splat has one element.

    Raises:
        CannotLower: the constant's elements were elided from the IR text.
    """
    (r,) = o.results
    b.places[r] = Place("constant", len(b.constants), 0)
    try:
        b.constants.append(element_bytes(o.op.attributes["value"], b.body.types[r]))
    except ConstantError as error:
        raise CannotLower(str(error)) from None
