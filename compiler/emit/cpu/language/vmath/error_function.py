"""erf in float32, without branch or division.

x + x P(x^2) near 0; 1 - exp(-t + t P(t)) with t = |x| from 0.92 on, where the polynomial approximates log(erfc(t)). The
form is by Norbert Juffa; the coefficients were fitted for gflow.
"""

from __future__ import annotations

from .arith import Arith
from .coefficients import ERF_LARGE, ERF_SMALL
from .exponential import exp_of_moderate


def erf(m: Arith, x: str) -> str:
    """erf(x) in float32: a polynomial below 0.92, 1 − e^p(|x|) above."""
    a = m.abs(x)
    square = m.mul(x, x)
    small = m.fma(m.poly(square, ERF_SMALL), x, x)
    t = m.at_most(a, m.c(3.95))  # erf rounds to 1 from 3.92 on
    exponent = m.fma(m.poly(t, ERF_LARGE), t, m.neg(t))
    large = m.sub(m.c(1.0), exp_of_moderate(m, exponent))
    return m.select(m.cmp("olt", a, m.c(0.92)), small, m.copysign(large, x))
