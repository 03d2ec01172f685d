"""float64: the C library's functions lane by lane, and functions composed from them that C lacks."""

from __future__ import annotations

import math

from . import basic
from .arith import Arith
from .libm import call
from .wide import erfinv_estimate, erfinv_specials


def sigmoid(m: Arith, x: str) -> str:
    """1 / (1 + e⁻ˣ) in float64, from e^−|x|, which does not overflow."""
    z = call(m, "exp", [m.neg(m.abs(x))])
    one = m.c(1.0)
    return m.div(m.select(m.cmp("olt", x, m.c(0.0)), z, one), m.add(z, one))


def fmod(m: Arith, x: str, y: str) -> str:
    """C's fmod in float64, by libm."""
    return call(m, "fmod", [x, y])


def remainder(m: Arith, x: str, y: str) -> str:
    """Python's x % y in float64: the remainder with the sign of `y`."""
    return basic.remainder_from_fmod(m, fmod(m, x, y), y)


def erfinv(m: Arith, x: str) -> str:
    """The inverse of erf in float64: an estimate and one step of Halley's method, on erfc where |x| > 1/2."""
    a = m.abs(x)
    g = erfinv_estimate(m, a)
    near = m.sub(call(m, "erf", [g]), a)
    far = m.sub(m.sub(m.c(1.0), a), call(m, "erfc", [g]))
    error = m.select(m.cmp("olt", a, m.c(0.5)), near, far)
    slope_inverse = m.mul(call(m, "exp", [m.mul(g, g)]), m.c(math.sqrt(math.pi) / 2))
    step = m.mul(error, slope_inverse)
    y = m.sub(g, m.div(step, m.fma(g, step, m.c(1.0))))
    return erfinv_specials(m, x, m.copysign(y, x))
