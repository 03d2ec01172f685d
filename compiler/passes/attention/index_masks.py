"""Masks as conditions on positions: what of a mask is a window or documents, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gflow.compiler.ir.ssa import Body, Op
from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.records import record
from gflow.dialects.types import FLOATS

from .values import attributes, splat

#: numbers beyond this could leave i32 when positions are added
_LIMIT = 1 << 30
#: what is added to a score below this leaves no weight beside any unmasked score; in float16, the lowest number
_LOW = {"f16": -65504.0}
_LOWEST = -1e8
_INTEGERS = ("i32", "i64")
#: ops of a mask that are looked at, on all paths together: values may be read more than once
_MOST = 200

_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


@record
class Seen:
    """A value whose dimensions are dimensions of a mask, [batch, head, position, key] by number; None: of size 1."""

    value: int
    dims: tuple[int | None, ...]


@dataclass
class Parts:
    """A key is visible where all hold: it is at most `left` before and `right` after its position (None: any number),
    each pair of documents is equal, all of `kept` are true and none of `hidden`. added: what scores are added to.
    finite: whether some hidden score gets a large number instead of -inf. steps: ops that were looked at."""

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
        """Whether some of the mask is a window or documents."""
        return self.left is not None or self.right is not None or bool(self.documents)

    def before(self, left: int) -> None:
        """Keys are at most `left` before."""
        self.left = left if self.left is None else min(self.left, left)

    def after(self, right: int) -> None:
        """Keys are at most `right` after."""
        self.right = right if self.right is None else min(self.right, right)


def parts_of(body: Body, bias: int) -> Parts:
    """The parts of the bias of an attention."""
    ty = body.types[bias]
    parts = Parts()
    mask = Seen(bias, tuple(None if n == 1 else d for d, n in enumerate(ty.shape)))
    if ty.dtype == "i1":
        _condition(body, mask, True, parts)
    else:
        _added(body, mask, parts)
    return parts


def _viewed(body: Body, x: Seen) -> Seen:
    """The value that broadcasts, transposes and reshapes by dimensions of size 1 show."""
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
        else:
            return x
        x = Seen(o.operands[0], dims)
    return x


def _maker(body: Body, x: Seen, parts: Parts) -> Op | None:
    """The op that makes a value; None where there is none, or after too many."""
    p = body.producer[x.value]
    parts.steps += 1
    return body.ops[p] if p >= 0 and parts.steps <= _MOST else None


def _operand(x: Seen, value: int) -> Seen:
    """An operand of the elementwise op that makes a value."""
    return Seen(value, x.dims)


def _added(body: Body, mask: Seen, parts: Parts, rounded: bool = False) -> None:
    """Parts of what is added to scores. rounded: to another type, which only numbers that stay equal may be."""
    x = _viewed(body, mask)
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
    """Parts of a condition (i1) that must hold, or must not."""
    x = _viewed(body, mask)
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
        # of select(c, x, false) and of select(c, false, x) both must hold; of select(c, true, x) neither may
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
    """Whether a comparison is one of positions or documents, whose parts are then added."""
    predicate = attributes(o)["predicate"]
    if not holds:
        predicate = _OPPOSITE[predicate]
    first, second = (_viewed(body, _operand(x, v)) for v in o.operands)
    if body.types[o.operands[0]].dtype in FLOATS:
        return _of_choice(body, first, second, predicate, parts)
    a, b = _affine(body, first, parts), _affine(body, second, parts)
    if a is not None and b is not None:
        return _band(tuple(m - n for m, n in zip(a, b)), predicate, parts)
    if b is not None and b[:2] == (0, 0) and _near(body, first, b[2], predicate, parts):
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
    """Whether i · found[0] + j · found[1] + found[2], compared with 0, limits how far a key is from its position."""
    of_i, of_j, number = found
    if of_j < 0:  # the same with other signs
        predicate = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(predicate, predicate)
        of_i, of_j, number = -of_i, -of_j, -number
    if (of_i, of_j) != (-1, 1) or predicate == "ne":
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
    below = _band((found[0], found[1], found[2] - most), "le", inside)
    if below and _band((found[0], found[1], found[2] + most), "ge", inside):
        _join(parts, inside)
        return True
    return False


def _of_choice(body: Body, x: Seen, other: Seen, predicate: str, parts: Parts) -> bool:
    """Whether one of two numbers, by a condition, is compared with a number: as ones below a diagonal with zero."""
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


def _affine(body: Body, x: Seen, parts: Parts) -> tuple[int, int, int] | None:
    """The factors of the position and of the key, and the number that is added, of a value that is such a sum."""
    x = _viewed(body, x)
    if body.types[x.value].dtype not in _INTEGERS:
        return None
    number = splat(body, x.value)
    if number is not None:
        return (0, 0, int(number)) if abs(number) < _LIMIT else None
    o = _maker(body, x, parts)
    if o is None:
        return None
    if o.name == "iota":
        dim = x.dims[attributes(o)["dim"]]
        return {2: (1, 0, 0), 3: (0, 1, 0), None: (0, 0, 0)}.get(dim)
    if o.name not in ("add", "sub", "neg", "convert"):
        return None
    terms = [_affine(body, _operand(x, v), parts) for v in o.operands]
    found = [t for t in terms if t is not None]
    if len(found) != len(terms):
        return None
    if o.name in ("add", "sub"):
        sign = 1 if o.name == "add" else -1
        i, j, n = (a + sign * b for a, b in zip(*found))
    else:
        sign = -1 if o.name == "neg" else 1
        i, j, n = (sign * a for a in found[0])
    return (i, j, n) if max(abs(i), abs(j)) <= 1 and abs(n) < _LIMIT else None


def spread(body: Body, x: Seen, sizes: Sequence[int], dims: Sequence[int]) -> ir.Value:
    """A value as a tensor of these dimensions of the mask; 1 where it repeats. sizes: of all four."""
    value = body.values[x.value]
    order = sorted(range(len(x.dims)), key=lambda d: (x.dims[d] or 0, x.dims[d] is not None))
    value = builder.transpose(value, order)
    return builder.reshape(value, [sizes[d] if d in x.dims else 1 for d in dims])
