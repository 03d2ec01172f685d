"""Batch, layer, group and RMS normalization, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .dtypes import Unsupported
from .emitter import Emitter, Value
from .registry import lowers

# -- batch normalization


def _channel(em: Emitter, v: Value, like: Value) -> Value:
    """A per-channel value spread over `like`."""
    return em.broadcast(v, like.shape, (1,))


def _batch_statistics(em: Emitter, x: Value) -> tuple[Value, Value, int]:
    """Mean and (biased) variance per channel in one pass: two sibling sums of x - K.

    K is the channel's first element; a shift close to the data keeps the difference of
    the two sums exact enough where a plain sum of squares would cancel. It is read before x is
    made wider: only kernels may read what is wider than what is stored.
    """
    dims = [d for d in range(x.rank) if d != 1]
    count = math.prod(x.shape[d] for d in dims)
    if count == 0:
        raise Unsupported("statistics of nothing")
    channels = x.shape[1]
    first = em(
        "slice", x, starts=(0,) * x.rank, limits=(1, channels) + (1,) * (x.rank - 2),
        strides=(1,) * x.rank,
    ).reshape((channels,)).compute()  # fmt: skip
    v = x.compute()
    shifted = v - _channel(em, first, v)
    s1 = shifted.exact_sum(dims) / count
    s2 = (shifted * shifted).exact_sum(dims) / count
    mean = first.to("f64") + s1
    var = em.maximum(s2 - s1 * s1, 0.0)
    return mean, var, count


def _normalized(
    em: Emitter, x: Value, mean: Value, rstd: Value, weight: Value | None, bias: Value | None
) -> Value:
    scale = rstd if weight is None else rstd * weight.to(rstd.dtype)
    y = (x - _channel(em, mean, x)) * _channel(em, scale, x)
    return y if bias is None else y + _channel(em, bias.to(x.dtype), x)


def _train(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value, Value, int]:
    """The result, mean, 1 / standard deviation, variance, and how many elements each is of.

    The result is x · scale + shift, rounded once. The shift is what the rounded scale asks for, from the
    mean as it was summed up, so it alone depends on how far the mean is from zero.
    """
    v = x.compute()
    mean, var, count = _batch_statistics(em, x)
    var = var.to(v.dtype)  # infinite where it is too large, as in PyTorch
    rstd = em("rsqrt", var.to(mean.dtype) + eps)
    scale = (rstd if weight is None else rstd * weight.to(rstd.dtype)).to(v.dtype)
    shift = -(mean * scale.to(mean.dtype))
    if bias is not None:
        shift = shift + bias.to(mean.dtype)
    y = em("fma", v, _channel(em, scale, v), _channel(em, shift.to(v.dtype), v)).to(x.dtype)
    return y, mean.to(v.dtype), rstd.to(v.dtype), var, count


def _evaluate(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value,
    eps: float,
) -> Value:  # fmt: skip
    v = x.compute()
    rstd = em("rsqrt", var.to(v.dtype) + eps)
    return _normalized(em, v, mean.to(v.dtype), rstd, weight, bias).to(x.dtype)


def _updated(em: Emitter, running: Value, value: Value, momentum: Any) -> Value:
    old = running.to(value.dtype)
    return (value * momentum + old * (1 - momentum)).to(running.dtype)


def _unbiased(em: Emitter, var: Value, count: int) -> Value:
    factor = em.quotient(count, count - 1)
    return var * (factor.to(var.dtype) if isinstance(factor, Value) else factor)


def _unsaved(em: Emitter, index: int) -> Value:
    """A saved statistic that nothing computed: PyTorch gives an empty tensor."""
    want = em.current_results[index]
    return em.full(0, want.shape, "f32")


@lowers("aten._native_batch_norm_legit_functional")
def batch_norm_functional(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, running_mean: Value,
    running_var: Value, training: bool, momentum: Any, eps: float,
) -> Any:  # fmt: skip
    if not training:
        y = _evaluate(em, x, weight, bias, running_mean, running_var, eps)
        return y, _unsaved(em, 1), _unsaved(em, 2), running_mean, running_var
    y, mean, rstd, var, count = _train(em, x, weight, bias, eps)
    new_mean = _updated(em, running_mean, mean, momentum)
    new_var = _updated(em, running_var, _unbiased(em, var, count), momentum)
    return y, mean, rstd, new_mean, new_var


@lowers("aten._batch_norm_with_update_functional")
def batch_norm_with_update(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, running_mean: Value,
    running_var: Value, momentum: Any, eps: float,
) -> Any:  # fmt: skip
    y, mean, rstd, new_mean, new_var = batch_norm_functional(
        em, x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return y, mean, rstd, _unsaved(em, 3).to("ui8"), new_mean, new_var


@lowers("aten._batch_norm_no_update")
def batch_norm_no_update(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value,
    momentum: Any, eps: float,
) -> Any:  # fmt: skip
    y = _evaluate(em, x, weight, bias, mean, var, eps)
    return y, _unsaved(em, 1), _unsaved(em, 2), _unsaved(em, 3).to("ui8")


@lowers("aten._native_batch_norm_legit_no_training")
def batch_norm_eval(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value,
    momentum: Any, eps: float,
) -> Any:  # fmt: skip
    y = _evaluate(em, x, weight, bias, mean, var, eps)
    return y, _unsaved(em, 1), _unsaved(em, 2)


@lowers("aten.native_batch_norm")
def native_batch_norm(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, mean: Value | None,
    var: Value | None, training: bool, momentum: Any, eps: float,
) -> Any:  # fmt: skip
    if training or mean is None or var is None:
        return _train(em, x, weight, bias, eps)[:3]
    return batch_norm_eval(em, x, weight, bias, mean, var, momentum, eps)


@lowers("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: Any,
    eps: float,
) -> Any:  # fmt: skip
    return _train(em, x, weight, bias, eps)[:3]


@lowers("aten.native_batch_norm_backward")
def native_batch_norm_backward(
    em: Emitter, dy: Value, x: Value, weight: Value | None, running_mean: Value | None,
    running_var: Value | None, save_mean: Value | None, save_rstd: Value | None, train: bool,
    eps: float, output_mask: Any,
) -> Any:  # fmt: skip
    v, d = x.compute(), dy.compute()
    dims = [i for i in range(x.rank) if i != 1]
    count = math.prod(x.shape[i] for i in dims)
    if count == 0:
        raise Unsupported("statistics of nothing")
    if train:
        assert save_mean is not None
        assert save_rstd is not None
        mean, rstd = save_mean.to(v.dtype), save_rstd.to(v.dtype)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, rstd = running_mean.to(v.dtype), em("rsqrt", running_var.to(v.dtype) + eps)
    scale = rstd if weight is None else rstd * weight.to(v.dtype)
    centred = v - _channel(em, mean, v)
    sum_dy = d.exact_sum(dims)
    sum_dy_xmu = (d * centred).exact_sum(dims)
    wide = sum_dy.dtype
    # All three whatever the mask says: PyTorch's shape rule gives some of the masked ones too.
    dw, db = (sum_dy_xmu * rstd.to(wide)).to(v.dtype), sum_dy.to(v.dtype)
    if not train:
        return (d * _channel(em, scale, v)).to(x.dtype), dw, db
    # dx = (dy - mean(dy) - (x - mean) · slope) · scale, as dy · scale + (x · tilt + shift), rounded twice
    slope = rstd.to(wide) * rstd.to(wide) * (sum_dy_xmu / count)
    tilt = (-(slope * scale.to(wide))).to(v.dtype)
    shift = (-(tilt.to(wide) * mean.to(wide)) - sum_dy / count * scale.to(wide)).to(v.dtype)
    rest = em("fma", v, _channel(em, tilt, v), _channel(em, shift, v))
    return em("fma", d, _channel(em, scale, v), rest).to(x.dtype), dw, db


@lowers("aten.batch_norm_backward")
def batch_norm_backward(
    em: Emitter, dy: Value, x: Value, weight: Value, running_mean: Value | None,
    running_var: Value | None, save_mean: Value | None, save_rstd: Value | None, update: bool,
    eps: float, output_mask: Any, reserve: Value,
) -> Any:  # fmt: skip
    return native_batch_norm_backward(
        em, dy, x, weight, running_mean, running_var, save_mean, save_rstd, update, eps, output_mask
    )


# -- layer and RMS normalization


def _inner(x: Value, shape: Sequence[int]) -> list[int]:
    return list(range(x.rank - len(shape), x.rank))


@lowers("aten.native_layer_norm")
def native_layer_norm(
    em: Emitter, x: Value, shape: Any, weight: Value | None, bias: Value | None, eps: float
) -> Any:
    v = x.compute()
    dims = _inner(x, shape)
    mean = em.mean(v, dims, keepdim=True)
    centred = v - mean
    rstd = em("rsqrt", em.mean(centred * centred, dims, keepdim=True) + eps)
    y = centred * rstd
    if weight is not None:
        y = y * weight.to(v.dtype)
    if bias is not None:
        y = y + bias.to(v.dtype)
    return y.to(x.dtype), mean, rstd


@lowers("aten.native_layer_norm_backward")
def native_layer_norm_backward(
    em: Emitter, dy: Value, x: Value, shape: Any, mean: Value, rstd: Value, weight: Value | None,
    bias: Value | None, output_mask: Any,
) -> Any:  # fmt: skip
    v, d = x.compute(), dy.compute()
    dims = _inner(x, shape)
    outer = range(x.rank - len(dims))
    rstd = rstd.to(v.dtype)
    hat = (v - mean.to(v.dtype)) * rstd
    dx = dw = db = None
    if output_mask[0]:
        g = d if weight is None else d * weight.to(v.dtype)
        m1, m2 = em.mean(g, dims, keepdim=True), em.mean(g * hat, dims, keepdim=True)
        dx = ((g - m1 - hat * m2) * rstd).to(x.dtype)
    if output_mask[1] and weight is not None:
        dw = (d * hat).sum(outer)
    if output_mask[2] and bias is not None:
        db = d.sum(outer)
    return dx, dw, db


def _rms_eps(x: Value, eps: float | None) -> float:
    return eps if eps is not None else 2.220446049250313e-16 if x.dtype == "f64" else 2**-23


@lowers("aten._fused_rms_norm")
def rms_norm(em: Emitter, x: Value, shape: Any, weight: Value | None, eps: float | None) -> Any:
    v = x.compute()
    dims = _inner(x, shape)
    rstd = em("rsqrt", em.mean(v * v, dims, keepdim=True) + _rms_eps(v, eps))
    y = v * rstd
    return (y if weight is None else y * weight.to(v.dtype)).to(x.dtype), rstd


@lowers("aten._fused_rms_norm_backward")
def rms_norm_backward(
    em: Emitter, dy: Value, x: Value, shape: Any, rstd: Value, weight: Value | None,
    output_mask: Any,
) -> Any:  # fmt: skip
    v, d = x.compute(), dy.compute()
    dims = _inner(x, shape)
    rstd = rstd.to(v.dtype)
    hat = v * rstd
    dx = dw = None
    if output_mask[0]:
        g = d if weight is None else d * weight.to(v.dtype)
        dx = ((g - hat * em.mean(g * hat, dims, keepdim=True)) * rstd).to(x.dtype)
    if output_mask[1] and weight is not None:
        dw = (d * hat).sum(range(x.rank - len(dims)))
    return dx, dw


# -- group normalization
#
# Sums go channel by channel and groups are made of those, which are few: so the large tensor is walked in whatever
# layout it has, once for the sums and once for the result, as in batch normalization.


def _by_channel(em: Emitter, v: Value, like: Value) -> Value:
    """A value for each sample and channel spread over `like`."""
    return em.broadcast(v, like.shape, (0, 1))


def _spatial(x: Value) -> Value:
    """An activation with at least one dimension after its channels."""
    return x if x.rank > 2 else x.reshape((*x.shape, 1))


def _sample(em: Emitter, x: Value) -> Value:
    """The first element of each channel: near what a sum of the channel is taken of."""
    ends = (*x.shape[:2], *(1,) * (x.rank - 2))
    first = em("slice", x, starts=(0,) * x.rank, limits=ends, strides=(1,) * x.rank)
    return first.reshape(x.shape[:2])


@lowers("aten.native_group_norm")
def native_group_norm(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, n: int, c: int, hw: int,
    groups: int, eps: float,
) -> Any:  # fmt: skip
    if x.numel == 0:
        raise Unsupported("statistics of nothing")
    v = _spatial(x.compute())
    grouped, dims = (n, groups, c // groups), range(2, v.rank)
    k = _sample(em, _spatial(x)).compute()
    shifted = v - _by_channel(em, k, v)
    s1, s2 = shifted.sum(dims) / hw, (shifted * shifted).sum(dims) / hw
    centre = k + s1
    means, variances = centre.reshape(grouped), em.maximum(s2 - s1 * s1, 0.0).reshape(grouped)
    mean = em.mean(means, [2], keepdim=True)
    off = means - mean
    rstd = em("rsqrt", em.mean(variances + off * off, [2], keepdim=True) + eps)
    scale = em.broadcast(rstd.reshape((n, groups)), grouped, (0, 1))
    if weight is not None:
        scale = scale * weight.to(v.dtype).reshape(grouped[1:])
    shift = off * scale
    if bias is not None:
        shift = shift + bias.to(v.dtype).reshape(grouped[1:])
    y = (v - _by_channel(em, centre, v)) * _by_channel(em, scale.reshape((n, c)), v)
    y = y + _by_channel(em, shift.reshape((n, c)), v)
    return y.reshape(x.shape).to(x.dtype), mean.reshape((n, groups)), rstd.reshape((n, groups))


@lowers("aten.native_group_norm_backward")
def native_group_norm_backward(
    em: Emitter, dy: Value, x: Value, mean: Value, rstd: Value, weight: Value | None, n: int,
    c: int, hw: int, groups: int, output_mask: Any,
) -> Any:  # fmt: skip
    if x.numel == 0:
        raise Unsupported("statistics of nothing")
    v, d = _spatial(x.compute()), _spatial(dy.compute())
    grouped, dims = (n, groups, c // groups), range(2, v.rank)
    mean = mean.to(v.dtype).reshape((n, groups, 1))
    rstd = rstd.to(v.dtype).reshape((n, groups, 1))
    k = _sample(em, _spatial(x)).compute()
    shifted = v - _by_channel(em, k, v)
    off = k.reshape(grouped) - mean
    sum_d = d.sum(dims).reshape(grouped)
    sum_d_hat = ((d * shifted).sum(dims).reshape(grouped) + off * sum_d) * rstd
    dx = dw = db = None
    if output_mask[0]:
        w = em.full(1, grouped[1:], v.dtype) if weight is None else weight.to(v.dtype)
        w = w.reshape((1, *grouped[1:]))
        count = c // groups * hw
        m1 = (sum_d * w).sum([2], keepdim=True) / count
        m2 = (sum_d_hat * w).sum([2], keepdim=True) / count
        slope = m2 * rstd * rstd
        spread = [scale.reshape((n, c)) for scale in (
            em.broadcast(rstd, grouped) * em.broadcast(w, grouped),
            em.broadcast(slope, grouped),
            m1 * rstd + slope * off,
        )]  # fmt: skip
        scale, slopes, shift = (_by_channel(em, s, v) for s in spread)
        dx = (d * scale - shifted * slopes - shift).reshape(x.shape).to(x.dtype)
    if output_mask[1]:
        dw = sum_d_hat.sum([0]).reshape((c,))
    if output_mask[2]:
        db = sum_d.sum([0]).reshape((c,))
    return dx, dw, db
