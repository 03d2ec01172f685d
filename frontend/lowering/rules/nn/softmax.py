"""Softmax and log-softmax, forward and backward."""

from __future__ import annotations

import math
from typing import Any

from ...dtypes import mlir_dtype
from ...emitter import Emitter, Value
from ...registry import lowers
from ..shape import wrap


@lowers("aten._softmax")
def softmax(em: Emitter, x: Value, dim: int, half_to_float: Any = False) -> Value:
    """e^(x − max) / sum along `dim`, in float32 for half precision. half_to_float: the result, too."""
    dtype = "f32" if half_to_float is True else x.dtype
    if not x.numel:
        return em.full(1, x.shape, dtype)
    v = x.compute()
    if not x.rank:  # 1, and NaN of an infinity
        return em("exp", v - v).to(dtype)
    dims = [wrap(dim, x.rank)]
    e = em("exp", v - em.reduce(v, "max", dims, keepdim=True))
    return (e / e.sum(dims, keepdim=True)).to(dtype)


@lowers("aten._safe_softmax")
def safe_softmax(em: Emitter, x: Value, dim: int, dtype: Any = None) -> Value:
    """Rows that are masked all through (-inf) give zeros, not NaN."""
    if dtype is not None:
        x = x.to(mlir_dtype(dtype))
    y = softmax(em, x, dim)
    if not x.numel:
        return y
    masked = x.compute().eq(-math.inf)
    if x.rank:
        masked = em.reduce(masked, "all", [wrap(dim, x.rank)], keepdim=True)
    return em.select(masked, 0.0, y)


@lowers("aten._log_softmax")
def log_softmax(em: Emitter, x: Value, dim: int, half_to_float: bool = False) -> Value:
    """x − max − log(sum of e^(x − max)) along `dim`, in float32 for half precision."""
    dtype = "f32" if half_to_float else x.dtype
    if not x.numel:
        return em.full(0, x.shape, dtype)
    v = x.compute()
    if not x.rank:
        return (v - v).to(dtype)
    dims = [wrap(dim, x.rank)]
    shifted = v - em.reduce(v, "max", dims, keepdim=True)
    log = em("log", em("exp", shifted).exact_sum(dims, keepdim=True))
    high = log.to(v.dtype)
    y = shifted - high
    if high.dtype != log.dtype:  # the logarithm's own rounding, which is as large as the result's
        y = y - (log - high.to(log.dtype)).to(v.dtype)
    return y.to(dtype)


@lowers("aten._softmax_backward_data")
def softmax_backward(em: Emitter, dy: Value, y: Value, dim: int, dtype: Any) -> Value:
    """y · (dy − sum of dy · y) along `dim`."""
    d, v, dims = dy.compute(), y.compute(), [wrap(dim, y.rank)]
    product = d * v
    return (product - v * product.sum(dims, keepdim=True)).to(mlir_dtype(dtype))


@lowers("aten._log_softmax_backward_data")
def log_softmax_backward(em: Emitter, dy: Value, y: Value, dim: int, dtype: Any) -> Value:
    """dy − e^y · sum of dy along `dim`."""
    d, v, dims = dy.compute(), y.compute(), [wrap(dim, y.rank)]
    return (d - em("exp", v) * d.sum(dims, keepdim=True)).to(mlir_dtype(dtype))
