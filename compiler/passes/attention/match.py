"""Written-out attention in a function body: y = dropout(softmax(scale · q kᵀ + mask)) v.

There may be reshapes and conversions between float types between any two of these ops. `gradients` matches the
backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gflow.compiler.ir.ssa import Body, Op
from gflow.dialects.types import FLOATS

from .description import Added, Attention, Dropout, Select
from .gradients import gradients
from .values import (
    SAME,
    NoMatch,
    attributes,
    dropping,
    factor,
    is_moved,
    made_by,
    row_of,
    splat,
    users,
)

#: Scores that are set to a number below this count as masked (weight 0). In float16, whose range ends at 65504, it is
#: the lowest number; a score that is itself lower has another weight than in eager.
_MASKED = -1e8
_LOWEST_F16 = -65504.0


def attentions(body: Body) -> Iterator[Attention]:
    """The attentions of a body whose scores have no other reader, in program order."""
    for o in body.ops:
        if o.name == "div":
            try:
                found = _forward(body, o)
                found.gradients = gradients(body, found)
                _check_alone(body, found)
            except NoMatch:
                continue
            yield found


def _forward(body: Body, division: Op) -> Attention:
    (weights,) = division.results
    ty = body.types[weights]
    if ty.dtype not in FLOATS or ty.rank < 2:
        raise NoMatch
    scores, ops = _softmax(body, division)
    q, k_t, scale, mask = _scores(body, scores, ops)
    dropout, kept, product = _after(body, weights, ops)
    if product.operands[0] == product.operands[1]:
        raise NoMatch
    shapes = [body.types[x].shape for x in (q, k_t, product.operands[0])]
    (positions, _), (_, keys), at = (shape[-2:] for shape in shapes)
    if not (positions, keys) == at == ty.shape[-2:]:
        raise NoMatch  # reshapes change rows or columns of the scores
    ops.add(product.index)
    (y,), v = product.results, product.operands[1]
    return Attention(
        q, k_t, v, weights, kept, y, product.index, ty.shape[:-2], scale, mask, dropout, ops
    )


def _softmax(body: Body, division: Op) -> tuple[int, set[int]]:
    """The operand of a softmax over the last dimension, and the ops of the softmax."""
    exponential = made_by(body, division.operands[0], "exp")
    total, of_total = row_of(body, division.operands[1], "sum")
    shifted = made_by(body, exponential.operands[0], "sub")
    scores = shifted.operands[0]
    top, of_top = row_of(body, shifted.operands[1], "max")
    if total != exponential.results[0] or top != scores:
        raise NoMatch
    return scores, {division.index, exponential.index, shifted.index} | of_total | of_top


def _scores(body: Body, value: int, ops: set[int]) -> tuple[int, int, float, list[Select | Added]]:
    """q, the transposed k, the scale and the masks of scores, found by walking back to their product."""
    scale, mask = 1.0, list[Select | Added]()
    while True:
        o = made_by(
            body, value, "reshape", "convert", "mul", "div", "add", "sub", "select", "matmul"
        )
        ops.add(o.index)
        if o.name == "matmul":
            if not scale or not math.isfinite(scale):
                raise NoMatch  # the scale must not be 0, since gradients are divided by it
            return o.operands[0], o.operands[1], scale, mask
        if is_moved(body, o):
            (value,) = o.operands
        elif o.name == "select" and scale == 1.0:
            value, part = _masked(body, o)
            mask.append(part)
        elif (number := factor(body, o)) is not None:
            value, by = number
            scale *= by
        elif o.name == "add" and scale == 1.0:
            value, added = _biased(body, o)
            mask.append(added)
        else:
            raise NoMatch


def _masked(body: Body, o: Op) -> tuple[int, Select]:
    """The scores that a select masks, and the mask."""
    condition, a, b = o.operands
    where, value, fill = True, b, splat(body, a)
    if fill is None:
        where, value, fill = False, a, splat(body, b)
    least = _LOWEST_F16 if body.types[o.results[0]].dtype == "f16" else _MASKED
    if fill is None or not fill <= least:
        raise NoMatch
    return value, Select(condition, where, fill)


def _biased(body: Body, o: Op) -> tuple[int, Added]:
    """The operand of an addition that a product computes, and the other operand."""
    for x, y in (o.operands, o.operands[::-1]):
        if _is_scores(body, x) and not _is_scores(body, y):
            return x, Added(y)
    raise NoMatch


def _is_scores(body: Body, value: int) -> bool:
    """Whether arithmetic with constants and masks leads back from a value to a product of this size."""
    numel = body.types[value].numel
    left, seen = [value], set[int]()
    while left:
        at = left.pop()
        p = body.producer[at]
        if at in seen or p < 0 or body.types[at].numel != numel:
            continue
        seen.add(at)
        o = body.ops[p]
        if o.name == "matmul":
            return True
        if is_moved(body, o) or o.name == "add":
            left.extend(o.operands)
        elif (number := factor(body, o)) is not None:
            left.append(number[0])
        elif o.name == "select":
            left.append(o.operands[2] if splat(body, o.operands[1]) is not None else o.operands[1])
    return False


def _after(body: Body, weights: int, ops: set[int]) -> tuple[Dropout | None, int, Op]:
    """The dropout of the weights (or None), the left operand of the product with v, and that product."""
    dropout, value = _dropout(body, weights, ops)
    while True:
        readers = users(body, value)
        products = [o for o in readers if o.name == "matmul" and o.operands[0] == value]
        if products:
            return dropout, value, products[0]
        moved = [o for o in readers if is_moved(body, o)]
        if len(moved) != 1:
            raise NoMatch
        ops.add(moved[0].index)
        (value,) = moved[0].results


def _dropout(body: Body, weights: int, ops: set[int]) -> tuple[Dropout | None, int]:
    """weights times select(random < 1 - p, 1 / (1 - p), 0) and its result, or None and the weights."""
    for o in users(body, weights):
        dropped = dropping(body, o)
        if dropped is None or dropped[0] != weights:
            continue
        _, select, scale = dropped
        keep = made_by(body, select.operands[0], "compare")
        random = made_by(body, keep.operands[0], "random")
        bound, attrs = splat(body, keep.operands[1]), attributes(random)
        if (
            bound is None or attributes(keep)["predicate"] != "lt"
            or attrs["kind"] != "uniform" or attrs["dtype"] != "f32"
            or abs(scale * bound - 1) > SAME
        ):  # fmt: skip
            raise NoMatch
        ops |= {o.index, select.index}
        dropout = Dropout(keep.results[0], 1.0 - bound, random.operands[0], attrs["stream"])
        return dropout, o.results[0]
    return None, weights


def _check_alone(body: Body, a: Attention) -> None:
    """Check that only the replaced ops and masks read the scores and values computed from them.

    Raises:
        NoMatch: another op reads one.
    """
    kept = {a.y}
    if a.gradients is not None:
        kept |= {g[0] for g in (a.gradients.dq, a.gradients.dk, a.gradients.dv) if g}
    returned = set(body.returned)
    for index in a.ops:
        for value in body.ops[index].results:
            if value in kept:
                continue
            if value in returned or any(u not in a.ops for u in body.users[value]):
                raise NoMatch
