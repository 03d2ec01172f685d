"""Whose memory is a result of the function."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.dialects.ops.distribution import WAIT
from gflow.dialects.types import is_row_major

from ..ir.ssa import Body
from ..ir.views import Layout, is_padded, is_view


def in_order(layout: Layout, shape: tuple[int, ...]) -> bool:
    """Whether a tensor's elements lie one after the other, row-major, from the base's start on."""
    return layout.offset == 0 and is_row_major(shape, layout.strides)


def same_order(body: Body, at: Sequence[Layout], value: int, other: int) -> bool:
    """Whether the elements of `value`, which shows all of its base, lie from there on as those of `other` do: both
    row-major, or both in rows that are equally far apart."""
    if in_order(at[value], body.types[value].shape):
        return in_order(at[other], body.types[other].shape)
    layout = at[value]
    same = (
        body.types[value].shape == body.types[other].shape and layout.strides == at[other].strides
    )
    return same and layout.offset == 0 and is_padded(body.types[value], layout.strides)


def owners(body: Body, at: Sequence[Layout], target: Sequence[int | None]) -> list[int]:
    """For each returned value, the value whose op is to write it where the caller gets it.

    That is the value itself, or what it is a view of: all of it, in its order (a reshape of a product).

    Args:
        target: for each returned value, the argument that it updates, if any.
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
            v = base  # what was started is written there
        found.append(v)
    return found


def _shows_all(body: Body, at: Sequence[Layout], view: int, base: int) -> bool:
    producer = body.producer[base]
    if producer < 0 or body.ops[producer].name == "constant" or is_view(body.ops[producer], at):
        return False
    shape = body.types[view].shape
    return body.types[view].numel == body.types[base].numel and in_order(at[view], shape)
