"""Evaluation of elementwise ops on constants, with the same results as the generated code.

Floats are computed in float64 and rounded to the element type (through float32 for half precision, as in PyTorch). For
float32 and the basic operations this is the correctly rounded result. Integers wrap around. Undefined results are not
folded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gflow.dialects.types import FLOATS, INTEGERS, SIGNED, TensorType

from .rules import Scalar

_INT_BITS = {name: int(name.lstrip("ui")) for name in INTEGERS}


def round_to(value: float, dtype: str) -> float:
    """`value` rounded to the float type `dtype`, to nearest even."""
    with np.errstate(all="ignore"):
        if dtype == "f64":
            return float(value)
        single = np.float32(value)
        if dtype == "f32":
            return float(single)
        if dtype == "f16":
            return float(np.float16(single))
    if math.isnan(value):
        return value
    bits = int(single.view(np.uint32))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(np.uint32(bits).view(np.float32))


def wrap(value: int, dtype: str) -> int:
    """`value` wrapped around to the integer type `dtype`."""
    bits = _INT_BITS[dtype]
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype in SIGNED and value >> (bits - 1) else value


def convert(value: Scalar, source: str, dtype: str) -> Scalar | None:
    """`value` in element type `dtype`; None where the result is not defined."""
    if dtype == "i1":
        return bool(value != 0)
    if dtype in FLOATS:
        return round_to(float(value), dtype) if source in FLOATS else _int_to_float(value, dtype)
    if dtype not in INTEGERS:
        return None
    if source in FLOATS:
        if not math.isfinite(value):
            return None
        whole = math.trunc(value)
        return whole if wrap(whole, dtype) == whole else None
    return wrap(int(value), dtype)


def _int_to_float(value: Scalar, dtype: str) -> float | None:
    if dtype == "f64" or abs(int(value)) <= 1 << 53:
        return round_to(float(value), dtype)
    return None  # rounding twice could differ


def _sign(x: Any) -> Any:
    return (x > 0) - (x < 0)  # 0 for NaN


def _f64(function: Callable[..., Any]) -> Callable[..., float]:
    def evaluate(*args: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(*(np.float64(a) for a in args)))

    return evaluate


_FLOAT: dict[str, Callable[..., float]] = {
    "add": _f64(np.add), "sub": _f64(np.subtract), "mul": _f64(np.multiply),
    "div": _f64(np.divide), "pow": _f64(np.power), "fmod": _f64(np.fmod),
    "maximum": _f64(np.maximum), "minimum": _f64(np.minimum), "atan2": _f64(np.arctan2),
    "copysign": _f64(np.copysign), "neg": _f64(np.negative), "abs": _f64(np.abs),
    "sign": _sign, "floor": _f64(np.floor), "ceil": _f64(np.ceil), "trunc": _f64(np.trunc),
    "round": _f64(np.rint), "sqrt": _f64(np.sqrt), "rsqrt": _f64(lambda x: 1.0 / np.sqrt(x)),
    "reciprocal": _f64(np.reciprocal), "exp": _f64(np.exp), "exp2": _f64(np.exp2),
    "expm1": _f64(np.expm1), "log": _f64(np.log), "log2": _f64(np.log2),
    "log10": _f64(np.log10), "log1p": _f64(np.log1p), "sin": _f64(np.sin), "cos": _f64(np.cos),
    "tan": _f64(np.tan), "asin": _f64(np.arcsin), "acos": _f64(np.arccos),
    "atan": _f64(np.arctan), "sinh": _f64(np.sinh), "cosh": _f64(np.cosh),
    "tanh": _f64(np.tanh), "asinh": _f64(np.arcsinh), "acosh": _f64(np.arccosh),
    "atanh": _f64(np.arctanh), "erf": math.erf, "erfc": math.erfc,
    "sigmoid": _f64(lambda x: 1.0 / (1.0 + np.exp(-x))),
}  # fmt: skip

_INT: dict[str, Callable[..., int | None]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "div": lambda a, b: 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "remainder": lambda a, b: None if b == 0 else a % b,
    "fmod": lambda a, b: None if b == 0 else int(math.copysign(1, a)) * (abs(a) % abs(b)),
    "pow": lambda a, b: None if not 0 <= b <= 64 else a**b,
    "maximum": max, "minimum": min, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "not": operator.invert, "neg": operator.neg, "abs": abs, "sign": _sign,
}  # fmt: skip

_BOOL: dict[str, Callable[..., bool]] = {
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.not_,
    "maximum": operator.or_, "minimum": operator.and_,
}  # fmt: skip

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def evaluate(
    name: str, attrs: dict[str, Any], args: Sequence[Scalar], source: TensorType, result: TensorType
) -> Scalar | None:
    """The result of op `name` on the numbers `args`; None if it isn't folded.

    Args:
        name: the op.
        attrs: its attributes.
        args: the values of its operands.
        source: the type of the last operand.
        result: the type of the result.
    """
    if name == "compare":
        return bool(_COMPARE[attrs["predicate"]](*args))
    if name == "convert":
        return convert(args[0], source.dtype, result.dtype)
    if name == "select":
        return args[1] if args[0] else args[2]
    if name == "is_nan":
        return math.isnan(args[0])
    if name == "is_inf":
        return math.isinf(args[0])
    if source.dtype == "i1":
        boolean = _BOOL.get(name)
        return None if boolean is None else bool(boolean(*args))
    if source.dtype in FLOATS:
        return _evaluate_float(name, args, result.dtype)
    if source.dtype in INTEGERS and name in _INT:
        found = _INT[name](*args)
        return None if found is None else wrap(int(found), result.dtype)
    return None


def _evaluate_float(name: str, args: Sequence[Scalar], dtype: str) -> float | None:
    function = _FLOAT.get(name)
    if function is None:
        return None
    try:
        return round_to(float(function(*args)), dtype)
    except (ArithmeticError, ValueError):
        return None
