"""Written-out attention and its gradients in a function body.

The forward is y = dropout(softmax(scale · q kᵀ + mask)) v, the backward what autograd makes of it (P is the softmax,
∘ the product by elements):

    dv = Pᵀ dy    dP = dy vᵀ    dS = P ∘ dP - P ∘ rowsum(P ∘ dP)    dq = scale · dS k    dk = scale · dSᵀ q

Reshapes, transposes and conversions between float types may lie between any two of these ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gflow.compiler.ir.ssa import Body, Op
from gflow.compiler.ir.views import Layout, view_layout
from gflow.dialects.attributes import read
from gflow.dialects.constants import is_splat
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import FLOATS, row_major_strides

#: relative difference below which two constants are one, of which one went through float32
_SAME = 1e-6


@dataclass(frozen=True)
class Select:
    """Scores that a mask sets to `fill` where `condition` (a value number of i1) is `where`."""

    condition: int
    where: bool
    fill: float


@dataclass(frozen=True)
class Added:
    """A value that is added to the scores."""

    value: int


@dataclass
class Dropout:
    """keep: the value of i1 that says what stays. p: the probability to become zero. rng, stream: as in `random`."""

    keep: int
    p: float
    rng: int
    stream: int


@dataclass
class Gradients:
    """The backward. dy: of the product with v. first: the op before which all of its operands are there.
    dq, dk, dv: the products that give them, each with whether it gives the transpose; None where none is wanted.
    ratio: of what the products for dq and dk give to the gradients, where the scale is multiplied with later."""

    dy: int
    first: int
    ratio: float = 1.0
    dq: tuple[int, bool] | None = None
    dk: tuple[int, bool] | None = None
    dv: tuple[int, bool] | None = None


@dataclass
class Attention:
    """One attention. Operands are value numbers of the products: q [.., position, channel], k_t [.., channel, key],
    v [.., key, channel]; y the result. lead: sizes of the batch dimensions of the softmax."""

    q: int
    k_t: int
    v: int
    y: int
    lead: tuple[int, ...]
    scale: float
    mask: list[Select | Added]
    dropout: Dropout | None
    gradients: Gradients | None = None
    ops: set[int] = field(default_factory=set)


class _No(Exception):
    """The ops at hand are no attention."""


def attentions(body: Body) -> Iterator[Attention]:
    """Those of a body whose scores nothing else reads, in program order."""
    for o in body.ops:
        if o.name == "div":
            try:
                found = _Matcher(body).attention(o)
            except _No:
                continue
            yield found


class _Matcher:
    def __init__(self, body: Body) -> None:
        self.body = body
        self.ops: set[int] = set()  # those that will be gone

    # -- reading

    def made_by(self, value: int, *names: str) -> Op:
        """The op that makes a value, which is one of these.

        Raises:
            _No: it isn't.
        """
        p = self.body.producer[value]
        if p < 0 or self.body.ops[p].name not in names:
            raise _No
        return self.body.ops[p]

    def attrs(self, o: Op) -> dict[str, Any]:
        return read(OPS[o.name], o.op.attributes)

    def splat(self, value: int) -> float | None:
        """The number that all elements of a value are."""
        p = self.body.producer[value]
        if p < 0:
            return None
        o = self.body.ops[p]
        if o.name in ("broadcast", "reshape"):
            return self.splat(o.operands[0])
        if o.name != "constant":
            return None
        elements = o.op.attributes["value"]
        if not is_splat(elements):
            return None
        return float(ir.DenseElementsAttr(elements).get_splat_value().value)

    def users(self, value: int) -> list[Op]:
        return [self.body.ops[i] for i in dict.fromkeys(self.body.users[value])]

    def only_user(self, value: int) -> Op:
        users = self.users(value)
        if len(users) != 1:
            raise _No
        return users[0]

    def is_moved(self, o: Op) -> bool:
        """Whether an op changes the form of its operand alone, or its float type."""
        if o.name == "convert":
            types = (self.body.types[o.operands[0]].dtype, self.body.types[o.results[0]].dtype)
            return all(t in FLOATS for t in types)
        return o.name == "reshape"

    def layout(self, value: int) -> Layout:
        """Where a value's elements lie in what it is a view of."""
        ty = self.body.types[value]
        p = self.body.producer[value]
        if p >= 0 and self.body.ops[p].name in ("reshape", "transpose"):
            o = self.body.ops[p]
            inner = self.layout(o.operands[0])
            found = view_layout(o, inner, self.body.types[o.operands[0]])
            if found is not None:
                return found
        return Layout(value, 0, tuple(row_major_strides(ty.shape)))

    def same(self, a: int, b: int, transposed: bool = False) -> bool:
        """Whether two values are equal, or one is the other with its last two dimensions exchanged."""
        shape, other = self.body.types[a].shape, self.body.types[b].shape
        x, y = self.layout(a), self.layout(b)
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

    # -- the forward

    def attention(self, division: Op) -> Attention:
        body = self.body
        weights = division.results[0]
        if body.types[weights].dtype not in FLOATS or body.types[weights].rank < 2:
            raise _No
        scores = self.softmax(division)
        lead = body.types[weights].shape[:-2]
        q, k_t, scale, mask = self.scores(scores)
        dropout, kept, product = self.after(weights)
        if kept != product.operands[0] or product.operands[0] == product.operands[1]:
            raise _No
        self.ops.add(product.index)
        found = Attention(
            q, k_t, product.operands[1], product.results[0], lead, scale, mask, dropout
        )
        found.gradients = self.gradients(found, weights, kept, product)
        found.ops = self.ops
        self.check_alone(found)
        return found

    def softmax(self, division: Op) -> int:
        """What a softmax over the last dimension is of."""
        last = self.body.types[division.results[0]].rank - 1
        exponential = self.made_by(division.operands[0], "exp")
        total = self.row_of(division.operands[1], "sum", last)
        shifted = self.made_by(exponential.operands[0], "sub")
        scores = shifted.operands[0]
        top = self.row_of(shifted.operands[1], "max", last)
        if total != exponential.results[0] or top != scores:
            raise _No
        self.ops |= {division.index, exponential.index, shifted.index}
        return scores

    def row_of(self, value: int, kind: str, last: int) -> int:
        """What a broadcast row is the sum (or the maximum) of, over the last dimension."""
        spread = self.made_by(value, "broadcast")
        if tuple(self.attrs(spread)["dims"])[:last] != tuple(range(last)):
            raise _No
        inner = spread.operands[0]
        self.ops.add(spread.index)
        while self.body.ops[self.body.producer[inner]].name == "reshape":
            reshape = self.made_by(inner, "reshape")
            self.ops.add(reshape.index)
            inner = reshape.operands[0]
        reduce = self.made_by(inner, "reduce")
        attrs = self.attrs(reduce)
        if attrs["kind"] != kind or tuple(attrs["dims"]) != (last,):
            raise _No
        self.ops.add(reduce.index)
        return reduce.operands[0]

    def scores(self, value: int) -> tuple[int, int, float, list[Select | Added]]:
        """q, k transposed, the scale, and the mask of scores, followed back to their product."""
        scale, mask = 1.0, list[Select | Added]()
        while True:
            o = self.made_by(
                value, "reshape", "convert", "mul", "div", "add", "sub", "select", "matmul"
            )
            self.ops.add(o.index)
            if o.name == "matmul":
                return o.operands[0], o.operands[1], scale, mask
            if self.is_moved(o):
                (value,) = o.operands
            elif o.name == "select" and scale == 1.0:
                value = self.masked(o, mask)
            elif (number := self.factor(o)) is not None:
                value, by = number
                scale *= by
            elif o.name == "add" and scale == 1.0:
                value = self.biased(o, mask)
            else:
                raise _No

    def masked(self, o: Op, mask: list[Select | Added]) -> int:
        condition, a, b = o.operands
        fill = self.splat(a)
        where, value = True, b
        if fill is None:
            fill, where, value = self.splat(b), False, a
        if fill is None or not fill < -1e4:
            raise _No
        mask.append(Select(condition, where, fill))
        return value

    def factor(self, o: Op) -> tuple[int, float] | None:
        """The value that an op multiplies by a number, and the number."""
        if o.name == "div" and (by := self.splat(o.operands[1])):
            return o.operands[0], 1.0 / by
        if o.name == "mul":
            for x, y in (o.operands, o.operands[::-1]):
                if (by := self.splat(y)) is not None:
                    return x, by
        return None

    def biased(self, o: Op, mask: list[Select | Added]) -> int:
        """The operand of an addition that a product makes."""
        for x, y in (o.operands, o.operands[::-1]):
            if self.is_scores(x) and not self.is_scores(y):
                mask.append(Added(y))
                return x
        raise _No

    def is_scores(self, value: int) -> bool:
        """Whether arithmetic with constants and masks leads back from a value to a product of this size."""
        numel = self.body.types[value].numel
        for _ in range(16):
            p = self.body.producer[value]
            if p < 0 or self.body.types[value].numel != numel:
                return False
            o = self.body.ops[p]
            if o.name == "matmul":
                return True
            if self.is_moved(o):
                (value,) = o.operands
            elif (number := self.factor(o)) is not None:
                value = number[0]
            elif o.name == "select":
                value = o.operands[2] if self.splat(o.operands[1]) is not None else o.operands[1]
            elif o.name == "add":
                value = next((v for v in o.operands if self.is_scores(v)), -1)
                return value >= 0
            else:
                return False
        return False

    def after(self, weights: int) -> tuple[Dropout | None, int, Op]:
        """Dropout of the weights, if there is, what is multiplied with v, and that product."""
        dropout = self.dropout(weights)
        value = weights if dropout is None else dropout[1]
        while True:
            moved = [o for o in self.users(value) if self.is_moved(o)]
            products = [o for o in self.users(value) if o.name == "matmul"]
            first = [o for o in products if o.operands[0] == value]
            if first:
                return (dropout and dropout[0]), value, first[0]
            if len(moved) != 1:
                raise _No
            self.ops.add(moved[0].index)
            (value,) = moved[0].results

    def dropout(self, weights: int) -> tuple[Dropout, int] | None:
        """select(random < 1 - p, weights / (1 - p), 0)"""
        for o in self.users(weights):
            found = self.factor(o) if o.name == "mul" else None
            if found is None or found[0] != weights:
                continue
            select = next((u for u in self.users(o.results[0]) if u.name == "select"), None)
            if select is None or select.operands[1] != o.results[0]:
                continue
            keep = self.made_by(select.operands[0], "compare")
            random = self.made_by(keep.operands[0], "random")
            bound, attrs = self.splat(keep.operands[1]), self.attrs(random)
            if (
                bound is None or self.attrs(keep)["predicate"] != "lt"
                or attrs["kind"] != "uniform" or attrs["dtype"] != "f32"
                or self.splat(select.operands[2]) != 0
                or abs(found[1] * bound - 1) > _SAME
            ):  # fmt: skip
                raise _No
            self.ops |= {o.index, select.index}
            rng = random.operands[0]
            return Dropout(keep.results[0], 1.0 - bound, rng, attrs["stream"]), select.results[0]
        return None

    # -- the backward

    def gradients(self, a: Attention, weights: int, kept: int, product: Op) -> Gradients | None:
        """The backward, where there is one."""
        times = [
            o
            for o in self.users(weights)
            if o.name == "mul" and o.index not in self.ops and self.factor(o) is None
        ]
        found = Gradients(-1, len(self.body.ops))
        if times:
            scores_grad = self.softmax_grad(weights, times, a, found)
            self.scores_grad(scores_grad, a, found)
        self.v_grad(a, kept, product, found)
        return found if found.dy >= 0 else None

    def softmax_grad(self, weights: int, times: list[Op], a: Attention, found: Gradients) -> int:
        """P ∘ dP - P ∘ rowsum(P ∘ dP); finds dP's product."""
        last = self.body.types[weights].rank - 1
        for o in times:
            minuses = [u for u in self.users(o.results[0]) if u.name == "sub"]
            if len(minuses) != 1 or minuses[0].operands[0] != o.results[0]:
                continue
            minus = minuses[0]
            second = self.made_by(minus.operands[1], "mul")
            other = [v for v in second.operands if v != weights]
            if weights not in second.operands or len(other) != 1:
                raise _No
            if self.row_of(other[0], "sum", last) != o.results[0]:
                raise _No
            self.ops |= {o.index, second.index, minus.index}
            grads = [v for v in o.operands if v != weights]
            if len(grads) != 1:
                raise _No
            self.weights_grad(grads[0], a, found)
            return minus.results[0]
        raise _No

    def weights_grad(self, value: int, a: Attention, found: Gradients) -> None:
        """dP, back through dropout to dy vᵀ."""
        dropped, factor = a.dropout is None, 1.0
        while True:
            o = self.made_by(value, "reshape", "convert", "mul", "select", "matmul")
            self.ops.add(o.index)
            if o.name == "matmul":
                break
            if self.is_moved(o):
                (value,) = o.operands
            elif o.name == "select" and a.dropout is not None and not dropped:
                if o.operands[0] != a.dropout.keep or self.splat(o.operands[2]) != 0:
                    raise _No
                dropped, value = True, o.operands[1]
            elif (number := self.factor(o)) is not None:
                value, factor = number[0], factor * number[1]
            else:
                raise _No
        wanted = 1.0 if a.dropout is None else 1 / (1 - a.dropout.p)
        if not dropped or abs(factor / wanted - 1) > _SAME:
            raise _No
        if not self.same(o.operands[1], a.v, transposed=True):
            raise _No
        found.dy, found.first = o.operands[0], min(found.first, o.index)

    def scores_grad(self, value: int, a: Attention, found: Gradients) -> None:
        """dS, on through masks and the scale to dq and dk."""
        factor = 1.0
        conditions = [(part.condition, part.where) for part in a.mask if isinstance(part, Select)]
        while not any(u.name in ("matmul", "transpose") for u in self.users(value)):
            o = self.only_user(value)
            self.ops.add(o.index)
            if o.name == "select":
                where = self.splat(o.operands[1]) == 0 and o.operands[2] == value
                if not where and (self.splat(o.operands[2]) != 0 or o.operands[1] != value):
                    raise _No
                if (o.operands[0], where) not in conditions:
                    raise _No
                conditions.remove((o.operands[0], where))
            elif not self.is_moved(o):
                number = self.factor(o)
                if number is None:
                    raise _No
                factor *= number[1]
            (value,) = o.results
        if conditions:
            raise _No
        if abs(factor / a.scale - 1) > _SAME:
            found.ratio = factor / a.scale
        self.scores_products(value, a, found)

    def scores_products(self, value: int, a: Attention, found: Gradients) -> None:
        """dq = dS k, and dk = dSᵀ q or its transpose."""
        for o, flipped in self.products_with(value):
            first, second = o.operands
            left = self.body.producer[first] >= 0 and (
                first == value or self.same(first, value, transposed=True)
            )
            if left and not flipped and self.same(second, a.k_t, transposed=True):
                found.dq = (o.results[0], False)
            elif left and flipped and self.same(second, a.q):
                found.dk = (o.results[0], False)
            elif not flipped and second == value and self.same(first, a.q, transposed=True):
                found.dk = (o.results[0], True)
            elif flipped and not left and self.same(first, a.k_t):
                found.dq = (o.results[0], True)
            else:
                raise _No
            self.ops.add(o.index)

    def v_grad(self, a: Attention, kept: int, product: Op, found: Gradients) -> None:
        """dv = Pᵀ dy, or its transpose dyᵀ P."""
        for o, flipped in self.products_with(kept):
            if o.index == product.index:
                continue
            first, second = o.operands
            if flipped and self.same(first, kept, transposed=True):
                dy, transposed, result = second, False, False
            elif not flipped and second == kept:
                dy, transposed, result = first, True, True
            else:
                raise _No
            if found.dy < 0:
                if transposed:
                    dy = self.made_by(first, "transpose").operands[0]
                found.dy = dy
            elif not self.same(dy, found.dy, transposed=transposed):
                raise _No
            found.dv, found.first = (o.results[0], result), min(found.first, o.index)
            self.ops.add(o.index)

    def products_with(self, value: int) -> list[tuple[Op, bool]]:
        """Products that take a value, each with whether it takes it transposed."""
        found = []
        rank = self.body.types[value].rank
        for o in self.users(value):
            if o.name == "matmul":
                found.append((o, False))
            elif o.name == "transpose":
                if tuple(self.attrs(o)["permutation"]) != (*range(rank - 2), rank - 1, rank - 2):
                    raise _No
                self.ops.add(o.index)
                for user in self.users(o.results[0]):
                    if user.name != "matmul":
                        raise _No
                    found.append((user, True))
        return found

    # -- who else reads

    def check_alone(self, a: Attention) -> None:
        """Nothing but the ops that go, and masks, reads the scores or what is made of them.

        Raises:
            _No: something does.
        """
        kept = {a.y}
        if a.gradients is not None:
            kept |= {g[0] for g in (a.gradients.dq, a.gradients.dk, a.gradients.dv) if g}
        returned = set(self.body.returned)
        for index in self.ops:
            for value in self.body.ops[index].results:
                if value in kept:
                    continue
                if value in returned or any(u not in self.ops for u in self.body.users[value]):
                    raise _No
