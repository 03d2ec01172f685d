"""Sums, means, extremes, variances, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gflow.dialects.extents import is_ordered, varies

from ..dtypes import Unsupported, is_float, mlir_dtype, opmath
from ..emitter import Emitter, Value
from ..registry import lowers
from .choosing import truth


def all_dims(x: Value, dims: Any) -> tuple[int, ...]:
    """Non-negative dimensions; None or an empty list means all of them."""
    if dims is None:
        return tuple(range(x.rank))
    if isinstance(dims, int):
        dims = [dims]
    if not dims:
        return tuple(range(x.rank))
    return tuple(sorted({d % max(x.rank, 1) for d in dims})) if x.rank else ()


def _accumulator(x: Value, dtype: Any) -> tuple[Value, str]:
    """The operand in the type that it is summed in, and the result's type."""
    if dtype is not None:
        result = mlir_dtype(dtype)
    else:
        result = x.dtype if is_float(x.dtype) else "i64"
    return x.to(opmath(result)), result


@lowers("aten.sum")
def sum_(
    em: Emitter, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """The sum over `dims` (None: all); of integers in int64, of half precision in float32, rounded once."""
    v, result = _accumulator(x, dtype)
    return v.sum(all_dims(x, dims), keepdim).to(result)


@lowers("aten.nansum")
def nansum(
    em: Emitter, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """The sum over `dims`, NaN as 0."""
    v, result = _accumulator(x, dtype)
    if is_float(v.dtype):
        v = em.select(em("is_nan", v), 0.0, v)
    return v.sum(all_dims(x, dims), keepdim).to(result)


@lowers("aten.mean")
def mean(
    em: Emitter, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """The mean over `dims`, in float32 for half precision."""
    result = mlir_dtype(dtype) if dtype is not None else x.dtype
    v = x.to(opmath(result))
    return em.mean(v, all_dims(x, dims), keepdim).to(result)


@lowers("aten.prod")
def prod(em: Emitter, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """The product over `dim` (None: all); of integers in int64."""
    v, result = _accumulator(x, dtype)
    return em.reduce(v, "prod", all_dims(x, dim), keepdim).to(result)


@lowers("aten.amax")
def amax(em: Emitter, x: Value, dims: Any = (), keepdim: bool = False) -> Value:
    """The maximum over `dims` (none: all)."""
    return em.reduce(x.compute(), "max", all_dims(x, dims), keepdim).to(x.dtype)


@lowers("aten.amin")
def amin(em: Emitter, x: Value, dims: Any = (), keepdim: bool = False) -> Value:
    """The minimum over `dims` (none: all)."""
    return em.reduce(x.compute(), "min", all_dims(x, dims), keepdim).to(x.dtype)


@lowers("aten.aminmax")
def aminmax(em: Emitter, x: Value, *, dim: Any = None, keepdim: bool = False) -> Any:
    """Minimum and maximum over `dim`."""
    return amin(em, x, dim, keepdim), amax(em, x, dim, keepdim)


def _extreme(em: Emitter, kind: str, x: Value, dim: Any, keepdim: bool) -> Any:
    if dim is None:
        return em.reduce(x.compute(), kind, all_dims(x, None)).to(x.dtype)
    dims = all_dims(x, dim)
    if not dims:
        return x, em.full(0, (), "i64")
    v = x.compute()
    value = em.reduce(v, kind, dims, keepdim).to(x.dtype)
    return value, em.reduce(_ordered(v), f"arg{kind}", dims, keepdim)


def _ordered(v: Value) -> Value:
    """Positions are looked for among numbers: PyTorch's argmax takes no bool."""
    return v.to("ui8") if v.dtype == "i1" else v


@lowers("aten.max.default", "aten.max.dim")
def max_(em: Emitter, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    """The maximum of all, or along `dim` with its positions (int64)."""
    return _extreme(em, "max", x, dim, keepdim)


@lowers("aten.min.default", "aten.min.dim")
def min_(em: Emitter, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    """The minimum of all, or along `dim` with its positions (int64)."""
    return _extreme(em, "min", x, dim, keepdim)


def _arg(em: Emitter, kind: str, x: Value, dim: int | None, keepdim: bool) -> Value:
    if not x.rank:
        return em.full(0, (), "i64")
    v = _ordered(x.compute())
    if dim is None:
        found = em.reduce(v.reshape((v.numel,)), kind, (0,))
        return found.reshape((1,) * x.rank) if keepdim else found
    return em.reduce(v, kind, (dim % x.rank,), keepdim)


@lowers("aten.argmax")
def argmax(em: Emitter, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The position of the maximum, int64; the first of equal ones."""
    return _arg(em, "argmax", x, dim, keepdim)


@lowers("aten.argmin")
def argmin(em: Emitter, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The position of the minimum, int64; the first of equal ones."""
    return _arg(em, "argmin", x, dim, keepdim)


@lowers("aten.any")
def any_(em: Emitter, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    """Booleans: whether one element over `dims` is not zero."""
    return em.reduce(truth(em, x), "any", all_dims(x, dims), keepdim)


@lowers("aten.all")
def all_(em: Emitter, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    """Booleans: whether no element over `dims` is zero."""
    return em.reduce(truth(em, x), "all", all_dims(x, dims), keepdim)


@lowers("aten.count_nonzero")
def count_nonzero(em: Emitter, x: Value, dims: Any = None) -> Value:
    """How many elements over `dims` are not zero, int64."""
    return truth(em, x).to("i64").sum(all_dims(x, dims))


def moments(
    em: Emitter, v: Value, dims: Sequence[int], correction: float = 0
) -> tuple[Value, Value]:
    """Mean and variance over `dims`, kept as 1; the variance from the centred values.

    Equal values have a variance of exactly 0: of float32 in float64, of float64 by centring around one of them.
    """
    count = math.prod(v.shape[d] for d in dims)
    centre = None
    if v.dtype == "f32" and em.wide_statistics and not em.for_onnx:
        v = v.to("f64")
    elif v.dtype == "f64" and v.numel:
        starts, limits = (0,) * v.rank, tuple(1 if d in dims else s for d, s in enumerate(v.shape))
        centre = em("slice", v, starts=starts, limits=limits, strides=(1,) * v.rank)
        v = v - centre
    mean = em.mean(v, dims, keepdim=True)
    centred = v - mean
    whole = int(correction) if float(correction).is_integer() else correction
    if varies(count) and not is_ordered(math.ceil(whole), count):
        raise Unsupported("a variance of fewer elements than its correction, for some sizes")
    variance = (centred * centred).sum(dims, keepdim=True) / max(count - whole, 0)
    return mean if centre is None else centre + mean, variance


def _var_mean(
    em: Emitter, x: Value, dims: Any, unbiased: Any, keepdim: bool, correction: Any
) -> tuple[Value, Value]:
    if isinstance(dims, bool):  # var(x, unbiased): the overload without dimensions
        dims, unbiased = None, dims
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    reduced = all_dims(x, dims)
    mean, var = moments(em, x.compute(), reduced, correction)
    if not keepdim:
        shape = tuple(s for d, s in enumerate(x.shape) if d not in reduced)
        mean, var = mean.reshape(shape), var.reshape(shape)
    return var, mean


@lowers("aten.var")
def var(
    em: Emitter, x: Value, dims: Any = None, unbiased: Any = None, keepdim: bool = False,
    correction: Any = None,
) -> Value:  # fmt: skip
    """The variance over `dims`. correction: subtracted from the count (1 unless given)."""
    return _var_mean(em, x, dims, unbiased, keepdim, correction)[0].to(x.dtype)


@lowers("aten.var_mean")
def var_mean(
    em: Emitter, x: Value, dims: Any = None, unbiased: Any = None, keepdim: bool = False,
    correction: Any = None,
) -> tuple[Value, Value]:  # fmt: skip
    """Variance and mean over `dims`."""
    v, m = _var_mean(em, x, dims, unbiased, keepdim, correction)
    return v.to(x.dtype), m.to(x.dtype)


@lowers("aten.std")
def std(
    em: Emitter, x: Value, dims: Any = None, unbiased: Any = None, keepdim: bool = False,
    correction: Any = None,
) -> Value:  # fmt: skip
    """The square root of `var`."""
    v = _var_mean(em, x, dims, unbiased, keepdim, correction)[0]
    return em("sqrt", v).to(x.dtype)


@lowers("aten.std_mean")
def std_mean(
    em: Emitter, x: Value, dims: Any = None, unbiased: Any = None, keepdim: bool = False,
    correction: Any = None,
) -> tuple[Value, Value]:  # fmt: skip
    """Standard deviation and mean over `dims`."""
    v, m = _var_mean(em, x, dims, unbiased, keepdim, correction)
    return em("sqrt", v).to(x.dtype), m.to(x.dtype)


@lowers("aten.logsumexp")
def logsumexp(em: Emitter, x: Value, dims: Any, keepdim: bool = False) -> Value:
    """log of the sum of eˣ over `dims`, from the maximum.

    Raises:
        Unsupported: `x` is not a float.
    """
    if not is_float(x.dtype):
        raise Unsupported("logsumexp of integers")
    reduced = all_dims(x, dims)
    v = x.compute()
    top = em.reduce(v, "max", reduced, keepdim=True)
    top = em.select(em("is_inf", top), 0.0, top)
    total = em("exp", v - top).sum(reduced, keepdim=True)
    result = em("log", total) + top
    if not keepdim:
        result = result.reshape(tuple(s for d, s in enumerate(x.shape) if d not in reduced))
    return result.to(x.dtype)


@lowers("aten.linalg_vector_norm")
def vector_norm(
    em: Emitter, x: Value, order: Any = 2, dims: Any = None, keepdim: bool = False,
    dtype: Any = None,
) -> Value:  # fmt: skip
    """(Σ |x|^order)^(1 / order) over `dims`; ±inf: the largest or smallest |x|; 0: how many are not zero.

    Raises:
        Unsupported: the order is traced.
    """
    result = mlir_dtype(dtype) if dtype is not None else x.dtype
    v = x.to(opmath(result))
    reduced = all_dims(x, dims)
    if isinstance(order, Value):
        raise Unsupported("a norm of traced order")
    if order == 0:
        total = v.ne(0.0).to(v.dtype).sum(reduced, keepdim)
    elif all(x.shape[d] == 1 for d in reduced):  # as PyTorch: no power that leaves the range
        shape = tuple(s for d, s in enumerate(x.shape) if keepdim or d not in reduced)
        total = em("abs", v).reshape(shape)
    elif math.isinf(order):
        kind = "max" if order > 0 else "min"
        total = em.reduce(em("abs", v), kind, reduced, keepdim)
    elif order == 1:
        total = em("abs", v).sum(reduced, keepdim)
    elif order == 2:
        total = em("sqrt", (v * v).sum(reduced, keepdim))
    else:
        power = em("pow", em("abs", v), em.full(order, v.shape, v.dtype))
        total = power.sum(reduced, keepdim)
        total = em("pow", total, em.full(1 / order, total.shape, v.dtype))
    return total.to(result)


@lowers("aten.norm")
def norm(
    em: Emitter, x: Value, order: Any = 2, dims: Any = None, keepdim: bool = False,
    dtype: Any = None,
) -> Value:  # fmt: skip
    """`vector_norm`; order 2 unless given."""
    return vector_norm(em, x, 2 if order is None else order, dims, keepdim, dtype)
