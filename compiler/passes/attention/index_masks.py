"""Analyses masks as conditions on positions: which terms of a mask are a window or documents, and which remain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gflow.compiler.ir.ssa import Body, Op
from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.records import record
from gflow.dialects.types import FLOATS, row_major_strides

from .values import attributes, splat

#: exclusive bound of constants in masks
_LIMIT = 1 << 30
#: exclusive bound of sums, by element type
_REACH = {"i32": 1 << 31, "i64": 1 << 62}
#: a score with an added number below this has no weight next to any unmasked score; in float16, the lowest number
_LOW = {"f16": -65504.0}
_LOWEST = -1e8
_INTEGERS = ("i32", "i64")
#: the maximal number of ops of a mask that are visited, on all paths together: values may be read more than once
_MOST = 200

_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


@record
class Seen:
    """A value whose dimensions are dimensions of a mask, [batch, head, position, key], by number; None for a dimension
    of size 1."""

    value: int
    dims: tuple[int | None, ...]


@dataclass
class Parts:
    """The terms of a mask. A key is visible if all of them hold.

    Args:
        left, right: it is at most so many positions before and after the query's (None: any number).
        documents: each pair of numbers is equal.
        kept, hidden: all of `kept` are true, and none of `hidden`.
        added: values that are added to scores.
        finite: whether some hidden score gets a large number instead of -inf.
        steps: the number of ops visited.
    """

    left: int | None = None
    right: int | None = None
    documents: list[tuple[Seen, Seen]] = field(default_factory=list)
    kept: list[Seen] = field(default_factory=list)
    hidden: list[Seen] = field(default_factory=list)
    added: list[Seen] = field(default_factory=list)
    finite: bool = False
    steps: int = 0

    @property
    def found(self) -> bool:
        """Whether the mask has a window or documents."""
        return self.left is not None or self.right is not None or bool(self.documents)

    def before(self, left: int) -> None:
        """Restrict keys to at most `left` positions before."""
        self.left = left if self.left is None else min(self.left, left)

    def after(self, right: int) -> None:
        """Restrict keys to at most `right` positions after."""
        self.right = right if self.right is None else min(self.right, right)


def parts_of(body: Body, bias: int) -> Parts:
    """The terms of the bias of an attention."""
    ty = body.types[bias]
    parts = Parts()
    mask = Seen(bias, tuple(None if n == 1 else d for d, n in enumerate(ty.shape)))
    if ty.dtype == "i1":
        _condition(body, mask, True, parts)
    else:
        _added(body, mask, parts)
    return parts


def _viewed(body: Body, x: Seen, parts: Parts) -> Seen:
    """The value under broadcasts, transposes, reshapes by dimensions of size 1, and indices that read all of a value
    in its order."""
    while (p := body.producer[x.value]) >= 0:
        o = body.ops[p]
        dims: tuple[int | None, ...]
        if o.name == "broadcast":
            source = body.types[o.operands[0]].shape
            places = attributes(o)["dims"]
            dims = tuple(None if n == 1 else x.dims[d] for n, d in zip(source, places))
        elif o.name == "transpose":
            order = attributes(o)["permutation"]
            dims = tuple(x.dims[order.index(d)] for d in range(len(order)))
        elif o.name == "reshape":
            source = body.types[o.operands[0]].shape
            shape = body.types[x.value].shape
            if [n for n in source if n != 1] != [n for n in shape if n != 1]:
                return x
            large = iter([d for d, n in zip(x.dims, shape) if n != 1])
            dims = tuple(None if n == 1 else next(large) for n in source)
        elif o.name == "take" and (found := _indexed(body, x, o, parts)) is not None:
            x = found
            continue
        else:
            return x
        x = Seen(o.operands[0], dims)
    return x


def _indexed(body: Body, x: Seen, o: Op, parts: Parts) -> Seen | None:
    """The value `numbers` of numbers[batch, position], where batch and position run over all of both."""
    table, index = o.operands
    parts.steps += 1
    if body.types[table].rank != 1 or parts.steps > _MOST:
        return None
    p = body.producer[table]
    if p >= 0 and body.ops[p].name == "reshape":
        (table,) = body.ops[p].operands
    found = _affine(body, _operand(x, index), parts)
    shape = body.types[table].shape
    if found is None or found[-1] != 0:
        return None
    sizes = {d: n for d, n in zip(x.dims, body.types[x.value].shape) if d is not None}
    dims: list[int | None] = []
    for size, step in zip(shape, row_major_strides(shape)):
        by = [d for d, factor in enumerate(found[:-1]) if factor == step and sizes.get(d) == size]
        if size > 1 and len(by) != 1:
            return None
        dims.append(by[0] if size > 1 else None)
    if {d for d, factor in enumerate(found[:-1]) if factor} != {d for d in dims if d is not None}:
        return None
    return Seen(table, tuple(dims))


def _maker(body: Body, x: Seen, parts: Parts) -> Op | None:
    """The op that computes a value; None if there is none, or the limit of steps is reached."""
    p = body.producer[x.value]
    parts.steps += 1
    return body.ops[p] if p >= 0 and parts.steps <= _MOST else None


def _operand(x: Seen, value: int) -> Seen:
    """An operand of the elementwise op that makes a value."""
    return Seen(value, x.dims)


def _added(body: Body, mask: Seen, parts: Parts, rounded: bool = False) -> None:
    """The terms of a value that is added to scores. rounded: whether it is converted to another type, which must not
    change numbers."""
    x = _viewed(body, mask, parts)
    o, known = _maker(body, x, parts), splat(body, x.value)
    if known == 0:
        return
    if o is not None and o.name == "add" and not rounded:
        for value in o.operands:
            _added(body, _operand(x, value), parts)
        return
    if o is not None and o.name == "select":
        condition, *values = o.operands
        least = _LOW.get(body.types[x.value].dtype, _LOWEST)
        for where, (low, rest) in ((False, values[::-1]), (True, values)):
            fill = splat(body, low)
            if fill is not None and fill <= least and not (rounded and splat(body, rest) != 0):
                _condition(body, _operand(x, condition), not where, parts)
                parts.finite |= fill != float("-inf")
                _added(body, _operand(x, rest), parts)
                return
    if o is not None and o.name == "convert" and body.types[o.operands[0]].dtype in FLOATS:
        inner = Parts(steps=parts.steps)
        _added(body, _operand(x, o.operands[0]), inner, True)
        parts.steps = inner.steps
        if not inner.added:
            _join(parts, inner)
            return
    parts.added.append(x)


def _join(parts: Parts, more: Parts) -> None:
    if more.left is not None:
        parts.before(more.left)
    if more.right is not None:
        parts.after(more.right)
    parts.documents += more.documents
    parts.kept += more.kept
    parts.hidden += more.hidden
    parts.finite |= more.finite


def _condition(body: Body, mask: Seen, holds: bool, parts: Parts) -> None:
    """The terms of a condition (i1) that must hold, or must not."""
    x = _viewed(body, mask, parts)
    o, known = _maker(body, x, parts), splat(body, x.value)
    if known is not None and bool(known) == holds:
        return
    if o is not None and o.name == "not":
        return _condition(body, _operand(x, o.operands[0]), not holds, parts)
    if o is not None and o.name == ("and" if holds else "or"):
        for value in o.operands:
            _condition(body, _operand(x, value), holds, parts)
        return None
    if o is not None and o.name == "select":
        # for select(c, x, false) and select(c, false, x) both conditions must hold; for select(c, true, x) neither may
        condition, *values = o.operands
        for where, (fixed, rest) in ((False, values[::-1]), (True, values)):
            number = splat(body, fixed)
            if number is not None and bool(number) != holds:
                _condition(body, _operand(x, condition), not where, parts)
                return _condition(body, _operand(x, rest), holds, parts)
    if o is not None and o.name == "compare" and _compared(body, x, o, holds, parts):
        return None
    (parts.kept if holds else parts.hidden).append(x)
    return None


def _compared(body: Body, x: Seen, o: Op, holds: bool, parts: Parts) -> bool:
    """Whether a comparison is one of positions or documents. Its terms are then added."""
    predicate = attributes(o)["predicate"]
    if not holds:
        predicate = _OPPOSITE[predicate]
    first, second = (_viewed(body, _operand(x, v), parts) for v in o.operands)
    if body.types[o.operands[0]].dtype in FLOATS:
        return _of_choice(body, first, second, predicate, parts)
    a, b = _affine(body, first, parts), _affine(body, second, parts)
    if a is not None and b is not None:
        return _band([m - n for m, n in zip(a, b)], predicate, parts)
    if b is not None and not any(b[:-1]) and _near(body, first, b[-1], predicate, parts):
        return True
    if _of_choice(body, first, second, predicate, parts):
        return True
    if predicate == "eq" and body.types[first.value].dtype in _INTEGERS:
        for q, k in ((first, second), (second, first)):
            if (
                {*q.dims} <= {None, 0, 2}
                and {*k.dims} <= {None, 0, 3}
                and 2 in q.dims
                and 3 in k.dims
            ):
                parts.documents.append((q, k))
                return True
    return False


def _band(found: Sequence[int], predicate: str, parts: Parts) -> bool:
    """Whether a sum in the form of `_affine`, compared with 0, limits the distance of a key from its position."""
    *others, of_i, of_j, number = found
    if of_j < 0:  # the same with the opposite sign
        predicate = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(predicate, predicate)
        of_i, of_j, number = -of_i, -of_j, -number
    if any(others) or (of_i, of_j) != (-1, 1) or predicate == "ne":
        return False
    if predicate in ("lt", "le", "eq"):
        parts.after(-number - (predicate == "lt"))
    if predicate in ("gt", "ge", "eq"):
        parts.before(number - (predicate == "gt"))
    return True


def _near(body: Body, x: Seen, bound: int, predicate: str, parts: Parts) -> bool:
    """Whether |i - j + n| is compared with a bound."""
    o = _maker(body, x, parts)
    if o is None or o.name != "abs" or predicate not in ("lt", "le"):
        return False
    found = _affine(body, _operand(x, o.operands[0]), parts)
    if found is None:
        return False
    most = bound - (predicate == "lt")
    inside = Parts()
    below = _band((*found[:-1], found[-1] - most), "le", inside)
    if below and _band((*found[:-1], found[-1] + most), "ge", inside):
        _join(parts, inside)
        return True
    return False


def _of_choice(body: Body, x: Seen, other: Seen, predicate: str, parts: Parts) -> bool:
    """Whether a comparison of a number with one of two numbers, chosen by a condition, is recognized, as for ones
    below a diagonal compared with zero."""
    o, number = _maker(body, x, parts), splat(body, other.value)
    if o is None or number is None:
        return False
    values: tuple[float | None, float | None]
    if o.name == "convert" and body.types[o.operands[0]].dtype == "i1":
        values = (1.0, 0.0)
    elif o.name == "select":
        values = (splat(body, o.operands[1]), splat(body, o.operands[2]))
    else:
        return False
    if None in values:
        return False
    yes, no = (_holds(predicate, v, number) for v in values if v is not None)
    if yes != no:
        _condition(body, _operand(x, o.operands[0]), yes, parts)
    return yes != no


def _holds(predicate: str, a: float, b: float) -> bool:
    return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b, "ne": a != b}[
        predicate
    ]


def _affine(body: Body, x: Seen, parts: Parts) -> tuple[int, ...] | None:
    """The five coefficients of a value that is a linear combination of batch, head, position, key and 1."""
    x = _viewed(body, x, parts)
    if body.types[x.value].dtype not in _INTEGERS:
        return None
    number = splat(body, x.value)
    if number is not None:
        return (0, 0, 0, 0, int(number)) if abs(number) < _LIMIT else None
    o = _maker(body, x, parts)
    if o is None:
        return None
    if o.name == "iota":
        dim = x.dims[attributes(o)["dim"]]
        return tuple(int(d == dim) for d in range(5))
    if o.name == "select":
        return _counted(body, x, o, parts)
    if o.name not in ("add", "sub", "mul", "neg", "convert"):
        return None
    terms = [_affine(body, _operand(x, v), parts) for v in o.operands]
    known = [t for t in terms if t is not None]
    if len(known) != len(terms):
        return None
    found: list[int]
    if o.name in ("add", "sub"):
        sign = 1 if o.name == "add" else -1
        found = [a + sign * b for a, b in zip(*known)]
    elif o.name == "mul":
        factors = [t[-1] for t in known if not any(t[:-1])]
        others = [t for t in known if any(t[:-1])] or known[:1]
        if not factors or len(others) != 1:
            return None
        found = [a * factors[-1] for a in others[0]]
    else:
        found = [-a if o.name == "neg" else a for a in known[0]]
    sizes = [n for d, n in zip(x.dims, body.types[x.value].shape) if d is not None]
    reach = sum(abs(a) for a in found) * max(sizes, default=1)
    return tuple(found) if reach < _REACH[body.types[x.value].dtype] else None


def _counted(body: Body, x: Seen, o: Op, parts: Parts) -> tuple[int, ...] | None:
    """An index with a correction for negative values (counted from the end), which are never negative."""
    negative = _maker(body, _viewed(body, _operand(x, o.operands[0]), parts), parts)
    if negative is None or negative.name != "compare" or attributes(negative)["predicate"] != "lt":
        return None
    index = _affine(body, _operand(x, o.operands[2]), parts)
    tested, zero = (_affine(body, _operand(x, v), parts) for v in negative.operands)
    if index is None or tested is None or zero is None or any(zero) or min(tested) < 0:
        return None
    return index


def spread(body: Body, x: Seen, sizes: Sequence[int], dims: Sequence[int]) -> ir.Value:
    """A value as a tensor with these dimensions of the mask; 1 for dimensions in which it repeats. sizes: of all
    four."""
    value = body.values[x.value]
    order = sorted(range(len(x.dims)), key=lambda d: (x.dims[d] or 0, x.dims[d] is not None))
    value = builder.transpose(value, order)
    return builder.reshape(value, [sizes[d] if d in x.dims else 1 for d in dims])
