"""Which op writes a result of the function, directly to the caller's memory."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.dialects.ops.distribution import WAIT
from gflow.dialects.types import is_row_major

from ..ir.ssa import Body
from ..ir.views import Layout, is_padded, is_view


def in_order(layout: Layout, shape: tuple[int, ...]) -> bool:
    """Whether a view has its base's elements from the start on, contiguous and row-major."""
    return layout.offset == 0 and is_row_major(shape, layout.strides)


def same_order(body: Body, at: Sequence[Layout], value: int, other: int) -> bool:
    """Whether `value`, a view of all of its base, has its elements in the same memory order as `other`.

    Both must be row-major, or both have rows with the same padded stride.
    """
    if in_order(at[value], body.types[value].shape):
        return in_order(at[other], body.types[other].shape)
    layout = at[value]
    same = (
        body.types[value].shape == body.types[other].shape and layout.strides == at[other].strides
    )
    return same and layout.offset == 0 and is_padded(body.types[value], layout.strides)


def owners(body: Body, at: Sequence[Layout], target: Sequence[int | None]) -> list[int]:
    """For each returned value, the value whose op writes it to the caller's memory.

    It is the value itself, or its base if the value is a view of all elements in order (a reshape of a product).

    Args:
        body, at: the function's body, and the layouts of its values.
        target: for each returned value, the number of the argument that it updates, or None.
    """
    taken = set(body.returned)
    found = []
    for v, alias in zip(body.returned, target):
        base = at[v].base
        if alias is None and base not in taken and _shows_all(body, at, v, base):
            taken.add(base)
            v = base
        elif (
            alias is not None and body.producer[v] >= 0 and body.ops[body.producer[v]].name == WAIT
        ):
            v = base  # a wait returns the memory of its start
        found.append(v)
    return found


def _shows_all(body: Body, at: Sequence[Layout], view: int, base: int) -> bool:
    producer = body.producer[base]
    if producer < 0 or body.ops[producer].name == "constant" or is_view(body.ops[producer], at):
        return False
    shape = body.types[view].shape
    return body.types[view].numel == body.types[base].numel and in_order(at[view], shape)
