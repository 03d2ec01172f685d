"""sin, cos, tan and their inverses in float32.

Arguments are reduced by a three-part pi (Cody and Waite; the first step is exact with FMA),
good to |x| <= 1e5. Lanes beyond that take the C library's function, which reduces exactly.
"""

from __future__ import annotations

import math

from .arith import Arith
from .coefficients import ASIN, ATAN, COS, SIN, TAN
from .libm import call

_LIMIT = 1e5
_ROUNDER = 1.5 * 2**23
# pi in three float32 parts; the fourth would be 1.2e-22
_PI = (3.1415927410125732421875, -8.74227765734758577309549e-8, -3.430264601e-15)
_HALF_PI_HI, _HALF_PI_LO = _PI[0] / 2, _PI[1] / 2


def _quadrant(m: Arith, a: str, offset: int) -> tuple[str, str]:
    """(bits, r): a = n*pi/2 + r with |r| <= pi/4; the low bits of `bits` are n + offset."""
    rounder = m.c(_ROUNDER + offset)
    shifted = m.fma(a, m.c(2 / math.pi), rounder)
    n = m.sub(shifted, rounder)
    r = a
    for part in _PI:
        r = m.fma(n, m.c(-part / 2), r)
    return m.bits(shifted), r


def _is_odd(m: Arith, bits: str) -> str:
    return m.e(f"arith.trunci {bits} : {m.int_ty} to {m.mask_ty}")


def _with_sign(m: Arith, value: str, *signs: str) -> str:
    """`value` with its sign flipped by the top bit of each of `signs`."""
    flip = signs[0]
    for sign in signs[1:]:
        flip = m.i("xori", flip, sign)
    flip = m.i("andi", flip, m.ic(-(2**31)))
    return m.from_bits(m.i("xori", m.bits(value), flip))


def _large_by_libm(m: Arith, x: str, a: str, usual: str, function: str) -> str:
    return m.where_any(m.cmp("ogt", a, m.c(_LIMIT)), usual, lambda: call(m, function, [x]))


def _odd_tail(m: Arith, x: str, square: str, coefficients: tuple[float, ...]) -> str:
    """x^3 P(x^2)."""
    return m.mul(m.mul(square, m.poly(square, coefficients)), x)


def _odd(m: Arith, x: str, coefficients: tuple[float, ...]) -> str:
    """x + x^3 P(x^2)."""
    square = m.mul(x, x)
    return m.fma(m.mul(square, m.poly(square, coefficients)), x, x)


def _sine_of_quadrant(m: Arith, bits: str, r: str) -> tuple[str, str]:
    """(+-sin or cos of r, integer whose top bit is the sign): the sine of bits*pi/2 + r."""
    square = m.mul(r, r)
    cosine = m.fma(square, m.poly(square, COS), m.c(1.0))
    value = m.select(_is_odd(m, bits), cosine, _odd(m, r, SIN))
    return value, m.i("shli", bits, m.ic(30))


def sin(m: Arith, x: str) -> str:
    """sin(x) in float32: reduced to a quadrant, large arguments by libm."""
    a = m.abs(x)
    value, sign = _sine_of_quadrant(m, *_quadrant(m, a, 0))
    return _large_by_libm(m, x, a, _with_sign(m, value, sign, m.bits(x)), "sinf")


def cos(m: Arith, x: str) -> str:
    """The sine, one quadrant on."""
    a = m.abs(x)
    value, sign = _sine_of_quadrant(m, *_quadrant(m, a, 1))
    return _large_by_libm(m, x, a, _with_sign(m, value, sign), "cosf")


def tan(m: Arith, x: str) -> str:
    """tan(r), or -1/tan(r) after an odd number of quadrants."""
    a = m.abs(x)
    bits, r = _quadrant(m, a, 0)
    square = m.mul(r, r)
    tail = _odd_tail(m, r, square, TAN)
    value = m.add(r, tail)
    # 1/(r + tail), where r + tail has been rounded: corrected by the product's distance to -1.
    inverse = m.div(m.c(-1.0), value)
    distance = m.fma(inverse, tail, m.fma(inverse, r, m.c(1.0)))
    inverse = m.fma(inverse, distance, inverse)
    value = m.select(_is_odd(m, bits), inverse, value)
    return _large_by_libm(m, x, a, _with_sign(m, value, m.bits(x)), "tanf")


def _asin_parts(m: Arith, a: str) -> tuple[str, str]:
    """(is a > 1/2, s): s = asin(a) for a <= 1/2, else acos(a)/2 = asin(sqrt((1 - a)/2))."""
    large = m.cmp("ogt", a, m.c(0.5))
    half = m.fma(a, m.c(-0.5), m.c(0.5))
    square = m.select(large, half, m.mul(a, a))
    root = m.select(large, m.sqrt(half), a)
    return large, m.fma(m.mul(square, m.poly(square, ASIN)), root, root)


def asin(m: Arith, x: str) -> str:
    """asin(x) in float32; NaN outside [−1, 1]."""
    large, s = _asin_parts(m, m.abs(x))
    complement = m.add(m.fma(m.c(-2.0), s, m.c(_HALF_PI_HI)), m.c(_HALF_PI_LO))
    return m.copysign(m.select(large, complement, s), x)


def acos(m: Arith, x: str) -> str:
    """acos(x) in float32; NaN outside [−1, 1]."""
    large, s = _asin_parts(m, m.abs(x))
    negative = m.cmp("olt", x, m.c(0.0))
    twice = m.add(s, s)
    reflected = m.add(m.sub(m.c(_PI[0]), twice), m.c(_PI[1]))
    near_one = m.select(negative, reflected, twice)
    middle = m.add(m.sub(m.c(_HALF_PI_HI), m.copysign(s, x)), m.c(_HALF_PI_LO))
    return m.select(large, near_one, middle)


def _atan_ratio(m: Arith, low: str, high: str, swapped: str) -> str:
    """atan(low/high) for 0 <= low <= high, or pi/2 less it where `swapped`."""
    s = _odd(m, m.div(low, high), ATAN)
    return m.select(swapped, m.add(m.sub(m.c(_HALF_PI_HI), s), m.c(_HALF_PI_LO)), s)


def atan(m: Arith, x: str) -> str:
    """atan(x) in float32."""
    a = m.abs(x)
    one = m.c(1.0)
    large = m.cmp("ogt", a, one)
    low, high = m.select(large, one, a), m.select(large, a, one)
    return m.copysign(_atan_ratio(m, low, high, large), x)


def atan2(m: Arith, y: str, x: str) -> str:
    """The angle of the point (x, y) in float32, with C's results at zeros and infinities."""
    a, b = m.abs(y), m.abs(x)
    steep = m.cmp("ogt", a, b)
    low, high = m.select(steep, b, a), m.select(steep, a, b)
    # 0/0 counts as 0 and inf/inf as 1; a NaN operand stays.
    inf, zero = m.c(math.inf), m.c(0.0)
    high = m.select(m.cmp("oeq", high, zero), m.add(m.c(1.0), low), high)
    finite = m.c(float.fromhex("0x1.fffffep127"))
    both_inf = m.both(m.cmp("oeq", low, inf), m.cmp("oeq", high, inf))
    low, high = m.select(both_inf, finite, low), m.select(both_inf, finite, high)
    angle = _atan_ratio(m, low, high, steep)
    negative = m.e(f"arith.cmpi slt, {m.bits(x)}, {m.ic(0)} : {m.int_ty}")
    reflected = m.add(m.sub(m.c(_PI[0]), angle), m.c(_PI[1]))
    return m.copysign(m.select(negative, reflected, angle), y)
