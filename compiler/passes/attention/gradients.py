"""The backward of written-out attention, in the form that autograd produces. P is the softmax, ∘ the elementwise
product:

    dv = Pᵀ dy    dP = dy vᵀ    dS = P ∘ dP - P ∘ rowsum(P ∘ dP)    dq = scale · dS k    dk = scale · dSᵀ q

There may be reshapes, transposes and conversions between float types between any two of these ops.
"""

from __future__ import annotations

from gflow.compiler.ir.ssa import Body, Op

from .description import Attention, Gradients, Select
from .values import (
    SAME,
    NoMatch,
    dropping,
    factor,
    is_moved,
    made_by,
    only_user,
    row_of,
    same,
    splat,
    swaps_last,
    users,
)


def gradients(body: Body, a: Attention) -> Gradients | None:
    """The backward of an attention; None without one. Its ops are added to those of the attention.

    Raises:
        NoMatch: the weights have another use.
    """
    times = [
        o
        for o in users(body, a.weights)
        if o.name == "mul" and o.index not in a.ops and factor(body, o) is None
    ]
    found = Gradients(-1, len(body.ops))
    if times:
        scores_grad = _softmax_grad(body, times, a, found)
        _scores_grad(body, scores_grad, a, found)
    _v_grad(body, a, found)
    return found if found.dy >= 0 else None


def _softmax_grad(body: Body, times: list[Op], a: Attention, found: Gradients) -> int:
    """P ∘ dP - P ∘ rowsum(P ∘ dP); finds dP's product."""
    for o in times:
        minuses = [u for u in users(body, o.results[0]) if u.name == "sub"]
        if len(minuses) != 1 or minuses[0].operands[0] != o.results[0]:
            continue
        minus = minuses[0]
        second = made_by(body, minus.operands[1], "mul")
        other = [v for v in second.operands if v != a.weights]
        grads = [v for v in o.operands if v != a.weights]
        if a.weights not in second.operands or len(other) != 1 or len(grads) != 1:
            raise NoMatch
        summed, of_sum = row_of(body, other[0], "sum")
        if summed != o.results[0]:
            raise NoMatch
        a.ops |= {o.index, second.index, minus.index} | of_sum
        _weights_grad(body, grads[0], a, found)
        return minus.results[0]
    raise NoMatch


def _weights_grad(body: Body, value: int, a: Attention, found: Gradients) -> None:
    """dP, back through dropout to dy vᵀ."""
    dropped, by = a.dropout is None, 1.0
    while True:
        o = made_by(body, value, "reshape", "convert", "mul", "matmul")
        a.ops.add(o.index)
        if o.name == "matmul":
            break
        if is_moved(body, o):
            (value,) = o.operands
        elif (found_drop := dropping(body, o)) is not None and a.dropout is not None:
            value, choice, number = found_drop
            if dropped or choice.operands[0] != a.dropout.keep:
                raise NoMatch
            a.ops.add(choice.index)
            dropped, by = True, by * number
        elif (times := factor(body, o)) is not None:
            value, by = times[0], by * times[1]
        else:
            raise NoMatch
    wanted = 1.0 if a.dropout is None else 1 / (1 - a.dropout.p)
    if not dropped or abs(by / wanted - 1) > SAME:
        raise NoMatch
    if not same(body, o.operands[1], a.v, transposed=True):
        raise NoMatch
    found.dy, found.first = o.operands[0], min(found.first, o.index)


def _scores_grad(body: Body, value: int, a: Attention, found: Gradients) -> None:
    """dS, and from it dq and dk through masks and the scale."""
    by = 1.0
    conditions = [(part.condition, part.where) for part in a.mask if isinstance(part, Select)]
    while not any(u.name in ("matmul", "transpose") for u in users(body, value)):
        o = only_user(body, value)
        a.ops.add(o.index)
        if o.name == "select":
            where = splat(body, o.operands[1]) == 0 and o.operands[2] == value
            if not where and (splat(body, o.operands[2]) != 0 or o.operands[1] != value):
                raise NoMatch
            if (o.operands[0], where) not in conditions:
                raise NoMatch
            conditions.remove((o.operands[0], where))
        elif not is_moved(body, o):
            number = factor(body, o)
            if number is None:
                raise NoMatch
            by *= number[1]
        (value,) = o.results
    if conditions:
        raise NoMatch
    if abs(by / a.scale - 1) > SAME:
        found.ratio = by / a.scale
    _scores_products(body, value, a, found)


def _scores_products(body: Body, value: int, a: Attention, found: Gradients) -> None:
    """dq = dS k, and dk = dSᵀ q or its transpose."""
    for o, flipped in _products_with(body, value, a.ops):
        first, second = o.operands
        left = body.producer[first] >= 0 and (
            first == value or same(body, first, value, transposed=True)
        )
        if left and not flipped and same(body, second, a.k_t, transposed=True):
            found.dq = (o.results[0], False)
        elif left and flipped and same(body, second, a.q):
            found.dk = (o.results[0], False)
        elif not flipped and second == value and same(body, first, a.q, transposed=True):
            found.dk = (o.results[0], True)
        elif flipped and not left and same(body, first, a.k_t):
            found.dq = (o.results[0], True)
        else:
            raise NoMatch
        a.ops.add(o.index)


def _v_grad(body: Body, a: Attention, found: Gradients) -> None:
    """dv = Pᵀ dy, or its transpose dyᵀ P."""
    for o, flipped in _products_with(body, a.kept, a.ops):
        if o.index == a.product:
            continue
        first, second = o.operands
        if flipped and same(body, first, a.kept, transposed=True):
            dy, transposed = second, False
        elif not flipped and second == a.kept:
            dy, transposed = first, True
        else:
            raise NoMatch
        if found.dy < 0:
            found.dy = _untransposed(body, dy) if transposed else dy
        elif not same(body, dy, found.dy, transposed=transposed):
            raise NoMatch
        found.dv, found.first = (o.results[0], transposed), min(found.first, o.index)
        a.ops.add(o.index)


def _untransposed(body: Body, value: int) -> int:
    """The value of which a value is the transpose of the last two dimensions."""
    o = made_by(body, value, "transpose")
    if not swaps_last(o, body.types[value].rank):
        raise NoMatch
    return o.operands[0]


def _products_with(body: Body, value: int, ops: set[int]) -> list[tuple[Op, bool]]:
    """Products that read a value, each with whether it reads the transpose. Adds the transposes to `ops`."""
    found = []
    for o in users(body, value):
        if o.name == "matmul":
            found.append((o, False))
        elif o.name == "transpose":
            if not swaps_last(o, body.types[value].rank):
                raise NoMatch
            ops.add(o.index)
            for user in users(body, o.results[0]):
                if user.name != "matmul":
                    raise NoMatch
                found.append((user, True))
    return found
