"""exp and its family in float32: exp, exp2, expm1, sigmoid, sinh, cosh, tanh.

x = n*log(2) + r with |r| <= log(2)/2 by Cody and Waite's two-constant reduction (exact with
FMA), exp(r) by a minimax polynomial, 2^n by building the exponent. n is rounded by adding a
constant whose last place is 1, which leaves n in the sum's low bits as well.
"""

from __future__ import annotations

import math

from .arith import Arith
from .coefficients import EXP, EXP2, SINH

_LOG2_E = math.log2(math.e)
_LN2_HI = 0.693147182464599609375  # float32(log 2)
_LN2_LO = math.log(2) - _LN2_HI
_ROUNDER = 1.5 * 2**23  # adding it rounds to an integer, to even


def _reduce(m: Arith, x: str, bias: int) -> tuple[str, str, str]:
    """(n, bits, r): x = n*log(2) + r; the low bits of `bits` are n + bias."""
    rounder = m.c(_ROUNDER + bias)
    shifted = m.fma(x, m.c(_LOG2_E), rounder)
    n = m.sub(shifted, rounder)
    r = m.fma(n, m.c(-_LN2_HI), x)
    return n, m.bits(shifted), m.fma(n, m.c(-_LN2_LO), r)


def _power_of_two(m: Arith, bits: str) -> str:
    """2^n from low bits that hold n + 127, -127 < n < 128."""
    return m.from_bits(m.i("shli", bits, m.ic(23)))


def _scale(m: Arith, value: str, bits: str) -> str:
    """value * 2^n from low bits that hold n + 254: two factors, so that neither overflows."""
    half = m.i("shrui", bits, m.ic(1))
    rest = m.i("subi", bits, half)
    return m.mul(m.mul(value, _power_of_two(m, half)), _power_of_two(m, rest))


def _exp_poly(m: Arith, r: str) -> str:
    return m.poly(r, (1.0, 1.0, *EXP))


def _expm1_poly(m: Arith, r: str) -> str:
    return m.fma(m.mul(r, r), m.poly(r, EXP), r)


def _exp(m: Arith, x: str, shift: int = 0) -> str:
    """exp(x) * 2^shift for x that is clamped where needed."""
    _, bits, r = _reduce(m, x, 254 + shift)
    return _scale(m, _exp_poly(m, r), bits)


def exp_of_moderate(m: Arith, x: str) -> str:
    """exp(x) for -87 < x < 88: no overflow, no denormal."""
    _, bits, r = _reduce(m, x, 127)
    return m.mul(_exp_poly(m, r), _power_of_two(m, bits))


def exp_of_negative(m: Arith, x: str) -> str:
    """exp(x) for x <= 0, where what would be denormal is 0. NaN stays NaN."""
    low = m.c(-87.0)
    _, bits, r = _reduce(m, m.at_least(x, low), 127)
    value = m.mul(_exp_poly(m, r), _power_of_two(m, bits))
    return m.select(m.cmp("olt", x, low), m.c(0.0), value)


def exp(m: Arith, x: str) -> str:
    """eˣ in float32; arguments that overflow or vanish are clamped first."""
    return _exp(m, m.at_least(m.at_most(x, m.c(89.0)), m.c(-105.0)))


def exp2(m: Arith, x: str) -> str:
    """2ˣ in float32: the nearest integer goes into the exponent, a polynomial gives the rest."""
    x = m.at_least(m.at_most(x, m.c(129.0)), m.c(-151.0))
    rounder = m.c(_ROUNDER + 254)
    shifted = m.add(x, rounder)
    r = m.sub(x, m.sub(shifted, rounder))
    return _scale(m, m.poly(r, (1.0, *EXP2)), m.bits(shifted))


def expm1(m: Arith, x: str) -> str:
    """eˣ − 1 in float32, accurate around 0."""
    clamped = m.at_least(m.at_most(x, m.c(89.0)), m.c(-18.0))
    # 2 * (2^(n-1) expm1(r) + 2^(n-1) - 1/2), where 2^n alone could overflow.
    _, bits, r = _reduce(m, clamped, 126)
    half = _power_of_two(m, bits)
    value = m.fma(half, _expm1_poly(m, r), m.sub(half, m.c(0.5)))
    return m.copysign(m.add(value, value), x)


def sigmoid(m: Arith, x: str) -> str:
    """exp(-|x|) cannot overflow: 1 / (1 + it) for x >= 0, it / (1 + it) for x < 0."""
    z = _exp(m, m.at_least(m.neg(m.abs(x)), m.c(-105.0)))
    one = m.c(1.0)
    return m.div(m.select(m.cmp("olt", x, m.c(0.0)), z, one), m.add(z, one))


def tanh(m: Arith, x: str) -> str:
    """q = t / (t + 2) with t = expm1(2|x|); near 0, t/2 - t/2*q rounds better. 1 from 9.1 on."""
    a = m.at_most(m.abs(x), m.c(9.1))
    _, bits, r = _reduce(m, m.add(a, a), 127)
    power = _power_of_two(m, bits)
    t = m.fma(power, _expm1_poly(m, r), m.sub(power, m.c(1.0)))
    q = m.div(t, m.add(t, m.c(2.0)))
    half = m.mul(t, m.c(0.5))
    near = m.fma(m.neg(half), q, half)
    return m.copysign(m.select(m.cmp("olt", half, m.c(0.35)), near, q), x)


def _half_exp_and_inverse(m: Arith, a: str) -> tuple[str, str]:
    """exp(a)/2 and exp(-a)/2 for a >= 0."""
    half = _exp(m, m.at_most(a, m.c(90.0)), shift=-1)
    return half, m.div(m.c(0.25), half)


def sinh(m: Arith, x: str) -> str:
    """sinh(x) in float32: an odd polynomial below 1, (e^|x| − e^−|x|) / 2 above."""
    a = m.abs(x)
    half, inverse = _half_exp_and_inverse(m, a)
    square = m.mul(a, a)
    small = m.fma(m.mul(square, m.poly(square, SINH)), a, a)
    return m.copysign(m.select(m.cmp("olt", a, m.c(1.0)), small, m.sub(half, inverse)), x)


def cosh(m: Arith, x: str) -> str:
    """cosh(x) = (e^|x| + e^−|x|) / 2 in float32."""
    half, inverse = _half_exp_and_inverse(m, m.abs(x))
    return m.add(half, inverse)
