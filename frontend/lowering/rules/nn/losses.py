"""Loss functions and their gradients. reduction: 0 none, 1 mean, 2 sum, as ATen counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...dtypes import mlir_dtype
from ...emitter import Emitter, Value
from ...pointwise import pointwise
from ...registry import lowers
from ..reductions import mean, sum_


def _reduced(em: Emitter, x: Value, reduction: int) -> Value:
    return x if reduction == 0 else mean(em, x) if reduction == 1 else sum_(em, x)


def _loss(em: Emitter, operands: list[Any], body: Callable[..., Value], reduction: int) -> Value:
    """An elementwise loss, reduced; half precision is rounded once, at the end."""
    dtype = em.current_results[0].dtype
    values = [v.compute() if isinstance(v, Value) else v for v in operands]
    return _reduced(em, pointwise(em, values, body), reduction).to(mlir_dtype(dtype))


def _loss_backward(
    em: Emitter, dy: Value, x: Value, others: list[Any], body: Callable[..., Value], reduction: int
) -> Value:
    """`body(dy, x, *others)`, divided by the number of elements under the mean."""

    def scaled(d: Value, *rest: Value) -> Value:
        return body(d / count if reduction == 1 else d, *rest)

    count = 1
    shape = tuple(em.current_results[0].shape)
    for size in shape:
        count *= size
    return em.broadcast(pointwise(em, [dy, x, *others], scaled), shape)


@lowers("aten.mse_loss")
def mse_loss(em: Emitter, x: Value, y: Value, reduction: int = 1) -> Value:
    """(x − y)². reduction, here and below: 0 none, 1 the mean, 2 the sum."""
    return _loss(em, [x, y], lambda a, b: (a - b) * (a - b), reduction)


@lowers("aten.mse_loss_backward")
def mse_loss_backward(em: Emitter, dy: Value, x: Value, y: Value, reduction: int) -> Value:
    """2 · (x − y) · dy, divided for the mean."""
    return _loss_backward(em, dy, x, [y], lambda d, a, b: (a - b) * 2.0 * d, reduction)


@lowers("aten.smooth_l1_loss")
def smooth_l1(em: Emitter, x: Value, y: Value, reduction: int = 1, beta: float = 1.0) -> Value:
    """(x − y)² / (2 · beta) where |x − y| < beta, |x − y| − beta / 2 elsewhere."""

    def body(a: Value, b: Value) -> Value:
        gap = em("abs", a - b)
        if beta == 0:
            return gap
        return em.select(gap.lt(beta), gap * gap * 0.5 / beta, gap - 0.5 * beta)

    return _loss(em, [x, y], body, reduction)


@lowers("aten.smooth_l1_loss_backward")
def smooth_l1_backward(
    em: Emitter, dy: Value, x: Value, y: Value, reduction: int, beta: float
) -> Value:
    """The gradient of `smooth_l1` for x."""

    def body(d: Value, a: Value, b: Value) -> Value:
        gap = a - b
        outside = em.select(gap.lt(0.0), -d, d)
        if beta == 0:
            return em.select(gap.eq(0.0), 0.0, outside)
        return em.select(em("abs", gap).ge(beta), outside, d * gap / beta)  # NaN at NaN

    return _loss_backward(em, dy, x, [y], body, reduction)


@lowers("aten.huber_loss")
def huber(em: Emitter, x: Value, y: Value, reduction: int = 1, delta: float = 1.0) -> Value:
    """(x − y)² / 2 up to delta, delta · (|x − y| − delta / 2) beyond."""

    def body(a: Value, b: Value) -> Value:
        gap = em("abs", a - b)
        return em.select(gap.le(delta), gap * gap * 0.5, (gap - 0.5 * delta) * delta)

    return _loss(em, [x, y], body, reduction)


@lowers("aten.huber_loss_backward")
def huber_backward(
    em: Emitter, dy: Value, x: Value, y: Value, reduction: int, delta: float
) -> Value:
    """dy · (x − y), clamped to ±delta."""

    def body(d: Value, a: Value, b: Value) -> Value:
        gap = a - b
        return d * em.minimum(em.maximum(gap, -delta), delta)

    return _loss_backward(em, dy, x, [y], body, reduction)


@lowers("aten.soft_margin_loss")
def soft_margin(em: Emitter, x: Value, y: Value, reduction: int = 1) -> Value:
    """log(1 + e^(−x · y))."""
    return _loss(em, [x, y], lambda a, b: em("log1p", em("exp", -a * b)), reduction)


@lowers("aten.soft_margin_loss_backward")
def soft_margin_backward(em: Emitter, dy: Value, x: Value, y: Value, reduction: int) -> Value:
    """The gradient of `soft_margin` for x: −dy · y · σ(−x · y). σ(x · y) − 1 would be its rounding error where x · y is
    large."""

    def body(d: Value, a: Value, b: Value) -> Value:
        return -(d * b * em("sigmoid", -(a * b)))

    return _loss_backward(em, dy, x, [y], body, reduction)


# -- binary cross-entropy


@lowers("aten.binary_cross_entropy")
def bce(em: Emitter, x: Value, y: Value, weight: Value | None = None, reduction: int = 1) -> Value:
    """−weight · (y · log x + (1 − y) · log(1 − x)), logarithms at least −100."""

    def body(p: Value, target: Value, *w: Value) -> Value:
        log_p = em.maximum(em("log", p), -100.0)
        log_q = em.maximum(em("log1p", -p), -100.0)
        loss = (target - 1.0) * log_q - target * log_p
        return loss * w[0] if w else loss

    return _loss(em, [x, y] if weight is None else [x, y, weight], body, reduction)


@lowers("aten.binary_cross_entropy_backward")
def bce_backward(
    em: Emitter, dy: Value, x: Value, y: Value, weight: Value | None = None, reduction: int = 1
) -> Value:
    """weight · dy · (x − y) / max(x · (1 − x), 10⁻¹²)."""

    def body(d: Value, p: Value, target: Value, *w: Value) -> Value:
        grad = d * (p - target) / em.maximum((1.0 - p) * p, 1e-12)
        return grad * w[0] if w else grad

    return _loss_backward(em, dy, x, [y] if weight is None else [y, weight], body, reduction)


@lowers("aten.binary_cross_entropy_with_logits")
def bce_with_logits(
    em: Emitter, x: Value, y: Value, weight: Value | None = None, pos_weight: Value | None = None,
    reduction: int = 1,
) -> Value:  # fmt: skip
    """`bce` of sigmoid(x), by a formula that does not overflow. pos_weight: of positive targets."""
    extra = [w for w in (weight, pos_weight) if w is not None]

    def body(z: Value, target: Value, *rest: Value) -> Value:
        softplus = em("log1p", em("exp", -em("abs", z))) + em.maximum(-z, 0.0)  # log(1 + e^-z)
        if pos_weight is not None:
            softplus = softplus * ((rest[-1] - 1.0) * target + 1.0)
        loss = (1.0 - target) * z + softplus
        return loss * rest[0] if weight is not None else loss

    return _loss(em, [x, y, *extra], body, reduction)


# -- negative log likelihood


def _hits(em: Emitter, x: Value, target: Value, ignore_index: int) -> tuple[Value, Value, int]:
    """Which class each target picks, spread over x; which targets count; the class dimension."""
    dim = 0 if x.rank == 1 else 1
    target = target.reshape((*x.shape[:dim], *x.shape[dim + 1 :])).to("i64")
    counts = target.ne(ignore_index)
    dims = [d for d in range(x.rank) if d != dim]
    chosen = em.iota(x.shape, dim, "i64").eq(em.broadcast(target, x.shape, dims))
    return chosen & em.broadcast(counts, x.shape, dims), counts, dim


def _nll_forward(
    em: Emitter, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    v = x.compute()
    hit, counts, dim = _hits(em, v, target, ignore_index)
    losses = -v
    spread = None
    if weight is not None:
        spread = em.broadcast(weight.to(v.dtype), v.shape, (dim,))
        losses = losses * spread
    loss = em.select(hit, losses, 0.0).sum([dim])
    if reduction == 0:
        shape = em.current_results[0].shape
        return loss.reshape(shape).to(x.dtype), em.full(0, (), x.dtype)
    if spread is None:
        total = counts.to(v.dtype).sum(range(counts.rank))
    else:
        total = em.select(hit, spread, 0.0).sum(range(v.rank))
    loss = loss.sum(range(loss.rank))
    if reduction == 1:
        loss = loss / total
    return loss.to(x.dtype), total.to(x.dtype)


@lowers("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss(
    em: Emitter, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """−weight[target] · x[target], and the sum of weights. x: [n, classes, ..] or [classes]."""
    return _nll_forward(em, x, target, weight, reduction, ignore_index)


@lowers("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(
    em: Emitter, dy: Value, x: Value, target: Value, weight: Value | None, reduction: int,
    ignore_index: int, total_weight: Value,
) -> Value:  # fmt: skip
    """The gradient of `nll_loss` for x. total_weight: as `nll_loss` gave it."""
    hit, _, dim = _hits(em, x, target, ignore_index)
    d = dy.compute()
    if reduction == 1:
        d = d / total_weight.to(d.dtype)
    if reduction == 0 and x.rank > 1:
        d = em.broadcast(d, x.shape, [i for i in range(x.rank) if i != dim])
    else:
        d = em.broadcast(d.reshape(()), x.shape)
    if weight is not None:
        d = d * em.broadcast(weight.to(d.dtype), x.shape, (dim,))
    return em.select(hit, -d, 0.0).to(x.dtype)
