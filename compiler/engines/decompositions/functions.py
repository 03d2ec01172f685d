"""Decompositions of elementwise ops into simpler ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gflow.dialects.constants import is_splat
from gflow.dialects.mlir import ir
from gflow.dialects.types import FLOATS, UNSIGNED

from .terms import Term, make, polynomial

Attrs = dict[str, Any]

_LN2 = math.log(2.0)

#: the largest finite number of a type
_MOST = {"f64": 1.7976931348623157e308, "f32": 3.4028234663852886e38}


def wide(x: Term, least: str = "f32") -> Term:
    """`x` converted to float32 (or `least`), if its type is narrower."""
    order = ("bf16", "f16", "f32", "f64")
    return x if order.index(x.dtype) >= order.index(least) else x.to(least)


# -- arithmetic


def fma(a: Term, b: Term, c: Term, attrs: Attrs) -> Term:
    """a b + c, rounded twice; half precision is computed in float32. float64 would be too slow in engines."""
    return (wide(a) * wide(b) + wide(c)).to(a.dtype)


def fmod(a: Term, b: Term, attrs: Attrs) -> Term:
    """C's remainder of integers, with 0 where b is 0."""
    return b.is_("eq", 0).where(0, a - (a / b) * b)


def remainder(a: Term, b: Term, attrs: Attrs) -> Term:
    """Python's a % b: fmod, moved to the sign of `b`."""
    rest = make("fmod", a, b)
    if a.dtype in UNSIGNED:
        return rest
    other_side = rest.is_("lt", 0) ^ b.is_("lt", 0)
    return (rest.is_("ne", 0) & other_side).where(rest + b, rest)


def integer_pow(a: Term, b: Term, attrs: Attrs) -> Term:
    """Integer powers by squaring; negative exponents give 0 except for bases 1 and -1."""
    bits = 8 * a.type.itemsize
    result, base = a.like(1), a
    for n in range(bits):
        odd = ((b >> n) & 1).is_("ne", 0)
        result = odd.where(result * base, result)
        base = base * base
    if a.dtype in UNSIGNED:
        return result
    sign = (b & 1).is_("ne", 0).where(a.like(-1), a.like(1))
    inverse = a.is_("eq", 1).where(1, a.is_("eq", -1).where(sign, 0))
    return b.is_("lt", 0).where(inverse, result)


def copysign(a: Term, b: Term, attrs: Attrs) -> Term:
    """|a| with the sign of b. The sign of a zero is found from its reciprocal; NaN counts as positive."""
    negative = b.is_("lt", 0.0) | (b.is_("eq", 0.0) & (1.0 / b).is_("lt", 0.0))
    return negative.where(-abs(a), abs(a))


def shift_left(a: Term, b: Term, attrs: Attrs) -> Term:
    """a << b as a product; 0 if b is at least the number of bits."""
    bits = 8 * a.type.itemsize
    result = a.like(0)
    for n in range(bits):
        power = 1 << n
        if a.dtype not in UNSIGNED and n == bits - 1:
            power = -power
        result = b.is_("eq", n).where(a * power, result)
    return result


def shift_right(a: Term, b: Term, attrs: Attrs) -> Term:
    """a >> b as a quotient rounded toward minus infinity; one division for a constant b."""
    bits = 8 * a.type.itemsize
    beyond = a.like(0) if a.dtype in UNSIGNED else a.is_("lt", 0).where(a.like(-1), a.like(0))
    constant = _constant(b)
    if constant is not None:
        return _shifted(a, constant) if 0 <= constant < bits else beyond
    result = beyond
    for n in range(bits):
        result = b.is_("eq", n).where(_shifted(a, n), result)
    return result


def _shifted(a: Term, n: int) -> Term:
    bits = 8 * a.type.itemsize
    if n == 0:
        return a
    if a.dtype in UNSIGNED:
        return a / (1 << n)
    if n == bits - 1:
        return a.is_("lt", 0).where(a.like(-1), a.like(0))
    power = 1 << n
    quotient = a / power
    return (quotient * power).is_("gt", a).where(quotient - 1, quotient)


def _constant(x: Term) -> int | None:
    """The value of a splat constant of integers; None for other values."""
    owner = x.value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "gflow.constant":
        return None
    elements = owner.operation.attributes["value"]
    if not is_splat(elements):
        return None
    return int(ir.IntegerAttr(ir.DenseElementsAttr(elements).get_splat_value()).value)


def sign(x: Term, attrs: Attrs) -> Term:
    """−1, 0 or 1; 0 at NaN."""
    if x.dtype in UNSIGNED:
        return x.is_("gt", 0).to(x.dtype)
    return x.is_("gt", 0).to(x.dtype) - x.is_("lt", 0).to(x.dtype)


def trunc(x: Term, attrs: Attrs) -> Term:
    """Rounded towards zero."""
    return x.is_("lt", 0.0).where(make("ceil", x), make("floor", x))


def is_nan(x: Term, attrs: Attrs) -> Term:
    """Booleans: x ≠ x."""
    return x.is_("ne", x)


def is_inf(x: Term, attrs: Attrs) -> Term:
    """Booleans: |x| = ∞."""
    return abs(x).is_("eq", math.inf)


def reciprocal(x: Term, attrs: Attrs) -> Term:
    """1 / x."""
    return 1.0 / x


def rsqrt(x: Term, attrs: Attrs) -> Term:
    """1 / √x."""
    return 1.0 / make("sqrt", x)


def sigmoid(x: Term, attrs: Attrs) -> Term:
    """1 / (1 + e⁻ˣ)."""
    return 1.0 / (make("exp", -x) + 1.0)


def atan2(a: Term, b: Term, attrs: Attrs) -> Term:
    """The angle of the point (b, a): the arc tangent of the quotient, moved to its quadrant."""
    y, x = wide(a), wide(b)
    below = y.is_("lt", 0.0) | (y.is_("eq", 0.0) & (1.0 / y).is_("lt", 0.0))
    left = x.is_("lt", 0.0) | (x.is_("eq", 0.0) & (1.0 / x).is_("lt", 0.0))
    ay, ax = abs(y), abs(x)
    steep = ay.is_("gt", ax)
    low, high = make("minimum", ay, ax), make("maximum", ay, ax)
    ratio = low.is_("eq", high).where(1.0, low / high)
    ratio = high.is_("eq", 0.0).where(0.0, ratio)
    ratio = (is_nan(y, {}) | is_nan(x, {})).where(y + x, ratio)
    angle = make("atan", ratio)
    angle = steep.where(math.pi / 2 - angle, angle)
    angle = left.where(math.pi - angle, angle)
    return below.where(-angle, angle).to(a.dtype)


# -- exponentials and logarithms


def exp2(x: Term, attrs: Attrs) -> Term:
    """2ˣ, by pow."""
    return make("pow", x.like(2.0), x)


def expm1(x: Term, attrs: Attrs) -> Term:
    """eˣ − 1 after Kahan: (u - 1) x / log(u) with u = exp(x), which is accurate where the difference cancels."""
    t = wide(x)
    u = make("exp", t)
    near = (u - 1.0) * t / make("log", u)
    result = u.is_("eq", 1.0).where(t, (abs(t).is_("lt", 1.0)).where(near, u - 1.0))
    return result.to(x.dtype)


def log1p(x: Term, attrs: Attrs) -> Term:
    """log(1 + x) after Kahan: log(u) x / (u - 1) with u = 1 + x."""
    t = wide(x)
    u = t + 1.0
    near = make("log", u) * t / (u - 1.0)
    far = u.is_("eq", 1.0).where(t, abs(t).is_("lt", 1.0).where(near, make("log", u)))
    return far.to(x.dtype)


def log2(x: Term, attrs: Attrs) -> Term:
    """The logarithm to base 2."""
    return _log(x, _LN2)


def log10(x: Term, attrs: Attrs) -> Term:
    """The logarithm to base 10."""
    return _log(x, math.log(10.0))


def _log(x: Term, base: float) -> Term:
    t = wide(x)
    return (make("log", t) / base).to(x.dtype)


# -- trigonometric and hyperbolic functions


def tan(x: Term, attrs: Attrs) -> Term:
    """sin(x) / cos(x), at least in float32."""
    t = wide(x)
    return (make("sin", t) / make("cos", t)).to(x.dtype)


def asin(x: Term, attrs: Attrs) -> Term:
    """atan2(x, √((1 − x)(1 + x)))."""
    return make("atan2", x, make("sqrt", (1.0 - x) * (x + 1.0)))


def acos(x: Term, attrs: Attrs) -> Term:
    """atan2(√((1 − x)(1 + x)), x)."""
    return make("atan2", make("sqrt", (1.0 - x) * (x + 1.0)), x)


def atan(x: Term, attrs: Attrs) -> Term:
    """atan2(x, 1)."""
    return make("atan2", x, x.like(1.0))


def sinh(x: Term, attrs: Attrs) -> Term:
    """sinh(x): by expm1 near 0, otherwise by exponentials that overflow only if the result does."""
    t = wide(x)
    e = make("expm1", t)
    near = (e + e / (e + 1.0)) * 0.5
    far = make("exp", t - _LN2) - make("exp", -t - _LN2)
    return abs(t).is_("lt", 1.0).where(near, far).to(x.dtype)


def cosh(x: Term, attrs: Attrs) -> Term:
    """(eˣ + e⁻ˣ) / 2, with the factor 1/2 in the exponents, so that it overflows only if the result does."""
    t = wide(x)
    return (make("exp", t - _LN2) + make("exp", -t - _LN2)).to(x.dtype)


def asinh(x: Term, attrs: Attrs) -> Term:
    """asinh(x): by log1p near 0, by log(|x|) + log 2 where x² would overflow."""
    t = wide(x)
    a = abs(t)
    near = make("log1p", a + a * a / (make("sqrt", a * a + 1.0) + 1.0))
    big = a.is_("ge", math.sqrt(_MOST[t.dtype]) / 2)
    return make("copysign", big.where(make("log", a) + _LN2, near), t).to(x.dtype)


def acosh(x: Term, attrs: Attrs) -> Term:
    """acosh(x): by log1p near 1, by log(x) + log 2 where x² would overflow; NaN below 1."""
    t = wide(x)
    d = t - 1.0
    near = make("log1p", d + make("sqrt", d * (t + 1.0)))
    big = t.is_("ge", math.sqrt(_MOST[t.dtype]) / 2)
    result = big.where(make("log", t) + _LN2, near)
    return t.is_("lt", 1.0).where(math.nan, result).to(x.dtype)


def atanh(x: Term, attrs: Attrs) -> Term:
    """(log1p(x) − log1p(−x)) / 2."""
    t = wide(x)
    return ((make("log1p", t) - make("log1p", -t)) * 0.5).to(x.dtype)


# -- the error function (coefficients of S. Moshier's Cephes library, ndtr.c)

_ERF = (
    (9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3,
     7.00332514112805075473e3, 5.55923013010394962768e4),
    (1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3,
     2.26290000613890934246e4, 4.92673942608635921086e4),
)  # fmt: skip
_ERFC = (
    (2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0,
     4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2,
     9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2),
    (1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2,
     9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3,
     1.65666309194161350182e3, 5.57535340817727675546e2),
)  # fmt: skip
_ERFC_FAR = (
    (5.64189583547755073984e-1, 1.27536670759978104416e0, 5.01905042251180477414e0,
     6.16021097993053585195e0, 7.40974269950448939160e0, 2.97886665372100240670e0),
    (1.0, 2.26052863220117276590e0, 9.39603524938001434673e0, 1.20489539808096656605e1,
     1.70814450747565897222e1, 9.60896809063285878198e0, 3.36907645100081516050e0),
)  # fmt: skip


def _ratio(x: Term, over_under: tuple[tuple[float, ...], tuple[float, ...]]) -> Term:
    over, under = over_under
    return polynomial(x, over) / polynomial(x, under)


def erf(x: Term, attrs: Attrs) -> Term:
    """erf(x) by ratios of polynomials: of erf below 1, of erfc · e^(x²) above."""
    t = wide(x)
    a = make("minimum", abs(t), t.like(6.0))  # 1 beyond, in float64 too
    near = t * _ratio(t * t, _ERF)
    far = make("copysign", 1.0 - make("exp", -(a * a)) * _ratio(a, _ERFC), t)
    return abs(t).is_("lt", 1.0).where(near, far).to(x.dtype)


def erfc(x: Term, attrs: Attrs) -> Term:
    """erfc(x) in float64, since the exponential of a rounded square is less accurate than the result must be."""
    t = x.to("f64")
    a = make("minimum", abs(t), t.like(28.0))  # 0 beyond
    near = 1.0 - t * _ratio(t * t, _ERF)
    tail = make("exp", -(a * a)) * a.is_("lt", 8.0).where(_ratio(a, _ERFC), _ratio(a, _ERFC_FAR))
    far = t.is_("lt", 0.0).where(2.0 - tail, tail)
    return abs(t).is_("lt", 1.0).where(near, far).to(x.dtype)


#: M. Giles, "Approximating the erfinv function", 2011: in float32, by -log((1 - x) (1 + x))
_ERFINV = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
           -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_ERFINV_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
               -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def erfinv(x: Term, attrs: Attrs) -> Term:
    """The inverse of erf: Giles' approximation, then two steps of Newton's method on erfc, in float64."""
    t = x.to("f64")
    a = abs(t)
    w = -make("log", (1.0 - a) * (a + 1.0))
    near = polynomial(w - 2.5, _ERFINV)
    far = polynomial(make("sqrt", w) - 3.0, _ERFINV_FAR)
    y = a * w.is_("lt", 5.0).where(near, far)
    for _ in range(2):
        slope = make("exp", -(y * y)) * (2.0 / math.sqrt(math.pi))
        y = y + (make("erfc", y) - (1.0 - a)) / slope
    y = a.is_("eq", 1.0).where(math.inf, y)
    return a.is_("gt", 1.0).where(math.nan, make("copysign", y, t)).to(x.dtype)


_INTEGER = ("fmod", "pow")

#: by op: its decomposition. Those in `_INTEGER` apply to integers only
FUNCTIONS: dict[str, Callable[..., Term]] = {
    "fma": fma, "fmod": fmod, "remainder": remainder, "pow": integer_pow, "copysign": copysign,
    "shift_left": shift_left, "shift_right": shift_right, "sign": sign, "trunc": trunc,
    "is_nan": is_nan, "is_inf": is_inf, "reciprocal": reciprocal, "rsqrt": rsqrt,
    "sigmoid": sigmoid, "atan2": atan2, "exp2": exp2, "expm1": expm1, "log1p": log1p, "log2": log2,
    "log10": log10, "tan": tan, "asin": asin, "acos": acos, "atan": atan, "sinh": sinh,
    "cosh": cosh, "asinh": asinh, "acosh": acosh, "atanh": atanh, "erf": erf, "erfc": erfc,
    "erfinv": erfinv,
}  # fmt: skip


def applies(name: str, dtype: str) -> bool:
    """Whether there is a decomposition for this element type."""
    return name in FUNCTIONS and not (name in _INTEGER and dtype in FLOATS)
