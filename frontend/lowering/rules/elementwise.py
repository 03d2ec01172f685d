"""Arithmetic, comparisons, bit operations and math functions, element by element."""

from __future__ import annotations

import math
from typing import Any

from ..dtypes import Unsupported, default_float, is_float, result_dtype
from ..emitter import Emitter, Value
from ..pointwise import pointwise
from ..registry import RULES, lowers

# -- one to one: ATen op → gflow op

_FLOAT_UNARY = (
    "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "erfinv", "sigmoid",
)  # fmt: skip
_ROUNDING = ("floor", "ceil", "trunc")
_BINARY = {
    "aten.add.Tensor": "add", "aten.mul.Tensor": "mul", "aten.mul.Scalar": "mul",
    "aten.maximum": "maximum", "aten.minimum": "minimum", "aten.fmod": "fmod",
    "aten.remainder": "remainder",
}  # fmt: skip
_BINARY_FLOAT = {"aten.atan2": "atan2", "aten.copysign": "copysign"}
_BITWISE = {
    "aten.bitwise_and": "and", "aten.bitwise_or": "or", "aten.bitwise_xor": "xor",
    "aten.__and__": "and", "aten.__or__": "or", "aten.__xor__": "xor",
    "aten.bitwise_left_shift": "shift_left", "aten.bitwise_right_shift": "shift_right",
    "aten.__lshift__": "shift_left", "aten.__rshift__": "shift_right",
}  # fmt: skip
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def _register_unary(name: str) -> None:
    @lowers(f"aten.{name}")
    def rule(em: Emitter, x: Value) -> Value:
        return pointwise(em, [x], lambda v: em(name, v), float_result=True)


def _register_rounding(name: str) -> None:
    @lowers(f"aten.{name}")
    def rule(em: Emitter, x: Value) -> Value:
        return pointwise(em, [x], lambda v: em(name, v)) if is_float(x.dtype) else x


def _register_binary(aten: str, name: str, float_result: bool = False) -> None:
    @lowers(aten)
    def rule(em: Emitter, a: Any, b: Any) -> Value:
        def body(x: Value, y: Value) -> Value:
            if x.dtype == "i1" and name in ("mul", "remainder", "fmod"):
                if name != "mul":
                    raise Unsupported(f"{name} of bools")
                return x & y
            return em(name, x, y)

        rounded = name in ("remainder", "fmod")
        return pointwise(em, [a, b], body, float_result=float_result, rounded=rounded)


def _register_compare(predicate: str) -> None:
    @lowers(f"aten.{predicate}")
    def rule(em: Emitter, a: Any, b: Any) -> Value:
        return pointwise(
            em, [a, b], lambda x, y: em("compare", x, y, predicate=predicate), rounded=True
        )


for _name in _FLOAT_UNARY:
    _register_unary(_name)
for _name in _ROUNDING:
    _register_rounding(_name)
for _aten, _name in _BINARY.items():
    if _aten != "aten.add.Tensor":
        _register_binary(_aten, _name)
for _aten, _name in _BINARY_FLOAT.items():
    _register_binary(_aten, _name, True)
for _aten, _name in _BITWISE.items():
    _register_binary(_aten, _name)
for _name in _COMPARE:
    _register_compare(_name)


# -- arithmetic


@lowers("aten.add")
def add(em: Emitter, a: Any, b: Any, alpha: Any = 1) -> Value:
    """a + alpha · b; `or` of booleans."""

    def body(x: Value, y: Value) -> Value:
        if x.dtype == "i1":  # alpha is a bool, or ATen refuses it
            return x | y if alpha else x
        return x + scaled(y, alpha)

    return pointwise(em, [a, b], body)


def scaled(x: Value, alpha: Any) -> Value:
    """x * alpha, or x itself for 1; alpha is a Python number or a traced one."""
    if not isinstance(alpha, Value) and alpha == 1:
        return x
    return x * alpha


@lowers("aten.sub")
def sub(em: Emitter, a: Any, b: Any, alpha: Any = 1) -> Value:
    """a − alpha · b."""
    return pointwise(em, [a, b], lambda x, y: x - scaled(y, alpha))


@lowers("aten.rsub")
def rsub(em: Emitter, a: Any, b: Any, alpha: Any = 1) -> Value:
    """b − alpha · a."""
    return sub(em, b, a, alpha)


@lowers("aten.div")
def div(em: Emitter, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    """a / b, in floats unless rounded. rounding_mode: None, "trunc" or "floor"."""
    if rounding_mode is None:
        return pointwise(em, [a, b], lambda x, y: x / y, float_result=True)
    if rounding_mode == "trunc":
        return pointwise(em, [a, b], lambda x, y: _div_trunc(em, x, y))
    return pointwise(em, [a, b], lambda x, y: _div_floor(em, x, y))


RULES["aten.true_divide"] = div


@lowers("aten.floor_divide")
def floor_divide(em: Emitter, a: Any, b: Any) -> Value:
    """a / b, rounded down."""
    return pointwise(em, [a, b], lambda x, y: _div_floor(em, x, y))


def _div_trunc(em: Emitter, x: Value, y: Value) -> Value:
    return em("trunc", x / y) if is_float(x.dtype) else x / y


def _div_floor(em: Emitter, x: Value, y: Value) -> Value:
    """ATen's floor division: exact for integers, corrected by the remainder for floats."""
    if not is_float(x.dtype):
        if x.dtype.startswith("ui") or x.dtype == "i1":
            return x / y
        # x - rest may leave the range of the type, its quotient and rest do not
        below = em("fmod", x, y).ne(0) & em("xor", x.lt(0), y.lt(0))
        return em.select(below, x / y - 1, x / y)
    rest = em("fmod", x, y)
    quotient = (x - rest) / y
    wrong_sign = rest.ne(0.0) & em("xor", y.lt(0.0), rest.lt(0.0))
    quotient = em.select(wrong_sign, quotient - 1.0, quotient)
    floor = em("floor", quotient)
    floor = em.select((quotient - floor).gt(0.5), floor + 1.0, floor)
    zero = em("copysign", em.full(0.0, x.shape, x.dtype), x / y)
    result = em.select(quotient.ne(0.0), floor, zero)
    return em.select(y.eq(0.0), x / y, result)


@lowers("aten.pow")
def pow_(em: Emitter, base: Any, exponent: Any) -> Value:
    """base to the power of exponent; exponents that are known and small are products and roots."""

    # PyTorch takes roots of all floats but these, of which (-inf) ** 0.5 is inf
    known = isinstance(exponent, int | float) and not isinstance(exponent, bool)
    if isinstance(base, Value) and base.dtype == "f16" and exponent in (0.5, -0.5):
        known = False

    def body(x: Value, y: Value) -> Value:
        if known:
            special = _pow_constant(em, x, exponent)
            if special is not None:
                return special
        if isinstance(base, int | float) and base == 2 and is_float(x.dtype):
            return em("exp2", y)
        if x.dtype == "i1":
            return x | ~y
        return em("pow", x, y)

    return pointwise(em, [base, exponent], body)


def _pow_constant(em: Emitter, x: Value, exponent: float) -> Value | None:
    if exponent == 0 and x.dtype != "i1":
        return em.full(1, x.shape, x.dtype)
    if exponent == 1:
        return x
    if x.dtype == "i1":
        return None
    if exponent == 2:
        return x * x
    if exponent == 3:
        return x * x * x
    if not is_float(x.dtype):
        if exponent < 0:
            raise Unsupported("integers to negative powers")
        return None
    if exponent == 0.5:
        return em("sqrt", x)
    if exponent == -0.5:
        return em("rsqrt", x)
    if exponent == -1:
        return em("reciprocal", x)
    if exponent == -2:
        return em("reciprocal", x * x)
    return None


@lowers("aten.neg")
def neg(em: Emitter, x: Value) -> Value:
    """−x."""
    return pointwise(em, [x], lambda v: -v)


@lowers("aten.positive", "aten.conj", "aten._conj", "aten.resolve_conj", "aten.resolve_neg",
        "aten.conj_physical", "aten._conj_physical", "aten.real")  # fmt: skip
def identity(em: Emitter, x: Value) -> Value:
    """The value itself; it is not complex."""
    return x


@lowers("aten.abs")
def abs_(em: Emitter, x: Value) -> Value:
    """|x|."""
    return x if x.dtype == "i1" else pointwise(em, [x], lambda v: em("abs", v))


@lowers("aten.sign", "aten.sgn")
def sign(em: Emitter, x: Value) -> Value:
    """−1, 0 or 1."""
    return x if x.dtype == "i1" else pointwise(em, [x], lambda v: em("sign", v))


@lowers("aten.square")
def square(em: Emitter, x: Value) -> Value:
    """x²."""
    return pow_(em, x, 2)


@lowers("aten.round")
def round_(em: Emitter, x: Value, decimals: int = 0) -> Value:
    """Rounded to nearest, halves to even, at a decimal place.

    Raises:
        Unsupported: integers at a decimal place.
    """
    if not is_float(x.dtype):
        if decimals != 0:
            raise Unsupported("integers rounded to decimals")
        return x

    def body(v: Value) -> Value:
        if decimals == 0:
            return em("round", v)
        ten = 10.0 ** abs(decimals)
        return em("round", v * ten) / ten if decimals > 0 else em("round", v / ten) * ten

    return pointwise(em, [x], body)


@lowers("aten.frac")
def frac(em: Emitter, x: Value) -> Value:
    """x − trunc(x)."""
    return pointwise(em, [x], lambda v: v - em("trunc", v))


@lowers("aten.hypot")
def hypot(em: Emitter, a: Any, b: Any) -> Value:
    """√(a² + b²) without overflow in between."""

    def body(x: Value, y: Value) -> Value:
        x, y = em("abs", x), em("abs", y)
        large, small = em.maximum(x, y), em.minimum(x, y)
        ratio = small / large
        plain = large * em("sqrt", ratio * ratio + 1.0)
        plain = em.select(large.eq(0.0), large, plain)
        infinite = em("is_inf", x) | em("is_inf", y)
        return em.select(infinite, math.inf, plain)

    return pointwise(em, [a, b], body)


@lowers("aten.fmax")
def fmax(em: Emitter, a: Any, b: Any) -> Value:
    """The larger one, the first of equal ones; of a NaN and a number, the number."""
    return pointwise(em, [a, b], lambda x, y: _ignore_nan(em, x.ge(y), x, y))


@lowers("aten.fmin")
def fmin(em: Emitter, a: Any, b: Any) -> Value:
    """The smaller one, the first of equal ones; of a NaN and a number, the number."""
    return pointwise(em, [a, b], lambda x, y: _ignore_nan(em, x.le(y), x, y))


def _ignore_nan(em: Emitter, first: Value, x: Value, y: Value) -> Value:
    return em.select(first | em("is_nan", y) if is_float(x.dtype) else first, x, y)


@lowers("aten.heaviside")
def heaviside(em: Emitter, x: Value, at_zero: Value) -> Value:
    """0 below 0, 1 above, `at_zero` at 0."""

    def body(v: Value, z: Value) -> Value:
        positive = em.convert(v.gt(0), v.dtype) if v.dtype != "i1" else v
        return em.select(v.eq(0), z, positive)

    return pointwise(em, [x, at_zero], body)


@lowers("aten.xlogy")
def xlogy(em: Emitter, a: Any, b: Any) -> Value:
    """a · log(b); 0 where a is 0, unless b is NaN."""
    return pointwise(
        em, [a, b], lambda x, y: _xlog(em, x, y, "log"), float_result=True, rounded=True
    )


@lowers("aten.special_xlog1py")
def xlog1py(em: Emitter, a: Any, b: Any) -> Value:
    """a · log(1 + b); 0 where a is 0, unless b is NaN."""
    return pointwise(
        em, [a, b], lambda x, y: _xlog(em, x, y, "log1p"), float_result=True, rounded=True
    )


def _xlog(em: Emitter, x: Value, y: Value, log: str) -> Value:
    result = em.select(x.eq(0.0), 0.0, x * em(log, y))
    return em.select(em("is_nan", y), math.nan, result)


@lowers("aten.logaddexp")
def logaddexp(em: Emitter, a: Any, b: Any) -> Value:
    """log(eᵃ + eᵇ), from the larger one."""
    return pointwise(em, [a, b], lambda x, y: _logaddexp(em, x, y, "exp", 1.0))


@lowers("aten.logaddexp2")
def logaddexp2(em: Emitter, a: Any, b: Any) -> Value:
    """log₂(2ᵃ + 2ᵇ), from the larger one."""
    return pointwise(em, [a, b], lambda x, y: _logaddexp(em, x, y, "exp2", 1 / math.log(2)))


def _logaddexp(em: Emitter, x: Value, y: Value, exp: str, scale: float) -> Value:
    top = em.maximum(x, y)
    tail = em("log1p", em(exp, -em("abs", x - y)))
    result = top + (tail if scale == 1.0 else tail * scale)
    return em.select(em("is_inf", x) & x.eq(y), x, result)


@lowers("aten.lerp")
def lerp(em: Emitter, start: Value, end: Value, weight: Any) -> Value:
    """a + gap * w for small weights, b - gap * (1 - w) for large ones: exact at both ends."""
    dtype = result_dtype([start, end])
    if isinstance(weight, Value) and weight.shape:
        return pointwise(em, [start, end, weight], lambda a, b, w: _lerp(em, a, b, w), dtype=dtype)

    def body(a: Value, b: Value) -> Value:
        if isinstance(weight, Value):
            return _lerp(em, a, b, weight.to(a.dtype))
        return a + (b - a) * weight if abs(weight) < 0.5 else b - (b - a) * (1.0 - weight)

    return pointwise(em, [start, end], body, dtype=dtype)


def _lerp(em: Emitter, a: Value, b: Value, w: Value) -> Value:
    near = em("abs", w).lt(0.5)
    return em.select(near, a, b) + (b - a) * em.select(near, w, w - 1.0)


@lowers("aten.addcmul")
def addcmul(em: Emitter, x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    """x + value · a · b."""
    dtype = result_dtype([x, a, b])
    return pointwise(em, [x, a, b], lambda v, p, q: v + scaled(p, value) * q, dtype=dtype)


@lowers("aten.addcdiv")
def addcdiv(em: Emitter, x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    """x + value · a / b."""
    dtype = result_dtype([x, a, b])
    return pointwise(em, [x, a, b], lambda v, p, q: v + scaled(p, value) / q, dtype=dtype)


@lowers("aten.ldexp")
def ldexp(em: Emitter, x: Value, power: Value) -> Value:
    """x · 2^power, of which the second is a tensor of its own: a float as wide as `power`. For an integer, x with
    another exponent: the power alone may leave the range."""
    if is_float(power.dtype):
        return pointwise(em, [x, pow_(em, 2.0, power)], lambda v, p: v * p)

    def scaled_thrice(v: Value, p: Value) -> Value:
        p = em.minimum(em.maximum(p, -2200), 2200)
        third = em("floor", p / 3)
        return v * em("exp2", third) * em("exp2", third) * em("exp2", p - third * 2)

    wide = pointwise(em, [x, power], scaled_thrice, dtype="f64")
    return em.convert(wide, x.dtype if is_float(x.dtype) else default_float())


@lowers("aten.deg2rad")
def deg2rad(em: Emitter, x: Value) -> Value:
    """x · π / 180."""
    return pointwise(em, [x], lambda v: v * (math.pi / 180), float_result=True)


@lowers("aten.rad2deg")
def rad2deg(em: Emitter, x: Value) -> Value:
    """x · 180 / π."""
    return pointwise(em, [x], lambda v: v * (180 / math.pi), float_result=True)


@lowers("aten.sinc")
def sinc(em: Emitter, x: Value) -> Value:
    """sin(πx) / (πx); 1 at 0."""

    def body(v: Value) -> Value:
        angle = v * math.pi
        return em.select(v.eq(0.0), 1.0, em("sin", angle) / angle)

    return pointwise(em, [x], body, float_result=True)


@lowers("aten.logit")
def logit(em: Emitter, x: Value, eps: float | None = None) -> Value:
    """log(x / (1 − x)), of x clamped to [eps, 1 − eps] where eps is given."""

    def body(v: Value) -> Value:
        if eps is not None:
            v = em.minimum(em.maximum(v, eps), 1 - eps)
        return em("log", v / (1.0 - v))

    return pointwise(em, [x], body, float_result=True)
