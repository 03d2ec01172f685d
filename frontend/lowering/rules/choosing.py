"""Clamping, choosing, tests, logic, conversions and copies, element by element."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..dtypes import Unsupported, is_float, mlir_dtype, result_dtype
from ..emitter import Emitter, Value, broadcast_shapes
from ..pointwise import pointwise
from ..registry import lowers

# -- clamping and choosing


@lowers("aten.clamp")
def clamp(em: Emitter, x: Value, low: Any = None, high: Any = None, **named: Any) -> Value:
    """The larger of `x` and `low`, then the smaller of that and `high`; NaN stays."""
    low, high = named.get("min", low), named.get("max", high)
    operands = [x, *(b for b in (low, high) if b is not None)]

    def body(v: Value, *rest: Value) -> Value:
        bounds = iter(rest)
        if low is not None:
            v = _bounded(em, "max", v, next(bounds), low)
        if high is not None:
            v = _bounded(em, "min", v, next(bounds), high)
        return v

    return pointwise(em, operands, body)


def _bounded(em: Emitter, kind: str, v: Value, bound: Value, given: Any) -> Value:
    """The larger or smaller of `v` and its bound. A bound that is a number leaves a zero its sign, as in PyTorch."""
    if isinstance(given, Value) or given != given or not is_float(v.dtype):
        return em(f"{kind}imum", v, bound)
    beyond = v.lt(bound) if kind == "max" else v.gt(bound)
    return em.select(beyond, bound, v)


@lowers("aten.clamp_min")
def clamp_min(em: Emitter, x: Value, low: Any) -> Value:
    """`clamp` without an upper bound."""
    return clamp(em, x, low, None)


@lowers("aten.clamp_max")
def clamp_max(em: Emitter, x: Value, high: Any) -> Value:
    """`clamp` without a lower bound."""
    return clamp(em, x, None, high)


@lowers("aten.where")
def where(em: Emitter, condition: Value, a: Any, b: Any) -> Value:
    """`a` where the condition holds, `b` elsewhere, broadcast and promoted to one dtype."""
    dtype = result_dtype([a, b])
    shapes = [v.shape for v in (condition, a, b) if isinstance(v, Value)]
    shape: tuple[int, ...] = ()
    for s in shapes:
        shape = broadcast_shapes(shape, s)
    picked = [
        em.broadcast(em.convert(v, dtype), shape)
        if isinstance(v, Value)
        else em.full(v, shape, dtype)
        for v in (a, b)
    ]
    return em.select(truth(em, condition), *picked)


@lowers("aten.masked_fill")
def masked_fill(em: Emitter, x: Value, mask: Value, value: Any) -> Value:
    """`value`, a number or 0-d tensor, where the mask holds; `x` elsewhere."""
    shape = broadcast_shapes(x.shape, mask.shape)
    if isinstance(value, Value):
        filling = em.broadcast(em.convert(value, x.dtype), shape)
    else:
        filling = em.full(value, shape, x.dtype)
    return em.select(mask, filling, em.broadcast(x, shape))


@lowers("aten.nan_to_num")
def nan_to_num(
    em: Emitter,
    x: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Value:
    """NaN and infinities replaced by numbers: by default 0 and the dtype's bounds."""
    if not is_float(x.dtype):
        return x
    info = torch.finfo({"f64": torch.float64, "f32": torch.float32, "f16": torch.float16}
                       .get(x.dtype, torch.bfloat16))  # fmt: skip

    def body(v: Value) -> Value:
        top = info.max if posinf is None else posinf
        bottom = info.min if neginf is None else neginf
        result = em.select(v.eq(math.inf), top, v)
        result = em.select(v.eq(-math.inf), bottom, result)
        return em.select(em("is_nan", v), 0.0 if nan is None else nan, result)

    return pointwise(em, [x], body)


# -- tests and logic


def truth(em: Emitter, x: Value) -> Value:
    """Booleans: not zero."""
    return em.convert(x, "i1")


@lowers("aten.logical_not")
def logical_not(em: Emitter, x: Value) -> Value:
    """Booleans: zero."""
    return ~truth(em, x)


def _register_logical(name: str) -> None:
    @lowers(f"aten.logical_{name}")
    def rule(em: Emitter, a: Value, b: Value) -> Value:
        return em.binary(name, truth(em, a), truth(em, b))


for _name in ("and", "or", "xor"):
    _register_logical(_name)


@lowers("aten.bitwise_not")
def bitwise_not(em: Emitter, x: Value) -> Value:
    """Each bit inverted; the negation of booleans."""
    return ~x


@lowers("aten.isnan")
def isnan(em: Emitter, x: Value) -> Value:
    """Booleans; False for dtypes without NaN."""
    return em("is_nan", x.compute()) if is_float(x.dtype) else em.full(False, x.shape, "i1")


@lowers("aten.isinf")
def isinf(em: Emitter, x: Value) -> Value:
    """Booleans; False for dtypes without infinities."""
    return em("is_inf", x.compute()) if is_float(x.dtype) else em.full(False, x.shape, "i1")


@lowers("aten.isfinite")
def isfinite(em: Emitter, x: Value) -> Value:
    """Booleans: neither infinite nor NaN."""
    if not is_float(x.dtype):
        return em.full(True, x.shape, "i1")
    return em("abs", x.compute()).lt(math.inf)


@lowers("aten.isposinf")
def isposinf(em: Emitter, x: Value) -> Value:
    """Booleans: +∞."""
    return x.compute().eq(math.inf) if is_float(x.dtype) else em.full(False, x.shape, "i1")


@lowers("aten.isneginf")
def isneginf(em: Emitter, x: Value) -> Value:
    """Booleans: −∞."""
    return x.compute().eq(-math.inf) if is_float(x.dtype) else em.full(False, x.shape, "i1")


@lowers("aten.signbit")
def signbit(em: Emitter, x: Value) -> Value:
    """Booleans: the sign is negative, that of −0.0 too."""
    if x.dtype == "i1":
        return em.full(False, x.shape, "i1")
    if not is_float(x.dtype):
        return x.lt(0)
    v = x.compute()
    return em("copysign", em.full(1.0, v.shape, v.dtype), v).lt(0.0)


# -- conversions and copies


@lowers("aten._to_copy", "aten.to")
def to_copy(em: Emitter, x: Value | bool | int | float, **options: Any) -> Value:
    """`x` with another dtype; device and layout change nothing here. A number, which PyTorch takes for a 0-d tensor, is
    what `torch.vmap` makes of one beside a single element.

    Raises:
        Unsupported: it goes to the meta device.
    """
    dtype = options.get("dtype")
    device = options.get("device")
    if device is not None and torch.device(device).type == "meta":
        raise Unsupported("the meta device")
    if not isinstance(x, Value):
        x = em.full(x, (), _NUMBERS[type(x)])
    return x if dtype is None else _cast(em, x, mlir_dtype(dtype))


_NUMBERS: dict[type, str] = {bool: "i1", int: "i64", float: "f64"}


def _cast(em: Emitter, x: Value, dtype: str) -> Value:
    """A conversion by the rules of ATen's C casts: a negative float wraps around where it becomes unsigned. What the
    other signed type cannot hold is undefined in C, and as on x86 here: zero from ui16 on."""
    if not is_float(x.dtype) or not dtype.startswith("u"):
        return em.convert(x, dtype)
    signed = em.convert(x, "i32" if dtype == "ui16" else "i64")
    if dtype == "ui64":
        # i64 ends at 2^63: what lies above is shifted into it, and back by an addition that wraps around
        wide = x.compute()
        above = em.convert(wide - 2.0**63, "i64") + -(2**63)
        signed = em.select(wide.ge(2.0**63), above, signed)
    return em.convert(signed, dtype)


@lowers("prims.convert_element_type")
def convert_element_type(em: Emitter, x: Value, dtype: torch.dtype) -> Value:
    """`x` with another dtype."""
    return to_copy(em, x, dtype=dtype)


@lowers("_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd",
        "aten.clone", "aten.detach", "aten.alias", "aten.lift_fresh", "aten.lift_fresh_copy",
        "aten.detach_copy", "aten.alias_copy", "aten.contiguous", "aten.view_of",
        "prims.view_of")  # fmt: skip
def clone(em: Emitter, x: Value, **options: Any) -> Value:
    """The value itself: memory is the compiler's."""
    return x


@lowers("aten.copy")
def copy(em: Emitter, x: Value, source: Any, non_blocking: bool = False) -> Value:
    """What `source` is, with the shape and dtype of `x`.

    Raises:
        Unsupported: a complex number.
    """
    if isinstance(source, complex):
        raise Unsupported("complex numbers")
    if not isinstance(source, Value):
        return em.full(source, x.shape, x.dtype)
    return em.broadcast(_cast(em, source, x.dtype), x.shape)


@lowers("aten.fill")
def fill(em: Emitter, x: Value, value: Any) -> Value:
    """`value` with the shape and dtype of `x`."""
    if isinstance(value, Value):
        return em.broadcast(_cast(em, value, x.dtype), x.shape)
    return em.full(value, x.shape, x.dtype)
