"""Activation functions and their gradients.

PyTorch's kernels have two forms of many functions: for vectors, and for the few elements that are left. Where the two
differ (at NaN, and in signs of zeros) these rules follow the vectors' form.
"""

from __future__ import annotations

import math
from typing import Any

from ...emitter import Emitter, Value
from ...pointwise import pointwise
from ...registry import lowers
from ..choosing import clamp

_SQRT_HALF = math.sqrt(0.5)
_GELU_BETA = math.sqrt(2 / math.pi)
_GELU_CUBE = 0.044715

#: 1/6 in float32, which PyTorch multiplies by in every type
_SIXTH = 0.16666667163372040


@lowers("aten.relu")
def relu(em: Emitter, x: Value) -> Value:
    """max(x, 0); NaN stays."""
    return clamp(em, x, 0)


@lowers("aten.threshold")
def threshold(em: Emitter, x: Value, limit: Any, value: Any) -> Value:
    """x above the limit, `value` at it and below."""
    return pointwise(em, [x], lambda v: em.select(v.le(limit), value, v))


@lowers("aten.threshold_backward")
def threshold_backward(em: Emitter, dy: Value, x: Value, limit: Any) -> Value:
    """`dy` where x is above the limit."""
    return pointwise(em, [dy, x], lambda d, v: em.select(v.le(limit), 0, d))


@lowers("aten.hardtanh", "aten.relu6")
def hardtanh(em: Emitter, x: Value, low: Any = -1, high: Any = 1) -> Value:
    """x clamped to [low, high]."""
    return clamp(em, x, low, high)


@lowers("aten.hardtanh_backward")
def hardtanh_backward(em: Emitter, dy: Value, x: Value, low: Any, high: Any) -> Value:
    """`dy` where low < x < high."""
    return pointwise(em, [dy, x], lambda d, v: em.select(v.gt(low) & v.lt(high), d, 0.0))


@lowers("aten.leaky_relu")
def leaky_relu(em: Emitter, x: Value, slope: Any = 0.01) -> Value:
    """x above 0, slope · x elsewhere."""
    return pointwise(em, [x], lambda v: em.select(v.gt(0.0), v, v * slope))


@lowers("aten.leaky_relu_backward")
def leaky_relu_backward(
    em: Emitter, dy: Value, x: Value, slope: Any, self_is_result: bool
) -> Value:
    """`dy` where x is above 0, slope · dy elsewhere. x: the input, or the result, which has its sign."""
    return pointwise(em, [dy, x], lambda d, v: em.select(v.gt(0.0), d, d * slope))


@lowers("aten._prelu_kernel")
def prelu(em: Emitter, x: Value, weight: Value) -> Value:
    """x above 0, weight · x elsewhere."""
    return pointwise(em, [x, weight], lambda v, w: em.select(v.gt(0.0), v, v * w))


@lowers("aten._prelu_kernel_backward")
def prelu_backward(em: Emitter, dy: Value, x: Value, weight: Value) -> tuple[Value, Value]:
    """Gradients of x and, elementwise, of the weight, which ATen sums."""
    dx = pointwise(em, [dy, x, weight], lambda d, v, w: em.select(v.gt(0.0), d, d * w))
    dw = pointwise(em, [dy, x], lambda d, v: em.select(v.gt(0.0), 0.0, d * v))
    return dx, dw


@lowers("aten.elu")
def elu(em: Emitter, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    """scale · x above 0, scale · alpha · (e^(x · input_scale) − 1) elsewhere."""

    def body(v: Value) -> Value:
        tail = em("expm1", v * input_scale) * alpha * scale
        return em.select(v.gt(0.0), v * scale, tail)

    return pointwise(em, [x], body)


@lowers("aten.elu_backward")
def elu_backward(
    em: Emitter, dy: Value, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Value
) -> Value:
    """The gradient of `elu`. is_result: `x` is the result rather than the input."""

    def body(d: Value, v: Value) -> Value:
        if is_result:
            tail = d * input_scale * (v + alpha * scale)
        else:
            tail = d * (input_scale * alpha * scale) * em("exp", v * input_scale)
        return em.select(v.gt(0.0), d * scale, tail)  # NaN at NaN

    return pointwise(em, [dy, x], body)


@lowers("aten.softplus")
def softplus(em: Emitter, x: Value, beta: Any = 1, limit: Any = 20) -> Value:
    """log(1 + e^(beta · x)) / beta; x where beta · x is above the limit."""

    def body(v: Value) -> Value:
        scaled = v * beta
        return em.select(scaled.gt(limit), v, em("log1p", em("exp", scaled)) / beta)

    return pointwise(em, [x], body)


@lowers("aten.softplus_backward")
def softplus_backward(em: Emitter, dy: Value, x: Value, beta: Any, limit: Any) -> Value:
    """dy · sigmoid(beta · x); dy above the limit."""

    def body(d: Value, v: Value) -> Value:
        scaled = v * beta
        return em.select(scaled.gt(limit), d, d * em("sigmoid", scaled))

    return pointwise(em, [dy, x], body)


@lowers("aten.sigmoid_backward")
def sigmoid_backward(em: Emitter, dy: Value, y: Value) -> Value:
    """dy · (1 − y) · y, of the result y."""
    return pointwise(em, [dy, y], lambda d, v: d * ((1.0 - v) * v))


@lowers("aten.tanh_backward")
def tanh_backward(em: Emitter, dy: Value, y: Value) -> Value:
    """dy · (1 − y²), of the result y."""
    return pointwise(em, [dy, y], lambda d, v: d * (1.0 - v * v))


@lowers("aten.logit_backward")
def logit_backward(em: Emitter, dy: Value, x: Value, eps: float | None = None) -> Value:
    """dy / (x · (1 − x)); outside [eps, 1 − eps] 0, outside [0, 1] NaN where eps is not given."""

    def body(d: Value, v: Value) -> Value:
        if eps is None:  # infinity at -0.0, too
            inside = d / (em("abs", v) * (1.0 - v))
            return em.select(v.lt(0.0) | v.gt(1.0), math.nan, inside)
        inside = d / (v * (1.0 - v))
        return em.select(v.ge(eps) & v.le(1 - eps), inside, 0.0)  # 0 at NaN

    return pointwise(em, [dy, x], body)


@lowers("aten.log_sigmoid_forward")
def log_sigmoid_forward(em: Emitter, x: Value) -> tuple[Value, Value]:
    """min(x, 0) − log(1 + e^−|x|), and the buffer that ATen's backward takes."""

    def body(v: Value) -> Value:
        return em.minimum(v, 0.0) - em("log1p", em("exp", -em("abs", v)))

    y = pointwise(em, [x], body)
    want = em.current_results[1]
    if want is not None and tuple(want.shape) != x.shape:
        return y, em.full(0, want.shape, x.dtype)
    return y, pointwise(em, [x], lambda v: em("exp", -em("abs", v)))


@lowers("aten.log_sigmoid_backward")
def log_sigmoid_backward(em: Emitter, dy: Value, x: Value, buffer: Value) -> Value:
    """dy · sigmoid(−x); the buffer is not needed."""
    return pointwise(em, [dy, x], lambda d, v: d * em("sigmoid", -v))


@lowers("aten.silu")
def silu(em: Emitter, x: Value) -> Value:
    """x · sigmoid(x)."""
    return pointwise(em, [x], lambda v: v * em("sigmoid", v))


@lowers("aten.silu_backward")
def silu_backward(em: Emitter, dy: Value, x: Value) -> Value:
    """dy · s · (1 + x · (1 − s)), s = sigmoid(x)."""

    def body(d: Value, v: Value) -> Value:
        s = em("sigmoid", v)
        return d * s * (1.0 + v * (1.0 - s))

    return pointwise(em, [dy, x], body)


@lowers("aten.mish")
def mish(em: Emitter, x: Value) -> Value:
    """x · tanh(log(1 + eˣ))."""
    return pointwise(em, [x], lambda v: v * em("tanh", em("log1p", em("exp", v))))


@lowers("aten.mish_backward")
def mish_backward(em: Emitter, dy: Value, x: Value) -> Value:
    """The gradient of `mish`."""

    def body(d: Value, v: Value) -> Value:
        s = em("sigmoid", v)
        t = em("tanh", em("log1p", em("exp", v)))
        return d * (t + v * s * (1.0 - t * t))

    return pointwise(em, [dy, x], body)


@lowers("aten.hardsigmoid")
def hardsigmoid(em: Emitter, x: Value) -> Value:
    """min(max(x + 3, 0), 6) / 6."""
    return pointwise(em, [x], lambda v: em.minimum(em.maximum(v + 3.0, 0.0), 6.0) / 6.0)


@lowers("aten.hardsigmoid_backward")
def hardsigmoid_backward(em: Emitter, dy: Value, x: Value) -> Value:
    """dy / 6 where −3 < x < 3."""
    return pointwise(em, [dy, x], lambda d, v: em.select(v.gt(-3.0) & v.lt(3.0), d * _SIXTH, 0.0))


@lowers("aten.hardswish")
def hardswish(em: Emitter, x: Value) -> Value:
    """x · min(max(x + 3, 0), 6) / 6."""
    return pointwise(em, [x], lambda v: v * em.minimum(em.maximum(v + 3.0, 0.0), 6.0) / 6.0)


@lowers("aten.hardswish_backward")
def hardswish_backward(em: Emitter, dy: Value, x: Value) -> Value:
    """0 up to −3, dy · (x / 3 + 1/2) below 3, dy from there on."""

    def body(d: Value, v: Value) -> Value:
        middle = em.select(v.ge(3.0), d, d * (v / 3.0 + 0.5))  # NaN at NaN
        return em.select(v.le(-3.0), 0.0, middle)

    return pointwise(em, [dy, x], body)


@lowers("aten.hardshrink")
def hardshrink(em: Emitter, x: Value, limit: Any = 0.5) -> Value:
    """0 where |x| ≤ limit, x elsewhere."""
    return pointwise(em, [x], lambda v: em.select(v.ge(-limit) & v.le(limit), 0.0, v))


@lowers("aten.hardshrink_backward", "aten.softshrink_backward")
def shrink_backward(em: Emitter, dy: Value, x: Value, limit: Any) -> Value:
    """`dy` where |x| is above the limit."""
    return pointwise(em, [dy, x], lambda d, v: em.select(v.lt(-limit) | v.gt(limit), d, 0.0))


@lowers("aten.softshrink")
def softshrink(em: Emitter, x: Value, limit: Any = 0.5) -> Value:
    """x moved towards 0 by the limit; 0 within it; NaN stays."""

    def body(v: Value) -> Value:
        shrunk = em.select(v.lt(-limit), v + limit, em.select(em("is_nan", v), v, 0.0))
        return em.select(v.gt(limit), v - limit, shrunk)

    return pointwise(em, [x], body)


@lowers("aten.gelu")
def gelu(em: Emitter, x: Value, approximate: str = "none") -> Value:
    """x · Φ(x), by erf; by tanh where approximate is "tanh". Source: Hendrycks and Gimpel, 2016."""

    def body(v: Value) -> Value:
        if approximate == "tanh":
            inner = _GELU_BETA * (v + _GELU_CUBE * (v * v * v))
            return 0.5 * v * (1.0 + em("tanh", inner))
        return v * 0.5 * (1.0 + em("erf", v * _SQRT_HALF))

    return pointwise(em, [x], body)


@lowers("aten.gelu_backward")
def gelu_backward(em: Emitter, dy: Value, x: Value, approximate: str = "none") -> Value:
    """The gradient of `gelu`."""

    def body(d: Value, v: Value) -> Value:
        if approximate == "tanh":
            inner = _GELU_BETA * (v + _GELU_CUBE * (v * v * v))
            t = em("tanh", inner)
            slope = _GELU_BETA * (1.0 + (3 * _GELU_CUBE) * (v * v))
            return d * (0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * slope)
        cdf = 0.5 * (1.0 + em("erf", v * _SQRT_HALF))
        pdf = em("exp", v * v * -0.5) * (0.5 * _GELU_BETA)
        return d * (cdf + v * pdf)

    return pointwise(em, [dy, x], body)


def _halves(em: Emitter, x: Value, dim: int) -> tuple[Value, Value]:
    half = x.shape[dim] // 2
    return em.slice(x, dim, 0, half), em.slice(x, dim, half, 2 * half)


@lowers("aten.glu")
def glu(em: Emitter, x: Value, dim: int = -1) -> Value:
    """The first half of `x` along `dim` times the sigmoid of the second half."""
    a, b = _halves(em, x, dim % x.rank)
    return pointwise(em, [a, b], lambda v, w: v * em("sigmoid", w))


@lowers("aten.glu_backward")
def glu_backward(em: Emitter, dy: Value, x: Value, dim: int) -> Value:
    """The gradient of `glu`, with the shape of `x`."""
    dim %= x.rank
    a, b = _halves(em, x, dim)
    da = pointwise(em, [dy, b], lambda d, w: d * em("sigmoid", w))

    def gate(d: Value, v: Value, w: Value) -> Value:
        s = em("sigmoid", w)
        return d * v * (s * (1.0 - s))

    return em.concatenate([da, pointwise(em, [dy, a, b], gate)], dim)
