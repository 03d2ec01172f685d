"""From the ops of a planned function to steps, by a table: what code generators do alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from gflow.dialects.constants import element_bytes
from gflow.dialects.program import Place

from ..errors import CannotLower
from ..ssa import Op
from ..views import IN_PLACE, is_view
from .placement import Placement

B = TypeVar("B", bound=Placement)

#: op name → what adds its steps
Steps = Mapping[str, Callable[[B, Op], None]]


def add_op(b: B, o: Op, steps: Steps[B], target: str) -> None:
    """Add the steps of an op; views have none, nor what is written in place, constants
    become the program's.

    Raises:
        CannotLower: the op has no place in memory, or no code for the target.
    """
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
    begin = len(b.steps)
    with b.planned_scratch(o) as fits:
        steps[o.name](b, o)
    if not fits():  # planned for fewer threads, say: behind the arena then
        del b.steps[begin:]
        steps[o.name](b, o)


def _constant(b: Placement, o: Op) -> None:
    """A constant that is read from memory: one element for a splat."""
    (r,) = o.results
    b.places[r] = Place("constant", len(b.constants), 0)
    b.constants.append(element_bytes(o.op.attributes["value"], b.body.types[r]))


def scratch_of_ops(
    b: B, add: Callable[[B, Op], None], may_need: Callable[[Op], bool] = lambda o: True
) -> dict[int, int]:
    """For each op that needs scratch, by its number, how many bytes; an op without code needs none.

    Args:
        add: adds an op's steps, which are not kept. may_need: whether it is worth asking.
    """
    found: dict[int, int] = {}
    for o in list(b.body.ops):
        if not may_need(o):
            b.assign_if_planned(o)
            continue
        b.scratch_bytes = 0
        try:
            add(b, o)
        except CannotLower:  # code generation says so, where it is asked for
            continue
        if b.scratch_bytes:
            found[o.index] = -(-b.scratch_bytes // 64) * 64
    return found
