"""Formulas of sizes (`sympy` expressions, as PyTorch has them) as what a program can hold: polynomials in one size.

A program is for a domain (`gflow.tracing.data.sizes`): the sizes n = step * k + rest, for k in a range. Where n itself
has no polynomial (n // 2), k may have: with n = 2 k + 1 it is k. So what a formula needs narrows the domain, and other
sizes have programs of their own, of which there are as many as remainders and as sides of a bound.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial, reduce
from math import gcd
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from gflow.dialects.extents import evaluate

from ...data.sizes import Domain, Fixed, Narrower, Size

#: the highest power of a size
_DEGREE = 3

Polynomial = tuple[int, ...]  # coefficients, constant first


class Formulas:
    """Reads formulas on a domain. others: what other symbols are, (b, a) for b + a n."""

    def __init__(
        self, domain: Domain | None, variable: Any, others: Mapping[Any, tuple[int, int]]
    ) -> None:
        self.domain, self.variable, self.others = domain, variable, dict(others)
        self._known: dict[Any, Polynomial] = {}

    # -- integers

    def size(self, expr: Any) -> int:
        """A formula as an integer for a trace.

        Raises:
            Narrower, Fixed: it is none on the whole domain.
        """
        found = self.polynomial(sympy.sympify(expr))
        if len(found) < 2:
            return found[0] if found else 0
        assert self.domain is not None
        return Size.make(found, self.domain.symbol)

    def concrete(self, value: Any) -> Any:
        """An argument of a call: a symbolic integer as an integer for the trace."""
        return self.size(value.node.expr) if isinstance(value, torch.SymInt) else value

    def polynomial(self, expr: Any) -> Polynomial:
        """The coefficients of a formula.

        Raises:
            Fixed: its degree is too high.
        """
        found = self._known.get(expr)
        if found is None:
            found = _trimmed(self._read(expr))
            if len(found) > _DEGREE + 1:
                raise Fixed(str(expr))
            self._known[expr] = found
        return found

    def _read(self, expr: Any) -> Polynomial:
        if expr.is_Integer:
            return (int(expr),)
        if expr.is_Symbol:
            if expr == self.variable:
                assert self.domain is not None
                return (self.domain.rest, self.domain.step)
            if expr in self.others:
                b, a = self.others[expr]
                return _plus((b,), _times((a,), self.polynomial(self.variable))) if a else (b,)
            raise Fixed(str(expr))
        reader = _READERS.get(type(expr).__name__)
        if reader is None:
            raise Fixed(str(expr))
        return reader(self, expr)

    def _sum(self, expr: Any) -> Polynomial:
        total: Polynomial = ()
        for a in expr.args:
            total = _plus(total, self.polynomial(a))
        return total

    def _product(self, expr: Any) -> Polynomial:
        total: Polynomial = (1,)
        for a in expr.args:
            total = _times(total, self.polynomial(a))
        return total

    def _power(self, expr: Any) -> Polynomial:
        base, exponent = expr.args
        if not exponent.is_Integer or not 0 <= int(exponent) <= _DEGREE:
            raise Fixed(str(expr))
        total: Polynomial = (1,)
        for _ in range(int(exponent)):
            total = _times(total, self.polynomial(base))
        return total

    def _quotient(self, expr: Any) -> Polynomial:
        return self._divided(expr)[0]

    def _ceiling(self, expr: Any) -> Polynomial:
        quotient, rest = self._divided(expr)
        return quotient if not _trimmed(rest) else _plus(quotient, (1,))

    def _remainder(self, expr: Any) -> Polynomial:
        return self._divided(expr)[1]

    def _divided(self, expr: Any) -> tuple[Polynomial, Polynomial]:
        """Quotient, rounded down, and remainder."""
        a, b = (self.polynomial(x) for x in expr.args)
        if len(b) < 2:
            (divisor,) = b or (0,)
            if divisor <= 0:
                raise Fixed(str(expr))
            common = gcd(divisor, *a[1:]) if len(a) > 1 else divisor
            if common != divisor:
                raise Narrower(step=divisor // common)
            constant = a[0] if a else 0
            return (constant // divisor, *(c // divisor for c in a[1:])), (constant % divisor,)
        quotient, rest = _long_division(a, b)
        while not self._is_less(rest, b):
            if not self._sign(rest) and self._sign(_plus(rest, b)) is not None:
                quotient, rest = _plus(quotient, (-1,)), _plus(rest, b)
                continue
            raise Fixed(str(expr))
        return quotient, rest

    def _is_less(self, rest: Polynomial, divisor: Polynomial) -> bool:
        """Whether 0 <= rest < divisor, for all sizes."""
        above = _plus(divisor, _times((-1,), _plus(rest, (1,))))
        return bool(self._sign(rest)) and bool(self._sign(above))

    def _sign(self, value: Polynomial) -> bool | None:
        """True: never negative, False: always negative.

        Raises:
            Narrower: the one on a part of the domain, the other on the rest.
            Fixed: which, is not clear.
        """
        value = _trimmed(value)
        if len(value) < 2:
            return not value or value[0] >= 0
        assert self.domain is not None
        ends = [evaluate(value, k) for k in (self.domain.least, self.domain.most)]
        if len(value) == 2:
            if (ends[0] >= 0) == (ends[1] >= 0):
                return ends[0] >= 0
            constant, slope = value
            raise Narrower(bound=-(constant // slope) if slope > 0 else constant // -slope + 1)
        rising = [c >= 0 for c in value[1:]]
        if all(rising) and ends[0] >= 0:
            return True
        if not any(rising) and ends[0] < 0:
            return False
        raise Fixed(str(value))

    def _most(self, expr: Any) -> Polynomial:
        return self._chosen(expr, greatest=True)

    def _least(self, expr: Any) -> Polynomial:
        return self._chosen(expr, greatest=False)

    def _chosen(self, expr: Any, greatest: bool) -> Polynomial:
        first, *rest = expr.args
        best = self.polynomial(first)
        for arg in rest:
            other = self.polynomial(arg)
            above = self._sign(_plus(best, _times((-1,), other)))
            best = best if above == greatest else other
        return best

    # -- numbers

    def number(self, expr: Any, size: Any) -> Any:
        """A formula, of integers or of floats, as a number computed from a traced number, k.

        Raises:
            Narrower, Fixed: it cannot be.
        """
        expr = sympy.sympify(expr)
        if expr.is_number:
            return int(expr) if expr.is_Integer else float(expr)
        if expr.is_integer:
            total: Any = 0
            for c in reversed(self.polynomial(expr)):
                if not isinstance(total, int):
                    total = total * size
                elif total:
                    total = size if total == 1 else size * total
                total = total + c if c else total
            return total
        function = FUNCTIONS.get(type(expr).__name__)
        if function is None:
            raise Fixed(str(expr))
        return function([self.number(a, size) for a in expr.args])

    def value(self, expr: Any, k: int) -> Any:
        """What a formula is in one call."""
        n = 0 if self.domain is None else self.domain.step * k + self.domain.rest
        known = {symbol: sympy.Integer(b + a * n) for symbol, (b, a) in self.others.items()}
        if self.domain is not None:
            known[self.variable] = sympy.Integer(n)
        found = sympy.sympify(expr).xreplace(known)
        if found.is_Boolean:
            return bool(found)
        return int(found) if found.is_Integer else float(found)


_READERS: dict[str, Callable[[Formulas, Any], Polynomial]] = {
    "Add": Formulas._sum,
    "Mul": Formulas._product,
    "Pow": Formulas._power,
    "PowByNatural": Formulas._power,
    "FloorDiv": Formulas._quotient,
    "CleanDiv": Formulas._quotient,
    "CeilDiv": Formulas._ceiling,
    "Mod": Formulas._remainder,
    "PythonMod": Formulas._remainder,
    "Max": Formulas._most,
    "Min": Formulas._least,
}


def _trimmed(a: Polynomial) -> Polynomial:
    while a and not a[-1]:
        a = a[:-1]
    return a


def _plus(a: Polynomial, b: Polynomial) -> Polynomial:
    length = max(len(a), len(b))
    a, b = (x + (0,) * (length - len(x)) for x in (a, b))
    return _trimmed(tuple(x + y for x, y in zip(a, b)))


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    found = [0] * max(0, len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            found[i + j] += x * y
    return _trimmed(tuple(found))


def _long_division(a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and remainder as polynomials with integer coefficients.

    Raises:
        Fixed: they have others.
    """
    quotient: Polynomial = ()
    while len(a) >= len(b):
        c, rest = divmod(a[-1], b[-1])
        if rest:
            raise Fixed(f"a quotient of {a} and {b}")
        term = (0,) * (len(a) - len(b)) + (c,)
        quotient = _plus(quotient, term)
        a = _plus(a, _times((-1,), _times(term, b)))
    return quotient, a


def _raised(args: list[Any]) -> Any:
    base, exponent = args
    if isinstance(exponent, int):
        power = reduce(operator.mul, [base] * abs(exponent)) if exponent else 1
        return 1.0 / power if exponent < 0 else power
    return base**exponent


#: functions of numbers that PyTorch's formulas have, as arithmetic of traced numbers
FUNCTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "Add": partial(reduce, operator.add),
    "Mul": partial(reduce, operator.mul),
    "ToFloat": lambda a: a[0] * 1.0,
    "IntTrueDiv": lambda a: a[0] / a[1],
    "FloatTrueDiv": lambda a: a[0] / a[1],
    "Pow": _raised,
    "PowByNatural": _raised,
    "FloatPow": lambda a: a[0] ** a[1],
    "OpaqueUnaryFn_sqrt": lambda a: a[0] ** 0.5,
}
