"""log, log2, log10, log1p in float32.

x = 2^e * (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), log(1 + f) = f + f^2 Q(f) with a minimax
polynomial Q; for another base, Q and two-part constants are scaled to it.
"""

from __future__ import annotations

import math

import numpy as np

from gflow.dialects.records import record

from .arith import Arith
from .coefficients import LOG

_ROOT_HALF = 0x3F3504F3  # bits of float32(sqrt(1/2))
_MANTISSA = 0x007FFFFF


def _split(value: float) -> tuple[float, float]:
    high = float(np.float32(value))
    return high, value - high


@record
class _Base:
    """log_base(2^e (1+f)) = e*log_base(2) + f*log_base(e) + f^2 Q(f)*log_base(e)."""

    of_2: float
    of_e: float


_NATURAL = _Base(math.log(2), 1.0)
_TWO = _Base(1.0, math.log2(math.e))
_TEN = _Base(math.log10(2), math.log10(math.e))


def _exponent(m: Arith, x: str) -> tuple[str, str, str]:
    """(offset, e, mantissa bits) of positive normal x; offset is x's bits less sqrt(1/2)'s."""
    offset = m.i("subi", m.bits(x), m.ic(_ROOT_HALF))
    e = m.i("shrsi", offset, m.ic(23))
    mantissa = m.i("addi", m.i("andi", offset, m.ic(_MANTISSA)), m.ic(_ROOT_HALF))
    return offset, e, m.from_bits(mantissa)


def _combine(m: Arith, e: str, f: str, base: _Base) -> str:
    two_hi, two_lo = _split(base.of_2)
    unit_hi, unit_lo = _split(base.of_e)
    tail = m.mul(m.mul(f, f), m.poly(f, [c * base.of_e for c in LOG]))
    if unit_lo:
        tail = m.fma(f, m.c(unit_lo), tail)
    if two_lo:
        tail = m.fma(e, m.c(two_lo), tail)
    head = m.add(f, tail) if unit_hi == 1.0 else m.fma(f, m.c(unit_hi), tail)
    return m.add(e, head) if two_hi == 1.0 else m.fma(e, m.c(two_hi), head)


def _specials(m: Arith, x: str, result: str) -> str:
    """-inf at 0, NaN below, x itself at inf and NaN."""
    zero, inf = m.c(0.0), m.c(math.inf)
    special = m.select(m.cmp("olt", x, zero), m.c(math.nan), x)
    special = m.select(m.cmp("oeq", x, zero), m.c(-math.inf), special)
    usual = m.both(m.cmp("ogt", x, zero), m.cmp("olt", x, inf))
    return m.select(usual, result, special)


def _log(m: Arith, x: str, base: _Base) -> str:
    denormal = m.cmp("olt", x, m.c(2.0**-126))
    scaled = m.select(denormal, m.mul(x, m.c(2.0**23)), x)
    _, e, mantissa = _exponent(m, scaled)
    e = m.add(m.to_float(e), m.select(denormal, m.c(-23.0), m.c(0.0)))
    f = m.sub(mantissa, m.c(1.0))
    return _specials(m, x, _combine(m, e, f, base))


def log(m: Arith, x: str) -> str:
    """The natural logarithm in float32."""
    return _log(m, x, _NATURAL)


def log2(m: Arith, x: str) -> str:
    """The logarithm to base 2 in float32."""
    return _log(m, x, _TWO)


def log10(m: Arith, x: str) -> str:
    """The logarithm to base 10 in float32."""
    return _log(m, x, _TEN)


def log1p(m: Arith, x: str) -> str:
    """The exponent from u = 1 + x, but f from x itself: f = x*2^-e + (2^-e - 1) in one FMA."""
    one = m.c(1.0)
    u = m.add(x, one)
    _, e, mantissa = _exponent(m, u)
    inverse = m.from_bits(m.i("subi", m.bits(one), m.i("shli", e, m.ic(23))))
    f = m.fma(x, inverse, m.sub(inverse, one))
    # From 2^25 on, log(1 + x) is log(u); there 2^-e would leave the normal range.
    f = m.select(m.cmp("ogt", x, m.c(2.0**25)), m.sub(mantissa, one), f)
    result = _combine(m, m.to_float(e), f, _NATURAL)
    return m.copysign(_specials(m, u, result), x)
