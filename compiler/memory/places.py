"""Places in the IR (`gflow.buffers`): `arena:64`, `result:0`, `arg:2`, `arg:2[1, 8]`.

A place in an argument that isn't row-major has its strides, so that users of the value can check them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from gflow.dialects.mlir import func, ir
from gflow.dialects.program import Place
from gflow.dialects.types import row_major_strides

from ..ir.errors import CompileError
from ..ir.ssa import Body, Op
from ..ir.views import Layout, is_view
from .liveness import Lives

_PLACE = re.compile(r"(arena|arg|result):(\d{1,18})(?:\[([\d, ]*)\])?", re.ASCII)


class PlanPlace(NamedTuple):
    """The place of an op's result: the arena at byte `number`, or the argument or result `number`.

    strides: in elements; None: row-major.
    """

    space: Literal["arena", "arg", "result"]
    number: int
    strides: tuple[int, ...] | None = None

    @property
    def address(self) -> Place:
        """The place as an address of a program."""
        in_arena = self.space == "arena"
        return Place("arena", 0, self.number) if in_arena else Place(self.space, self.number, 0)

    def __str__(self) -> str:
        return f"{self.space}:{self.number}" + (
            "" if self.strides is None else str([*self.strides])
        )


def places_of(op: ir.Operation) -> list[PlanPlace] | None:
    """The places of an op's results that its `gflow.buffers` states; None if it is missing or malformed."""
    if "gflow.buffers" not in op.attributes:
        return None
    attribute = op.attributes["gflow.buffers"]
    if not isinstance(attribute, ir.ArrayAttr) or len(attribute) != len(op.results):
        return None
    found = []
    for entry in attribute:
        match = _PLACE.fullmatch(entry.value) if isinstance(entry, ir.StringAttr) else None
        if match is None:
            return None
        try:
            strides = match[3] and tuple(int(n) for n in match[3].split(","))
        except ValueError:
            return None
        space = cast('Literal["arena", "arg", "result"]', match[1])
        found.append(PlanPlace(space, int(match[2]), strides or None))
    return found


def results_of(o: Op, at: Sequence[Layout]) -> dict[int, Place]:
    """The addresses that an op's `gflow.buffers` states, by value: its results, or the values that these are parts of.

    Raises:
        CompileError: a place is malformed, or has other strides than the value's users expect.
    """
    places = places_of(o.op)
    if places is None:
        raise CompileError(f"gflow.{o.name} has a malformed place in memory")
    found = {}
    for r, place in zip(o.results, places):
        if place.strides is not None and place.strides != at[r].strides:
            raise CompileError(
                f"gflow.{o.name} writes strides {list(place.strides)} where its readers expect "
                f"{list(at[r].strides)}"
            )
        # for a part in the arena: the address of the whole
        found[at[r].base if place.space == "arena" else r] = place.address
    return found


def given_addresses(body: Body) -> dict[int, Place]:
    """The addresses of arguments and constants."""
    found = {v: Place("arg", n, 0) for n, v in enumerate(body.arguments)}
    constants = [o for o in body.ops if o.name == "constant"]
    return found | {o.results[0]: Place("constant", n, 0) for n, o in enumerate(constants)}


def addresses(body: Body, at: Sequence[Layout]) -> dict[int, Place]:
    """The address of each value of a planned function that isn't a view.

    Raises:
        CompileError: a place is missing or malformed.
    """
    found = given_addresses(body)
    for o in body.ops:
        if o.name != "constant" and not is_view(o, at):
            found |= results_of(o, at)
    return found


def write_places(function: func.FuncOp, lives: Lives, size: int, offsets: Sequence[int]) -> None:
    """Write a memory plan into the IR: the arena's size and the places of results. Earlier scratch is removed.

    Args:
        function: the function.
        lives: its buffers.
        size: the bytes of the arena.
        offsets: the offset of each buffer in the arena, in bytes.
    """
    set_number(function, "arena_size", size)
    for o in lives.making:
        where = [_place(lives, r, offsets) for r in o.results]
        o.op.attributes["gflow.buffers"] = ir.ArrayAttr.get([ir.StringAttr.get(w) for w in where])
        if "gflow.scratch" in o.op.attributes:
            del o.op.attributes["gflow.scratch"]


def _place(lives: Lives, value: int, offsets: Sequence[int]) -> str:
    if value not in lives.place:
        return f"arena:{offsets[lives.buffer_of[value]]}"
    strides = lives.at[value].strides
    dense = strides == row_major_strides(lives.body.types[value].shape)
    return lives.place[value] + ("" if dense else str([*strides]))


def set_number(function: func.FuncOp, name: str, value: int) -> None:
    """Set the function's attribute `gflow.<name>`."""
    i64 = ir.IntegerType.get_signless(64)
    function.operation.attributes[f"gflow.{name}"] = ir.IntegerAttr.get(i64, value)
