"""Converts formulas of sizes (`sympy` expressions of PyTorch) to what a program supports: polynomials in one size.

A program covers a domain (`gflow.tracing.data.sizes`): the sizes n = step * k + rest, for k in a range. Where a
formula is no polynomial in n (n // 2), it may be one in k: with n = 2 k + 1 it is k. Such a formula narrows the
domain, and other sizes have programs of their own: one for each remainder and for each side of a bound.

With a second size, m, coefficients of powers of n are polynomials in m.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import gcd
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from gflow.dialects.extents import Coefficients, N, Symbol, evaluate, horner, leaves
from gflow.dialects.records import record

from ...data.sizes import Domain, Fixed, Narrower, Size

#: the maximal power of a size
_DEGREE = 3

Polynomial = Coefficients  # constant first


@record
class Second:
    """A second size, which varies independently. others: the coefficients (b, a) of symbols that are b + a m."""

    domain: Domain
    variable: Any
    others: Mapping[Any, tuple[int, int]]


class Formulas:
    """Reads formulas on a domain. others: the coefficients (b, a) of other symbols, which are b + a n."""

    def __init__(
        self,
        domain: Domain | None,
        variable: Any,
        others: Mapping[Any, tuple[int, int]],
        second: Second | None = None,
    ) -> None:
        self.domain, self.variable, self.others = domain, variable, dict(others)
        self.second = second
        self._known: dict[Any, Polynomial] = {}

    @property
    def symbol(self) -> Symbol:
        """The symbol of a program with these formulas."""
        assert self.domain is not None
        if self.second is None:
            return self.domain.symbol
        outer, inner = self.domain.symbol, self.second.domain.symbol
        if outer.name == inner.name:
            inner = replace(inner, name=f"{inner.name}2")
        return replace(outer, second=inner).standing(0)

    # -- integers

    def size(self, expr: Any) -> int:
        """A formula as an integer for a trace.

        Raises:
            Narrower: it is a polynomial only on a part of the domain.
            Fixed: it is none.
        """
        found = self.polynomial(sympy.sympify(expr))
        if not found or (len(found) == 1 and isinstance(found[0], int)):
            return found[0] if found else 0  # type: ignore[return-value]
        return Size.make(found, self.symbol)

    def concrete(self, value: Any) -> Any:
        """An argument of a call: a symbolic integer becomes an integer for the trace."""
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
            second = self.second
            if second is not None and expr == second.variable:
                return ((second.domain.rest, second.domain.step),)
            if expr in self.others:
                b, a = self.others[expr]
                return _plus((b,), _times((a,), self.polynomial(self.variable))) if a else (b,)
            if second is not None and expr in second.others:
                b, a = second.others[expr]
                return _plus((b,), _times((a,), self.polynomial(second.variable)))
            raise Fixed(str(expr))
        if expr.free_symbols and all(self.others.get(s, (0, 1))[1] == 0 for s in expr.free_symbols):
            # of sizes that this program has once and for all
            value = expr.xreplace({s: sympy.Integer(self.others[s][0]) for s in expr.free_symbols})
            if value.is_Integer:
                return (int(value),)
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
        if not b or (len(b) == 1 and isinstance(b[0], int)):
            return self._divided_by(a, b[0] if b else 0, expr)  # type: ignore[arg-type]
        quotient, rest = _long_division(a, b)
        if self.second is not None and rest:
            raise Fixed(str(expr))
        while not self._is_less(rest, b):
            if not self._sign(rest) and self._sign(_plus(rest, b)) is not None:
                quotient, rest = _plus(quotient, (-1,)), _plus(rest, b)
                continue
            raise Fixed(str(expr))
        return quotient, rest

    def _divided_by(self, a: Polynomial, divisor: int, expr: Any) -> tuple[Polynomial, Polynomial]:
        """Quotient and remainder of a division by a constant."""
        if divisor <= 0:
            raise Fixed(str(expr))
        for of_second, coefficients in enumerate((leaves(a[1:]) if a[1:] else [], _inner(a))):
            common = gcd(divisor, *coefficients)
            if common != divisor:
                raise Narrower(step=divisor // common, second=bool(of_second))
        constant = leaves(a)[0]
        quotient = tuple([_each(c, lambda x: x // divisor) for c in a])
        return _trimmed(quotient), (constant % divisor,)

    def _is_less(self, rest: Polynomial, divisor: Polynomial) -> bool:
        """Whether 0 <= rest < divisor, for all sizes."""
        above = _plus(divisor, _times((-1,), _plus(rest, (1,))))
        return bool(self._sign(rest)) and bool(self._sign(above))

    def _sign(self, value: Polynomial) -> bool | None:
        """True: never negative, False: always negative.

        Raises:
            Narrower: the sign differs between parts of the domain.
            Fixed: the sign cannot be determined.
        """
        value = _trimmed(value)
        if not value or (len(value) == 1 and isinstance(value[0], int)):
            return not value or value[0] >= 0  # type: ignore[operator]
        assert self.domain is not None
        if self.second is not None:
            return self._sign_of_both(value)
        ends = [evaluate(value, k) for k in (self.domain.least, self.domain.most)]
        if len(value) == 2:
            if (ends[0] >= 0) == (ends[1] >= 0):
                return ends[0] >= 0
            raise Narrower(bound=_bound(value))
        rising = [c >= 0 for c in leaves(value)[1:]]
        if all(rising) and ends[0] >= 0:
            return True
        if not any(rising) and ends[0] < 0:
            return False
        raise Fixed(str(value))

    def _sign_of_both(self, value: Polynomial) -> bool:
        symbol = self.symbol
        found = [evaluate(value, corner) for corner in symbol.corners]
        if len(value) <= 2 and all(isinstance(c, int) or len(c) <= 2 for c in value):
            signs = {x >= 0 for x in found}
            if len(signs) == 1:
                return signs.pop()
        elif min(leaves(value)[1:]) >= 0 and found[0] >= 0:
            return True
        alone, of_second = value, False
        if len(value) == 1 and isinstance(value[0], tuple):
            alone, of_second = value[0], True
        if len(alone) == 2 and all(isinstance(c, int) for c in alone):
            raise Narrower(bound=_bound(alone), second=of_second)
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
        """A formula, of integers or of floats, as a number computed from the traced number k.

        Raises:
            Narrower, Fixed: that is not possible.
        """
        expr = sympy.sympify(expr)
        if expr.is_number:
            return int(expr) if expr.is_Integer else float(expr)
        if expr.is_integer:
            return horner(self.polynomial(expr), size if isinstance(size, list) else [size])
        function = FUNCTIONS.get(type(expr).__name__)
        if function is None:
            raise Fixed(str(expr))
        return function([self.number(a, size) for a in expr.args])

    def value(self, expr: Any, k: N) -> Any:
        """The value of a formula in one call."""
        m: int | None = None
        if isinstance(k, tuple):
            k, m = k
        n = 0 if self.domain is None else self.domain.step * k + self.domain.rest
        known = {symbol: sympy.Integer(b + a * n) for symbol, (b, a) in self.others.items()}
        if self.domain is not None:
            known[self.variable] = sympy.Integer(n)
        if m is not None and self.second is not None:
            m = self.second.domain.at(m)
            known[self.second.variable] = sympy.Integer(m)
            known |= {s: sympy.Integer(b + a * m) for s, (b, a) in self.second.others.items()}
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


def _bound(value: Polynomial) -> int:
    """The k at which a sum a k + b changes its sign."""
    constant, slope = leaves(value)
    return -(constant // slope) if slope > 0 else constant // -slope + 1


Coefficient = int | tuple[int, ...]  # a polynomial in m


def _inner(a: Polynomial) -> list[int]:
    """The coefficients of powers of m."""
    return [*a[0][1:]] if a and isinstance(a[0], tuple) else []


def _each(c: Coefficient, of: Callable[[int], int]) -> Coefficient:
    return of(c) if isinstance(c, int) else _plain(tuple([of(x) for x in c]))


def _plain(a: Sequence[Any]) -> Coefficient:
    """A polynomial in m as a coefficient: an integer if it is constant."""
    found = _trimmed(tuple(a))
    if len(found) < 2:
        return found[0] if found else 0
    return found  # type: ignore[return-value]


def _added(x: Coefficient, y: Coefficient) -> Coefficient:
    if isinstance(x, int) and isinstance(y, int):
        return x + y
    return _plain(_plus(*(c if isinstance(c, tuple) else (c,) for c in (x, y))))


def _multiplied(x: Coefficient, y: Coefficient) -> Coefficient:
    if isinstance(x, int) and isinstance(y, int):
        return x * y
    return _plain(_times(*(c if isinstance(c, tuple) else (c,) for c in (x, y))))


def _quotient_of(x: Coefficient, y: Coefficient) -> Coefficient:
    """An exact quotient.

    Raises:
        Fixed: there is a remainder.
    """
    if isinstance(x, int) and isinstance(y, int):
        quotient, left = divmod(x, y)
        if left:
            raise Fixed(f"a quotient of {x} and {y}")
        return quotient
    found, rest = _long_division(*(c if isinstance(c, tuple) else (c,) for c in (x, y)))
    if rest:
        raise Fixed(f"a quotient of {x} and {y}")
    return _plain(found)


def _trimmed(a: Polynomial) -> Polynomial:
    while a and not a[-1]:
        a = a[:-1]
    return a


def _plus(a: Polynomial, b: Polynomial) -> Polynomial:
    length = max(len(a), len(b))
    a, b = (x + (0,) * (length - len(x)) for x in (a, b))
    return _trimmed(tuple([_added(x, y) for x, y in zip(a, b)]))


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    found: list[Coefficient] = [0] * max(0, len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            found[i + j] = _added(found[i + j], _multiplied(x, y))
    return _trimmed(tuple(found))


def _long_division(a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and remainder as polynomials with integer coefficients.

    Raises:
        Fixed: their coefficients are no integers.
    """
    quotient: Polynomial = ()
    while len(a) >= len(b):
        term = (0,) * (len(a) - len(b)) + (_quotient_of(a[-1], b[-1]),)
        quotient = _plus(quotient, term)
        a = _plus(a, _times((-1,), _times(term, b)))
    return quotient, a


def _raised(args: list[Any]) -> Any:
    base, exponent = args
    if isinstance(exponent, int):
        power = reduce(operator.mul, [base] * abs(exponent)) if exponent else 1
        return 1.0 / power if exponent < 0 else power
    return base**exponent


#: functions in PyTorch's formulas, as arithmetic of traced numbers
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
