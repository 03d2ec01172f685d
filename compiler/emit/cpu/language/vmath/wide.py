"""float32 functions that are computed in float64, which keeps their code short: erfc, erfinv, asinh, acosh, atanh, pow.

In float32 each needs two-part arithmetic, whereas 53 bits absorb the cancellation and the product y*log(x). The result
is rounded once, to float32.
"""

from __future__ import annotations

import math

from .arith import Arith
from .coefficients import WIDE_ERFC, WIDE_ERFINV_CENTRE, WIDE_ERFINV_TAIL, WIDE_EXP2, WIDE_LOG2

_LN2 = math.log(2)
_ROUNDER = 1.5 * 2**52 + 1023
_ROOT_HALF = 0x3FE6A09E667F3BCD  # bits of sqrt(1/2)
_ONE_EXPONENT = 1023 << 52
_MANTISSA = (1 << 52) - 1
_INTEGER = 0x433 << 52  # bits of 2^52: an integer below 2^52 in the mantissa


def _exp2(w: Arith, t: str) -> str:
    """2^t in float64 to 2^-34; clamped to |t| <= 1000, past all of float32."""
    t = w.at_least(w.at_most(t, w.c(1000.0)), w.c(-1000.0))
    rounder = w.c(_ROUNDER)
    shifted = w.add(t, rounder)
    r = w.sub(t, w.sub(shifted, rounder))
    power = w.from_bits(w.i("shli", w.bits(shifted), w.ic(52)))
    return w.mul(w.poly(r, WIDE_EXP2), power)


def log2(w: Arith, x: str) -> str:
    """log2 of positive normal float64 to 2^-45; anything for 0, negative, inf and NaN."""
    offset = w.i("addi", w.bits(x), w.ic(_ONE_EXPONENT - _ROOT_HALF))
    biased = w.i("ori", w.i("shrui", offset, w.ic(52)), w.ic(_INTEGER))
    e = w.sub(w.from_bits(biased), w.c(2.0**52 + 1023))
    mantissa = w.i("addi", w.i("andi", offset, w.ic(_MANTISSA)), w.ic(_ROOT_HALF))
    value = w.from_bits(mantissa)
    one = w.c(1.0)
    s = w.div(w.sub(value, one), w.add(value, one))
    return w.fma(s, w.poly(w.mul(s, s), WIDE_LOG2), e)


def erfc(m: Arith, x: str) -> str:
    """t P(t) exp(-x^2) with t = 1/(1 + |x|/2); 2 less that for x < 0."""
    w = m.widened()
    xw = m.widen(x)
    a = w.at_most(w.abs(xw), w.c(10.3))
    one = w.c(1.0)
    t = w.div(one, w.fma(a, w.c(0.5), one))
    gauss = _exp2(w, w.mul(w.mul(a, a), w.c(-math.log2(math.e))))
    y = w.mul(w.mul(t, w.poly(t, WIDE_ERFC)), gauss)
    y = w.select(w.cmp("olt", xw, w.c(0.0)), w.sub(w.c(2.0), y), y)
    return m.narrow(y)


def erfinv_estimate(w: Arith, x: str) -> str:
    """erfinv in float64 to 2^-27 for |x| < 1, as Giles does: x P(w), w = -log(1 - x^2)."""
    one = w.c(1.0)
    v = w.mul(log2(w, w.mul(w.sub(one, x), w.add(one, x))), w.c(-_LN2))
    centre = w.poly(w.sub(v, w.c(2.5)), WIDE_ERFINV_CENTRE)
    tail = w.poly(w.sub(w.sqrt(v), w.c(3.0)), WIDE_ERFINV_TAIL)
    return w.mul(x, w.select(w.cmp("olt", v, w.c(5.0)), centre, tail))


def erfinv_specials(m: Arith, x: str, y: str) -> str:
    """Infinite at -1 and 1, NaN beyond and at NaN; `y` elsewhere."""
    a, one = m.abs(x), m.c(1.0)
    y = m.select(m.cmp("olt", a, one), y, m.c(math.nan))
    return m.select(m.cmp("oeq", a, one), m.copysign(m.c(math.inf), x), y)


def erfinv(m: Arith, x: str) -> str:
    """The inverse of erf on (−1, 1), computed in float64 and rounded to float32."""
    return erfinv_specials(m, x, m.narrow(erfinv_estimate(m.widened(), m.widen(x))))


def _odd_around_zero(m: Arith, x: str, far: str, limit: float) -> str:
    """+-far where 2^-12 < |x| < limit (so that f(x) is x to half an ulp below), else x."""
    a = m.abs(x)
    usual = m.both(m.cmp("ogt", a, m.c(2.0**-12)), m.cmp("olt", a, m.c(limit)))
    return m.select(usual, m.copysign(far, x), x)


def asinh(m: Arith, x: str) -> str:
    """asinh(x), computed in float64 and rounded to float32."""
    w = m.widened()
    a = w.abs(m.widen(x))
    inner = w.add(a, w.sqrt(w.fma(a, a, w.c(1.0))))
    return _odd_around_zero(m, x, m.narrow(w.mul(log2(w, inner), w.c(_LN2))), math.inf)


def acosh(m: Arith, x: str) -> str:
    """acosh(x), computed in float64 and rounded to float32; NaN below 1."""
    w = m.widened()
    a = m.widen(x)
    inner = w.add(a, w.sqrt(w.fma(a, a, w.c(-1.0))))
    y = m.narrow(w.mul(log2(w, inner), w.c(_LN2)))
    one = m.c(1.0)
    y = m.select(m.cmp("olt", x, m.c(math.inf)), y, x)
    return m.select(m.cmp("olt", x, one), m.c(math.nan), y)


def atanh(m: Arith, x: str) -> str:
    """atanh(x), computed in float64 and rounded to float32; ±∞ at ±1, NaN beyond."""
    w = m.widened()
    a = w.abs(m.widen(x))
    one = w.c(1.0)
    ratio = w.div(w.add(one, a), w.sub(one, a))
    far = m.narrow(w.mul(log2(w, ratio), w.c(_LN2 / 2)))
    y = _odd_around_zero(m, x, far, 1.0)
    return m.select(m.cmp("uge", m.abs(x), m.c(1.0)), _atanh_end(m, x), y)


def _atanh_end(m: Arith, x: str) -> str:
    """+-inf at +-1, NaN beyond."""
    at_one = m.cmp("oeq", m.abs(x), m.c(1.0))
    return m.select(at_one, m.copysign(m.c(math.inf), x), m.c(math.nan))


def pow(m: Arith, x: str, y: str) -> str:
    """2^(y log2|x|) in float64; signs, zeros and infinities by C's rules."""
    w = m.widened()
    zero, one, inf = m.c(0.0), m.c(1.0), m.c(math.inf)
    a, ay = m.abs(x), m.abs(y)
    aw = m.widen(a)
    log = log2(w, aw)
    log = w.select(w.cmp("oeq", aw, w.c(0.0)), w.c(-math.inf), log)
    log = w.select(w.cmp("ult", aw, w.c(math.inf)), log, aw)
    log = w.select(w.cmp("uno", aw, aw), aw, log)
    magnitude = m.narrow(_exp2(w, w.mul(m.widen(y), log)))

    # A negative base: NaN unless y is an integer; the sign if it is odd.
    half = m.mul(y, m.c(0.5))
    integer = m.cmp("oeq", m.floor(y), y)
    odd = m.both(integer, m.cmp("one", m.floor(half), half))
    signed = m.select(odd, m.copysign(magnitude, x), magnitude)
    below = m.both(m.cmp("olt", x, zero), m.cmp("ogt", x, m.c(-math.inf)))
    bad = m.both(below, m.cmp("une", m.floor(y), y))
    signed = m.select(bad, m.c(math.nan), signed)

    # 1 for y = 0, x = 1, and |x| = 1 with infinite y, NaN in the other operand or not.
    unit = m.either(m.cmp("oeq", y, zero), m.cmp("oeq", x, one))
    unit = m.either(unit, m.both(m.cmp("oeq", a, one), m.cmp("oeq", ay, inf)))
    return m.select(unit, one, signed)
