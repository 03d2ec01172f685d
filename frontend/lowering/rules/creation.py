"""Tensors without operands: full, arange, linspace, windows, eye."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gflow.dialects.extents import varies
from gflow.dialects.types import HALVES

from ..dtypes import Unsupported, is_float, mlir_dtype
from ..emitter import Emitter, Value
from ..registry import lowers


def _dtype(em: Emitter, options: dict[str, Any], like: Value | None = None) -> str:
    """The dtype asked for, else that of the model tensor, else what the trace recorded."""
    device = options.get("device")
    if device is not None and torch.device(device).type == "meta":
        raise Unsupported("the meta device")
    if options.get("dtype") is not None:
        return mlir_dtype(options["dtype"])
    if like is not None:
        return like.dtype
    return mlir_dtype(em.current_results[0].dtype)


def _full(em: Emitter, value: Any, shape: Any, dtype: str) -> Value:
    if isinstance(value, Value):
        return em.broadcast(em.convert(value, dtype), shape)
    if isinstance(value, complex):
        raise Unsupported("complex numbers")
    return em.full(value, shape, dtype)


@lowers("aten.full")
def full(em: Emitter, shape: Any, value: Any, **options: Any) -> Value:
    """A number or 0-d tensor in every element."""
    return _full(em, value, shape, _dtype(em, options))


@lowers("aten.full_like")
def full_like(em: Emitter, x: Value, value: Any, **options: Any) -> Value:
    """`full` with the shape and, unless one is given, the dtype of `x`."""
    return _full(em, value, x.shape, _dtype(em, options, x))


@lowers("aten.new_full")
def new_full(em: Emitter, x: Value, shape: Any, value: Any, **options: Any) -> Value:
    """`full` with a shape of its own and, unless one is given, the dtype of `x`."""
    return _full(em, value, shape, _dtype(em, options, x))


def _register(name: str, value: int) -> None:
    @lowers(f"aten.{name}")
    def plain(em: Emitter, shape: Any, **options: Any) -> Value:
        return em.full(value, shape, _dtype(em, options))

    @lowers(f"aten.{name}_like")
    def like(em: Emitter, x: Value, **options: Any) -> Value:
        return em.full(value, x.shape, _dtype(em, options, x))

    @lowers(f"aten.new_{name}")
    def new(em: Emitter, x: Value, shape: Any, **options: Any) -> Value:
        return em.full(value, shape, _dtype(em, options, x))


for _name, _value in (("zeros", 0), ("ones", 1), ("empty", 0)):
    _register(_name, _value)


@lowers("aten._efficientzerotensor")
def zero_tensor(em: Emitter, shape: Any, **options: Any) -> Value:
    """Zeros: what autograd has for a gradient that is zero."""
    return em.full(0, shape, _dtype(em, options))


@lowers("aten.empty_permuted", "aten.empty_strided", "aten.new_empty_strided")
def empty_strided(em: Emitter, *args: Any, **options: Any) -> Value:
    """Zeros, where PyTorch leaves memory uninitialized; the compiler chooses strides."""
    return em.full(0, em.current_results[0].shape, mlir_dtype(em.current_results[0].dtype))


@lowers("aten.scalar_tensor")
def scalar_tensor(em: Emitter, value: Any, **options: Any) -> Value:
    """A number as a 0-d tensor."""
    return _full(em, value, (), _dtype(em, options))


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(em: Emitter, *bounds: Any, **options: Any) -> Value:
    """start, start + step, … below the end.

    Raises:
        Unsupported: a bound is traced.
    """
    if any(isinstance(b, Value) for b in bounds):
        raise Unsupported("traced bounds")
    start, step = 0, 1
    if len(bounds) > 1:
        start = bounds[0]
    if len(bounds) > 2:
        step = bounds[2]
    dtype = _dtype(em, options)
    count = em.current_results[0].shape[0]
    if is_float(dtype) and not (float(start).is_integer() and float(step).is_integer()):
        made = _made(em, lambda like: torch.arange(*bounds, dtype=like))
        if made is not None:
            return made
    return _ramp(em, start, step, count, dtype)


#: elements of a tensor that is made when it is lowered, and kept as a constant
_MOST = 1 << 14


def _made(em: Emitter, make: Callable[[torch.dtype], torch.Tensor]) -> Value | None:
    """The tensor that PyTorch computes, as a constant; None where it is large, has a dynamic dimension, or is for a
    GPU.

    PyTorch's kernels round these step by step, in an order that depends on the processor's vectors.
    """
    want = em.current_results[0]
    varying = any(varies(s) for s in want.shape)
    if not em.wide_statistics or varying or math.prod(want.shape) > _MOST:
        return None
    found = make(want.dtype)
    dtype = mlir_dtype(want.dtype)
    if dtype in HALVES:
        return em.dense(found.float().numpy(), "f32").to(dtype)
    return em.dense(found.numpy(), dtype)


@lowers("prims.iota")
def prims_iota(
    em: Emitter, length: int, *, start: int, step: int, dtype: Any, **options: Any
) -> Value:
    """start + i · step for i < length."""
    return _ramp(em, start, step, length, mlir_dtype(dtype))


def _ramp(em: Emitter, start: Any, step: Any, count: int, dtype: str) -> Value:
    """start + i * step, computed in f64 for floats as ATen does."""
    compute = "f64" if is_float(dtype) else "i64"
    if compute == "i64":
        start, step = int(start), int(step)
        if dtype in ("i64", "i32") and start == 0 and step == 1:
            return em.iota((count,), 0, dtype)
    value = em.iota((count,), 0, compute)
    if step != 1:
        value = value * step
    if start != 0:
        value = value + start
    return value.to(dtype)


@lowers("aten.hann_window.default", "aten.hann_window.periodic")
def hann_window(em: Emitter, length: int, periodic: bool = True, **options: Any) -> Value:
    """A Hann window, bit for bit PyTorch's.

    Raises:
        Unsupported: one that is not kept as a constant.
    """
    made = _made(em, lambda like: torch.hann_window(length, periodic, dtype=like))
    if made is None:
        raise Unsupported("a large window")
    return made


@lowers("aten.linspace")
def linspace(em: Emitter, start: Any, end: Any, steps: int, **options: Any) -> Value:
    """`steps` numbers from `start` to `end`, both included, with PyTorch's rounding from both ends.

    Raises:
        Unsupported: a bound is traced; integers that cannot be made here.
    """
    if isinstance(start, Value) or isinstance(end, Value):
        raise Unsupported("traced bounds")
    dtype = _dtype(em, options)
    if not is_float(dtype):  # bounds are rounded to the type first, which wraps
        made = _made(em, lambda like: torch.linspace(start, end, steps, dtype=like))
        if made is None:
            raise Unsupported("an integer linspace")
        return made
    if steps <= 1:
        return em.full(start, (steps,), dtype)
    if dtype in HALVES:
        made = _made(em, lambda like: torch.linspace(start, end, steps, dtype=like))
        if made is not None:
            return made
    # from both ends, each element rounded once: bounds and step are in the type that is computed in
    compute = "f64" if dtype == "f64" else "f32"
    low, high, count = (
        em.full(v, (steps,), compute) for v in (float(start), float(end), steps - 1.0)
    )
    step = (high - low) / count
    i = em.iota((steps,), 0, compute)
    first, second = em("fma", step, i, low), em("fma", -step, count - i, high)
    return em.select(i.lt(float(steps // 2)), first, second).to(dtype)


@lowers("aten.logspace")
def logspace(
    em: Emitter, start: Any, end: Any, steps: int, base: float = 10.0, **options: Any
) -> Value:
    """base to the power of `linspace`.

    Raises:
        Unsupported: a bound is traced, the base is not positive; integers that cannot be made here.
    """
    if isinstance(start, Value) or isinstance(end, Value) or base <= 0:
        raise Unsupported("traced bounds")
    dtype = _dtype(em, options)
    made = _made(em, lambda like: torch.logspace(start, end, steps, base, dtype=like))
    if not is_float(dtype) and made is None:
        raise Unsupported("an integer logspace")
    if made is not None:
        return made
    exponents = linspace(em, start, end, steps, dtype=torch.float64)
    return em("exp2", exponents * math.log2(base)).to(dtype)


@lowers("aten.eye")
def eye(em: Emitter, rows: int, columns: int | None = None, **options: Any) -> Value:
    """Ones on the diagonal, zeros elsewhere."""
    shape = (rows, rows if columns is None else columns)
    same = em.iota(shape, 0, "i64").eq(em.iota(shape, 1, "i64"))
    return same.to(_dtype(em, options))


def _triangle(em: Emitter, rows: int, columns: int, offset: int, lower: bool) -> Value:
    make = np.tril_indices if lower else np.triu_indices
    return em.dense(np.stack(make(rows, offset, columns)).astype(np.int64), "i64")


@lowers("aten.tril_indices")
def tril_indices(em: Emitter, rows: int, columns: int, offset: int = 0, **options: Any) -> Value:
    """Rows and columns, [2, n], of the elements on and below a diagonal."""
    return _triangle(em, rows, columns, offset, True).to(_dtype(em, options))


@lowers("aten.triu_indices")
def triu_indices(em: Emitter, rows: int, columns: int, offset: int = 0, **options: Any) -> Value:
    """Rows and columns, [2, n], of the elements on and above a diagonal."""
    return _triangle(em, rows, columns, offset, False).to(_dtype(em, options))
