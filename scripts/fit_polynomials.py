"""Fit the polynomials of `compiler/emit/cpu/language/vmath/` and print their coefficients.

Every approximation there is `f(x) = base(x) + scale(x) * P(u(x))` with a polynomial P. This
script finds the P that minimizes the largest *relative* error of f over an interval: weighted
least squares at Chebyshev nodes, the weights moved towards the largest errors until the error
levels out (Lawson's iteration), sampled with mpmath. Coefficients for float32 code are rounded
one at a time, lowest first, and the rest fitted again.

    python scripts/fit_polynomials.py [NAME ...]

prints each table and the relative error it reaches in exact arithmetic, as a power of two.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp
import numpy as np

mp.mp.prec = 160

Real = Callable[[mp.mpf], mp.mpf]


@dataclass
class Fit:
    """`f(x) ~ base(x) + scale(x) * P(variable(x))` for x in [low, high], P of `degree`."""

    f: Real
    base: Real
    scale: Real
    variable: Real
    low: float
    high: float
    degree: int
    single: bool = True  # round the coefficients to float32
    reference: Real | None = None  # errors are relative to this (default f)
    even: bool = False  # P in x*x: sample x from 0, where x*x is dense


def _erfcx(x: mp.mpf) -> mp.mpf:
    return mp.erfc(x) * mp.exp(x * x)


def _erfinv_of_w(w: mp.mpf) -> mp.mpf:
    """erfinv(x) / x at the x in (0, 1) with w = -log(1 - x*x)."""
    if w == 0:
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(-mp.expm1(-w))
    return mp.erfinv(x) / x


def identity(x: mp.mpf) -> mp.mpf:
    return x


def square(x: mp.mpf) -> mp.mpf:
    return x * x


def cube(x: mp.mpf) -> mp.mpf:
    return x**3


def zero(x: mp.mpf) -> mp.mpf:
    return mp.mpf(0)


_HALF_LN2 = 0.3466 * 1.002
_ROOT2 = 2**0.5

FITS: dict[str, Fit] = {
    # exp(r) = 1 + r + r^2 P(r); the error is weighed for exp(r) - 1, which expm1 and tanh need.
    "EXP": Fit(mp.expm1, identity, square, identity, -_HALF_LN2, _HALF_LN2, 4),
    "EXP2": Fit(
        lambda x: mp.mpf(2) ** x, lambda x: mp.mpf(1), identity, identity, -0.5001, 0.5001, 5
    ),
    "LOG": Fit(mp.log1p, identity, square, identity, _ROOT2 / 2 - 1, _ROOT2 - 1, 8),
    "SIN": Fit(mp.sin, identity, cube, square, 0, 0.79, 2, even=True),
    "COS": Fit(mp.cos, lambda x: mp.mpf(1), square, square, 0, 0.79, 3, even=True),
    "TAN": Fit(mp.tan, identity, cube, square, 0, 0.79, 6, even=True),
    "ASIN": Fit(mp.asin, identity, cube, square, 0, 0.5, 4, even=True),
    "ATAN": Fit(mp.atan, identity, cube, square, 0, 1, 8, even=True),
    "SINH": Fit(mp.sinh, identity, cube, square, 0, 1, 3, even=True),
    "ERF_SMALL": Fit(mp.erf, identity, identity, square, 0, 0.925, 5, even=True),
    # log(erfc(t)) = -t + t P(t); the error counts as much as it moves 1 - erfc(t).
    "ERF_LARGE": Fit(
        lambda x: mp.log(mp.erfc(x)),
        lambda x: -x,
        identity,
        identity,
        0.92,
        3.95,
        6,
        reference=lambda x: mp.erf(x) / mp.erfc(x),
    ),
    # Evaluated in float64.
    "WIDE_EXP2": Fit(
        lambda x: mp.mpf(2) ** x, zero, lambda x: mp.mpf(1), identity, -0.5, 0.5, 7, single=False
    ),
    # log2((1+s)/(1-s)) = s P(s^2)
    "WIDE_LOG2": Fit(
        lambda s: mp.log((1 + s) / (1 - s)) / mp.log(2),
        zero,
        identity,
        square,
        0,
        0.17158,
        5,
        single=False,
        even=True,
    ),
    # erfc(x) exp(x^2) = t P(t), t = 1 / (1 + x/2)
    "WIDE_ERFC": Fit(
        _erfcx,
        zero,
        lambda x: 1 / (1 + x / 2),
        lambda x: 1 / (1 + x / 2),
        0,
        10.3,
        11,
        single=False,
    ),
    # erfinv(x) = x P(w - 2.5), w = -log(1 - x^2), for w < 5; x P(sqrt(w) - 3) above.
    "WIDE_ERFINV_CENTRE": Fit(
        _erfinv_of_w, zero, lambda w: mp.mpf(1), lambda w: w - 2.5, 0, 5, 11, single=False
    ),
    "WIDE_ERFINV_TAIL": Fit(
        _erfinv_of_w, zero, lambda w: mp.mpf(1), lambda w: mp.sqrt(w) - 3, 5, 36.8, 14, single=False
    ),
}


def _nodes(fit: Fit, count: int) -> list[mp.mpf]:
    low, high = mp.mpf(fit.low), mp.mpf(fit.high)
    if fit.even:
        low = -high
    angles = [mp.pi * (2 * k + 1) / (2 * count) for k in range(count)]
    points = [(low + high) / 2 + (high - low) / 2 * mp.cos(a) for a in angles]
    return [p for p in points if p > 0] if fit.even else points


def solve(fit: Fit) -> tuple[list[float], float]:
    """The coefficients, lowest first, and log2 of the largest relative error they leave."""
    xs = _nodes(fit, 800 if fit.even else 401)
    if not fit.even:  # a node at 0 would divide 0 by 0
        xs = [x if abs(x) > 1e-9 else mp.mpf("1e-9") for x in xs]
    reference = fit.reference or fit.f
    u = np.array([float(fit.variable(x)) for x in xs])
    target = np.array([float((fit.f(x) - fit.base(x)) / fit.scale(x)) for x in xs])
    sensitivity = np.array([float(abs(fit.scale(x) / reference(x))) for x in xs])

    fixed: list[float] = []
    centre, half = (u.max() + u.min()) / 2, (u.max() - u.min()) / 2
    while True:
        done = len(fixed)
        residual = target - np.polynomial.polynomial.polyval(u, fixed) if fixed else target
        free = fit.degree + 1 - done
        if free == 0:
            break
        basis = np.polynomial.chebyshev.chebvander((u - centre) / half, free - 1)
        basis = basis * (u**done * sensitivity)[:, None]
        weights = np.ones_like(u)
        best, best_error = None, np.inf
        for _ in range(300):
            root = np.sqrt(weights)
            solution = np.linalg.lstsq(
                basis * root[:, None], residual * sensitivity * root, rcond=None
            )[0]
            errors = np.abs(basis @ solution - residual * sensitivity)
            if errors.max() < best_error:
                best, best_error = solution, errors.max()
            weights = weights * (errors + 1e-3 * errors.max())
            weights /= weights.sum()
        series = np.polynomial.chebyshev.Chebyshev(best, domain=[centre - half, centre + half])
        mono = series.convert(kind=np.polynomial.Polynomial, domain=[-1, 1], window=[-1, 1]).coef
        mono = np.concatenate([mono, np.zeros(free - len(mono))])
        if not fit.single:
            fixed += [float(c) for c in mono]
            break
        fixed.append(float(np.float32(mono[0])))
    worst = np.abs((np.polynomial.polynomial.polyval(u, fixed) - target) * sensitivity).max()
    return fixed, float(np.log2(worst))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help=f"default: all of {', '.join(FITS)}")
    names = parser.parse_args().name
    if unknown := [name for name in names if name not in FITS]:
        parser.error(f"no fit is called {unknown[0]}")
    for name in names or list(FITS):
        coefficients, error = solve(FITS[name])
        print(f"# relative error 2^{error:.1f}")
        text = [str(np.float32(c)) if FITS[name].single else repr(c) for c in coefficients]
        print(f"{name} = (\n    " + ",\n    ".join(text) + ",\n)")


if __name__ == "__main__":
    main()
