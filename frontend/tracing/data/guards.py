"""Conditions on numbers under which a trace is valid.

An expression over the numbers that a trace reads is kept as data, and compared with its value in the trace.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Expr = Any
"""A host expression: a constant, `Leaf`, or `(function, Expr, ...)`."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The current value of the trace's number `index`."""

    index: int


def evaluate(expr: Expr, leaves: Sequence[float]) -> Any:
    """The value of a host expression for the given input numbers."""
    if isinstance(expr, Leaf):
        return leaves[expr.index]
    if isinstance(expr, tuple):
        return expr[0](*(evaluate(arg, leaves) for arg in expr[1:]))
    return expr


def leaves(expr: Expr) -> list[int]:
    """The numbers that a host expression reads, by their index."""
    if isinstance(expr, Leaf):
        return [expr.index]
    if isinstance(expr, tuple):
        return list(dict.fromkeys(i for arg in expr[1:] for i in leaves(arg)))
    return []


def same(value: Any) -> Any:
    """The number itself: the operation of a guard on a number that Python asked for."""
    return value


@dataclass(frozen=True, slots=True)
class Guard:
    """The condition that `expr` evaluates to `expected`."""

    expr: Expr
    expected: Any

    def holds(self, leaves: Sequence[float]) -> bool:
        """Whether the expression has its value from the trace.

        Args:
            leaves: this call's numbers.

        Returns:
            False also if it cannot be evaluated (a division by 0, for example).
        """
        try:
            found, expected = evaluate(self.expr, leaves), self.expected
            return (
                repr(float(found)) == repr(expected)
                if _is_zero(expected)
                else bool(found == expected)
            )
        except (ArithmeticError, ValueError, TypeError):
            return False

    def describe(self, names: Sequence[str]) -> str:
        """The condition as text for messages."""
        return f"step() chose by {_text(self.expr, names)}, which was {self.expected!r}"


_SIGNS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/",
    operator.floordiv: "//", operator.mod: "%", operator.pow: "**", operator.eq: "==",
    operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip


def _text(expr: Expr, names: Sequence[str]) -> str:
    if isinstance(expr, Leaf):
        return names[expr.index]
    if not isinstance(expr, tuple):
        return repr(expr)
    function, *args = expr
    if function is same:
        return _text(args[0], names)
    parts = [_text(a, names) for a in args]
    sign = _SIGNS.get(function)
    if sign is not None and len(parts) == 2:
        return f"({parts[0]} {sign} {parts[1]})"
    return f"{getattr(function, '__name__', function)}({', '.join(parts)})"


def compiled(guards: Sequence[Guard]) -> Callable[[Sequence[Any]], bool]:
    """A function that checks all guards against the `last` values of some number sources."""
    checks = [
        (_text_of(_compiled(g.expr)), repr(g.expected))
        if _is_zero(g.expected)
        else (_compiled(g.expr), g.expected)
        for g in guards
    ]
    if not checks:
        return lambda sources: True

    def hold(sources: Sequence[Any]) -> bool:
        try:
            for value, expected in checks:
                if value(sources) != expected:
                    return False
        except (ArithmeticError, ValueError, TypeError):
            return False
        return True

    return hold


def _is_zero(expected: Any) -> bool:
    """Whether a number is 0.0 or -0.0, which are equal, and are compared by their text."""
    return type(expected) is float and expected == 0


def _text_of(value: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], str]:
    return lambda sources: repr(float(value(sources)))


def _compiled(expr: Expr) -> Callable[[Sequence[Any]], Any]:
    """A host expression compiled to a function of number sources."""
    if isinstance(expr, Leaf):
        index = expr.index
        return lambda sources: sources[index].last
    if not isinstance(expr, tuple):
        return lambda sources: expr
    function, *args = expr
    if function is same:
        return _compiled(args[0])
    if len(args) == 1:
        inner = _compiled(args[0])
        return lambda sources: function(inner(sources))
    if len(args) == 2:
        first, second = map(_compiled, args)
        if not isinstance(args[1], (Leaf, tuple)):
            constant = args[1]
            return lambda sources: function(first(sources), constant)
        return lambda sources: function(first(sources), second(sources))
    parts = [_compiled(a) for a in args]
    return lambda sources: function(*[p(sources) for p in parts])
