"""Batch, layer, group and RMS normalization, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gflow.dialects.extents import varies

from ...dtypes import Unsupported
from ...emitter import Emitter, Value
from ...registry import lowers

# -- batch normalization


def _channel(em: Emitter, v: Value, like: Value) -> Value:
    """A per-channel value spread over `like`."""
    return em.broadcast(v, like.shape, (1,))


#: elements of a channel that stand for all of it; a power of two, so that equal ones have their own mean
_SAMPLES = 4


def _typical(em: Emitter, x: Value, dims: Sequence[int]) -> Value:
    """The mean of some elements that are spread over `dims`, in the other dimensions' shape.

    They are read before x is converted to a wider type, since a wider value has no buffer outside of kernels.
    """
    kept = tuple(s for d, s in enumerate(x.shape) if d not in dims)
    found: list[tuple[tuple[int, ...], Value]] = []
    for i in range(_SAMPLES):
        at = [0 if varies(s) else s * i // _SAMPLES for s in x.shape]
        starts = tuple(a if d in dims else 0 for d, a in enumerate(at))
        limits = tuple(a + 1 if d in dims else s for d, (a, s) in enumerate(zip(at, x.shape)))
        if starts not in [s for s, _ in found]:
            part = em("slice", x, starts=starts, limits=limits, strides=(1,) * x.rank)
            found.append((starts, part.reshape(kept).compute()))
    parts = [part for _, part in found[: 1 << (len(found).bit_length() - 1)]]
    share = 1 / len(parts)  # of each part before they are added: their sum may be too large
    if len(parts) > 1:
        parts = [
            em("fma", b, em.full(share, b.shape, b.dtype), a * share)
            for a, b in zip(parts[::2], parts[1::2])
        ]
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2])]
    return parts[0]


def _moments(em: Emitter, x: Value, dims: Sequence[int]) -> tuple[Value, Value]:
    """Mean and (biased) variance over `dims`, in one pass: two sibling sums of x - k; float64.

    k is near the mean, so the difference of the two sums loses no more than a digit, where plain
    sums of squares would cancel; and the sums come unrounded. An infinite k is replaced by zero: the mean of values
    with an infinity is infinite, as in PyTorch, and inf - inf is not.
    """
    count = math.prod(x.shape[d] for d in dims)
    if x.numel == 0:
        raise Unsupported("statistics of nothing")
    v, k = x.compute(), _typical(em, x, dims)
    k = em.select(em("abs", k).lt(math.inf), k, 0.0)
    kept = [d for d in range(x.rank) if d not in dims]
    shifted = v - em.broadcast(k, v.shape, kept)
    s1 = shifted.exact_sum(dims) / count
    s2 = (shifted * shifted).exact_sum(dims) / count
    return k.to(s1.dtype) + s1, em.maximum(s2 - s1 * s1, 0.0)


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

    The result is (x - centre) · scale + shift. The centre is the mean where that is far from zero, so that the
    difference is exact; else zero. The shift is what is then left of the unrounded mean. So no rounding is larger
    than the result's own, and equal values give exactly the bias.
    """
    v = x.compute()
    dims = [d for d in range(x.rank) if d != 1]
    mean, var = _moments(em, x, dims)
    var = var.to(v.dtype)  # infinite where it is too large, as in PyTorch
    rstd = em("rsqrt", var.to(mean.dtype) + eps)
    scale = (rstd if weight is None else rstd * weight.to(rstd.dtype)).to(v.dtype)
    spread = [_channel(em, s, v) for s in _shifted(em, mean, var, scale, bias)]
    y = em("fma", v - spread[0], spread[1], spread[2]).to(x.dtype)
    count = math.prod(x.shape[d] for d in dims)
    return y, mean.to(v.dtype), rstd.to(v.dtype), var, count


def _shifted(
    em: Emitter, mean: Value, var: Value, scale: Value, bias: Value | None
) -> tuple[Value, Value, Value]:
    """Centre, scale and shift of a normalization, in the type of `scale`. mean: float64, as it was summed up."""
    wide = mean.dtype
    centre = em.select((mean * mean).gt(var.to(wide)), mean.to(scale.dtype), 0.0)
    shift = (centre.to(wide) - mean) * scale.to(wide)
    if bias is not None:
        shift = shift + bias.to(wide)
    return centre, scale, shift.to(scale.dtype)


def _evaluate(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value,
    eps: float,
) -> Value:  # fmt: skip
    v = x.compute()
    rstd = em("rsqrt", var.to(v.dtype) + eps)
    return _normalized(em, v, mean.to(v.dtype), rstd, weight, bias).to(x.dtype)


def _updated(running: Value, value: Value, momentum: Any) -> Value:
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
    """Batch norm with its saved statistics and the new running ones, as values."""
    if not training:
        y = _evaluate(em, x, weight, bias, running_mean, running_var, eps)
        return y, _unsaved(em, 1), _unsaved(em, 2), running_mean, running_var
    y, mean, rstd, var, count = _train(em, x, weight, bias, eps)
    new_mean = _updated(running_mean, mean, momentum)
    new_var = _updated(running_var, _unbiased(em, var, count), momentum)
    return y, mean, rstd, new_mean, new_var


@lowers("aten._batch_norm_with_update_functional")
def batch_norm_with_update(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, running_mean: Value,
    running_var: Value, momentum: Any, eps: float,
) -> Any:  # fmt: skip
    """`batch_norm_functional` in training, with cuDNN's reserve, which is empty."""
    y, mean, rstd, new_mean, new_var = batch_norm_functional(
        em, x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return y, mean, rstd, _unsaved(em, 3).to("ui8"), new_mean, new_var


@lowers("aten._batch_norm_no_update")
def batch_norm_no_update(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value,
    momentum: Any, eps: float,
) -> Any:  # fmt: skip
    """Batch norm by running statistics, with cuDNN's reserve, which is empty."""
    y = _evaluate(em, x, weight, bias, mean, var, eps)
    return y, _unsaved(em, 1), _unsaved(em, 2), _unsaved(em, 3).to("ui8")


@lowers("aten._native_batch_norm_legit_no_training")
def batch_norm_eval(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value,
    momentum: Any, eps: float,
) -> Any:  # fmt: skip
    """Batch norm by running statistics."""
    y = _evaluate(em, x, weight, bias, mean, var, eps)
    return y, _unsaved(em, 1), _unsaved(em, 2)


@lowers("aten.native_batch_norm")
def native_batch_norm(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, mean: Value | None,
    var: Value | None, training: bool, momentum: Any, eps: float,
) -> Any:  # fmt: skip
    """Batch norm by the batch's statistics in training or without running ones, otherwise by running
    statistics."""
    if training or mean is None or var is None:
        return _train(em, x, weight, bias, eps)[:3]
    return batch_norm_eval(em, x, weight, bias, mean, var, momentum, eps)


@lowers("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: Any,
    eps: float,
) -> Any:  # fmt: skip
    """Batch norm by the batch's statistics."""
    return _train(em, x, weight, bias, eps)[:3]


@lowers("aten.native_batch_norm_backward")
def native_batch_norm_backward(
    em: Emitter, dy: Value, x: Value, weight: Value | None, running_mean: Value | None,
    running_var: Value | None, save_mean: Value | None, save_rstd: Value | None, train: bool,
    eps: float, output_mask: Any,
) -> Any:  # fmt: skip
    """Gradients of x, weight and bias, as far as output_mask wants them.

    Raises:
        Unsupported: a batch without elements.
    """
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
    minus = -scale.to(wide)
    tilt = (slope * minus).to(v.dtype)
    shift = (sum_dy / count * minus - tilt.to(wide) * mean.to(wide)).to(v.dtype)
    rest = em("fma", v, _channel(em, tilt, v), _channel(em, shift, v))
    return em("fma", d, _channel(em, scale, v), rest).to(x.dtype), dw, db


@lowers("aten.batch_norm_backward")
def batch_norm_backward(
    em: Emitter, dy: Value, x: Value, weight: Value, running_mean: Value | None,
    running_var: Value | None, save_mean: Value | None, save_rstd: Value | None, update: bool,
    eps: float, output_mask: Any, reserve: Value,
) -> Any:  # fmt: skip
    """`native_batch_norm_backward`; cuDNN's reserve is not needed."""
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
    """The norm over the last dimensions, and their mean and 1 / standard deviation, in float32 for half precision."""
    v = x.compute()
    dims = _inner(x, shape)
    count = math.prod(x.shape[d] for d in dims)
    near = em.mean(v, dims, keepdim=True)
    centred = v - near
    # what rounding took from the mean: equal values are exactly their mean
    rest = centred.exact_sum(dims, keepdim=True) / count
    square = (centred * centred).exact_sum(dims, keepdim=True) / count
    rstd = em("rsqrt", em.maximum(square - rest * rest, 0.0).to(v.dtype) + eps)
    mean = (near.to(rest.dtype) + rest).to(v.dtype)
    y = (centred - rest.to(v.dtype)) * rstd
    if weight is not None and bias is not None:
        scale, shift = (em.broadcast(p.to(v.dtype), v.shape, dims) for p in (weight, bias))
        y = em("fma", y, scale, shift)
    elif weight is not None:
        y = y * weight.to(v.dtype)
    elif bias is not None:
        y = y + bias.to(v.dtype)
    return y.to(x.dtype), mean, rstd


@lowers("aten.native_layer_norm_backward")
def native_layer_norm_backward(
    em: Emitter, dy: Value, x: Value, shape: Any, mean: Value, rstd: Value, weight: Value | None,
    bias: Value | None, output_mask: Any,
) -> Any:  # fmt: skip
    """Gradients of x, weight and bias, as far as output_mask wants them."""
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
    """x / √(mean of x² + eps) · weight over the last dimensions, and the factor."""
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
    """Gradients of x and weight, as far as output_mask wants them."""
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


@lowers("aten.native_group_norm")
def native_group_norm(
    em: Emitter, x: Value, weight: Value | None, bias: Value | None, n: int, c: int, hw: int,
    groups: int, eps: float,
) -> Any:  # fmt: skip
    """The norm over groups of channels, and their mean and 1 / standard deviation: [n, groups]."""
    v = _spatial(x.compute())
    grouped = (n, groups, c // groups)
    centres, variances = _moments(em, _spatial(x), range(2, v.rank))
    means = centres.reshape(grouped)
    wide = means.dtype
    mean = em.mean(means, [2], keepdim=True)
    off = means - mean
    var = em.mean(variances.reshape(grouped) + off * off, [2], keepdim=True).to(v.dtype)
    rstd = em("rsqrt", var.to(wide) + eps)
    scale = em.broadcast(rstd, grouped)
    if weight is not None:
        scale = scale * weight.to(wide).reshape(grouped[1:])
    if bias is not None:
        bias = em.broadcast(bias.reshape((1, *grouped[1:])), grouped)
    parts = _shifted(
        em, em.broadcast(mean, grouped), em.broadcast(var, grouped), scale.to(v.dtype), bias
    )
    spread = [_by_channel(em, s.reshape((n, c)), v) for s in parts]
    y = em("fma", v - spread[0], spread[1], spread[2]).reshape(x.shape).to(x.dtype)
    mean, rstd = (s.reshape((n, groups)).to(v.dtype) for s in (mean, rstd))
    return y, mean, rstd


@lowers("aten.native_group_norm_backward")
def native_group_norm_backward(
    em: Emitter, dy: Value, x: Value, mean: Value, rstd: Value, weight: Value | None, n: int,
    c: int, hw: int, groups: int, output_mask: Any,
) -> Any:  # fmt: skip
    """Gradients of x, weight and bias, as far as output_mask wants them."""
    if x.numel == 0:
        dtype = x.compute().dtype
        statistics = math.nan if n and not hw else 0  # of nothing
        return (
            em.full(0, x.shape, x.dtype),
            em.full(statistics, (c,), dtype),
            em.full(0, (c,), dtype),
        )
    v, d = _spatial(x.compute()), _spatial(dy.compute())
    grouped, dims = (n, groups, c // groups), range(2, v.rank)
    mean = mean.to(v.dtype).reshape((n, groups, 1))
    rstd = rstd.to(v.dtype).reshape((n, groups, 1))
    centre = em.broadcast(mean, grouped).reshape((n, c))
    sum_d = d.exact_sum(dims).reshape(grouped)
    wide = sum_d.dtype
    sum_d_xmu = (d * (v - _by_channel(em, centre, v))).exact_sum(dims).reshape(grouped)
    sum_d_hat = sum_d_xmu * rstd.to(wide)
    dx = dw = db = None
    if output_mask[0]:
        # dx = (dy · weight - m1 - hat · m2) · rstd, as dy · scale + (x · tilt + shift), rounded twice
        w = em.full(1, grouped[1:], wide) if weight is None else weight.to(wide)
        w = w.reshape((1, *grouped[1:]))
        count, r = c // groups * hw, rstd.to(wide)
        m1 = (sum_d * w).sum([2], keepdim=True) / count
        m2 = (sum_d_hat * w).sum([2], keepdim=True) / count
        tilt = (-(m2 * r * r)).to(v.dtype)
        shift = (-(tilt.to(wide) * mean.to(wide)) - m1 * r).to(v.dtype)
        scale = (em.broadcast(r, grouped) * em.broadcast(w, grouped)).to(v.dtype)
        spread = [em.broadcast(s, grouped).reshape((n, c)) for s in (scale, tilt, shift)]
        scale, tilt, shift = (_by_channel(em, s, v) for s in spread)
        dx = em("fma", d, scale, em("fma", v, tilt, shift)).reshape(x.shape).to(x.dtype)
    if output_mask[1]:
        dw = sum_d_hat.sum([0]).reshape((c,)).to(v.dtype)
    if output_mask[2]:
        db = sum_d.sum([0]).reshape((c,)).to(v.dtype)
    return dx, dw, db
