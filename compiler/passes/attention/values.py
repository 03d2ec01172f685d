"""Constants, layouts and equality of values, through ops that only change shape or float type."""

from __future__ import annotations

from typing import Any

from gflow.compiler.ir.ssa import Body, Op
from gflow.compiler.ir.views import Layout, view_layout
from gflow.dialects.attributes import read
from gflow.dialects.constants import is_splat
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import FLOATS, row_major_strides

#: relative difference below which two constants count as equal: one may have been rounded to float32
SAME = 1e-6


class NoMatch(Exception):
    """The ops do not match the pattern."""


def made_by(body: Body, value: int, *names: str) -> Op:
    """The op that produces a value, if its name is one of these.

    Raises:
        NoMatch: it has another name, or the value is an argument.
    """
    p = body.producer[value]
    if p < 0 or body.ops[p].name not in names:
        raise NoMatch
    return body.ops[p]


def attributes(o: Op) -> dict[str, Any]:
    """An op's attributes as Python values."""
    return read(OPS[o.name], o.op.attributes)


def splat(body: Body, value: int) -> float | None:
    """The number of a splat value."""
    p = body.producer[value]
    if p < 0:
        return None
    o = body.ops[p]
    if o.name in ("broadcast", "reshape"):
        return splat(body, o.operands[0])
    if o.name != "constant":
        return None
    elements = o.op.attributes["value"]
    if not is_splat(elements):
        return None
    return float(ir.DenseElementsAttr(elements).get_splat_value().value)


def factor(body: Body, o: Op) -> tuple[int, float] | None:
    """The value that an op multiplies by a number, and the number."""
    if o.name == "div" and (by := splat(body, o.operands[1])):
        return o.operands[0], 1.0 / by
    if o.name == "mul":
        for x, y in (o.operands, o.operands[::-1]):
            if (by := splat(body, y)) is not None:
                return x, by
    return None


def dropping(body: Body, o: Op) -> tuple[int, Op, float] | None:
    """The value that an op multiplies by a number or by 0, the choice between these, and the number."""
    if o.name != "mul":
        return None
    for x, y in (o.operands, o.operands[::-1]):
        p = body.producer[y]
        if p >= 0 and body.ops[p].name == "select":
            scale, zero = (splat(body, v) for v in body.ops[p].operands[1:])
            if scale is not None and zero == 0:
                return x, body.ops[p], scale
    return None


def users(body: Body, value: int) -> list[Op]:
    """The ops that read a value, each once."""
    return [body.ops[i] for i in dict.fromkeys(body.users[value])]


def only_user(body: Body, value: int) -> Op:
    """
    Raises:
        NoMatch: the value has no reader or several.
    """
    found = users(body, value)
    if len(found) != 1:
        raise NoMatch
    return found[0]


def is_moved(body: Body, o: Op) -> bool:
    """Whether an op only changes the shape of its operand, or its float type."""
    if o.name == "convert":
        types = (body.types[o.operands[0]].dtype, body.types[o.results[0]].dtype)
        return all(t in FLOATS for t in types)
    return o.name == "reshape"


def swaps_last(o: Op, rank: int) -> bool:
    """Whether an op exchanges the last two dimensions of its operand, whose rank is given."""
    order = (*range(rank - 2), rank - 1, rank - 2)
    return o.name == "transpose" and tuple(attributes(o)["permutation"]) == order


def same(body: Body, a: int, b: int, transposed: bool = False) -> bool:
    """Whether two values are equal, or one is the other with its last two dimensions exchanged."""
    shape, other = body.types[a].shape, body.types[b].shape
    x, y = _layout(body, a), _layout(body, b)
    strides = y.strides
    if transposed:
        other = (*other[:-2], other[-1], other[-2])
        strides = (*strides[:-2], strides[-1], strides[-2])
    steps = [s for s, n in zip(x.strides, shape) if n != 1]
    return (
        x.base == y.base
        and x.offset == y.offset
        and shape == other
        and steps == [s for s, n in zip(strides, shape) if n != 1]
    )


def _layout(body: Body, value: int) -> Layout:
    """The layout of a value within the value that it is a view of."""
    ty = body.types[value]
    p = body.producer[value]
    if p >= 0 and body.ops[p].name in ("reshape", "transpose"):
        o = body.ops[p]
        inner = _layout(body, o.operands[0])
        found = view_layout(o, inner, body.types[o.operands[0]])
        if found is not None:
            return found
    return Layout(value, 0, tuple(row_major_strides(ty.shape)))


def row_of(body: Body, value: int, kind: str) -> tuple[int, set[int]]:
    """The value whose reduction along the last dimension a value repeats in each row.

    kind: "sum" or "max". Returns that value and the ops in between.

    Raises:
        NoMatch: the value is no such reduction.
    """
    last = body.types[value].rank - 1
    spread = made_by(body, value, "broadcast")
    if tuple(attributes(spread)["dims"])[:last] != tuple(range(last)):
        raise NoMatch
    ops = {spread.index}
    inner = made_by(body, spread.operands[0], "reshape", "reduce")
    while inner.name == "reshape":
        ops.add(inner.index)
        inner = made_by(body, inner.operands[0], "reshape", "reduce")
    attrs = attributes(inner)
    if attrs["kind"] != kind or tuple(attrs["dims"]) != (last,):
        raise NoMatch
    return inner.operands[0], {*ops, inner.index}
