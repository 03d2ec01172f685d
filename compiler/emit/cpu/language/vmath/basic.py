"""Roots, rounding, signs and remainders: exact functions, or a few instructions."""

from __future__ import annotations

import math

from .arith import Arith
from .libm import call


def sqrt(m: Arith, x: str) -> str:
    """√x, correctly rounded."""
    return m.sqrt(x)


def rsqrt(m: Arith, x: str) -> str:
    """1 / √x, rounded twice."""
    return m.div(m.c(1.0), m.sqrt(x))


def reciprocal(m: Arith, x: str) -> str:
    """1 / x, correctly rounded."""
    return m.div(m.c(1.0), x)


def floor(m: Arith, x: str) -> str:
    """x rounded down."""
    return m.floor(x)


def ceil(m: Arith, x: str) -> str:
    """x rounded up."""
    return m.e(f"math.ceil {x} : {m.ty}")


def trunc(m: Arith, x: str) -> str:
    """x rounded towards zero."""
    return m.trunc(x)


def round(m: Arith, x: str) -> str:
    """x rounded to the nearest integer, halves to even."""
    return m.e(f"math.roundeven {x} : {m.ty}")


def abs(m: Arith, x: str) -> str:
    """|x|."""
    return m.abs(x)


def sign(m: Arith, x: str) -> str:
    """-1, 0 or 1; 0 for NaN, as in PyTorch."""
    zero = m.c(0.0)
    negative = m.select(m.cmp("olt", x, zero), m.c(-1.0), zero)
    return m.select(m.cmp("ogt", x, zero), m.c(1.0), negative)


def copysign(m: Arith, x: str, sign: str) -> str:
    """The magnitude of `x` with the sign of `sign`."""
    return m.copysign(x, sign)


def fmod_float32(m: Arith, x: str, y: str) -> str:
    """x - trunc(x/y)*y, exact.

    In float64 the quotient of two float32 truncates rightly below 2^28 (a quotient that is not
    an integer is at least 2^-24 of the way to one from it), and the FMA is exact. Larger
    quotients take the C library's function.
    """
    w = m.widened()
    xw, yw = m.widen(x), m.widen(y)
    quotient = w.div(xw, yw)
    r = m.narrow(w.fma(w.neg(w.trunc(quotient)), yw, xw))
    inf = m.c(math.inf)
    by_inf = m.both(m.cmp("oeq", m.abs(y), inf), m.cmp("olt", m.abs(x), inf))
    r = m.copysign(m.select(by_inf, x, r), x)
    size = w.abs(quotient)
    huge = w.both(w.cmp("oge", size, w.c(2.0**28)), w.cmp("olt", size, w.c(math.inf)))
    return m.where_any(huge, r, lambda: call(m, "fmodf", [x, y]))


def remainder_from_fmod(m: Arith, r: str, y: str) -> str:
    """The remainder with the sign of y, as in Python, from the result r of fmod."""
    zero = m.c(0.0)
    r_negative, y_negative = m.cmp("olt", r, zero), m.cmp("olt", y, zero)
    differ = m.e(f"arith.xori {r_negative}, {y_negative} : {m.mask_ty}")
    return m.select(m.both(m.cmp("une", r, zero), differ), m.add(r, y), r)


def remainder_float32(m: Arith, x: str, y: str) -> str:
    """Python's x % y in float32: the exact remainder with the sign of `y`."""
    return remainder_from_fmod(m, fmod_float32(m, x, y), y)
