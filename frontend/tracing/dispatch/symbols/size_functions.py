"""Expressions of a size as Python functions: evaluated for a thousand sizes, sympy takes seconds where these take
milliseconds."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy  # type: ignore[import-untyped]

Function = Callable[[int], Any]

#: classes of sympy and of `torch.utils._sympy.functions` by name → a function of two integers, or booleans
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Mul": operator.mul, "Max": max, "Min": min, "FloorDiv": operator.floordiv,
    "Mod": operator.mod, "PythonMod": operator.mod, "Equality": operator.eq, "Unequality": operator.ne,
    "StrictLessThan": operator.lt, "LessThan": operator.le, "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge, "And": operator.and_, "Or": operator.or_,
}  # fmt: skip


def function_of(expr: Any, variable: Any) -> Function | None:
    """An integer or a condition as a function of the size. None if it has other operations than sums, products,
    powers, comparisons and rounded quotients of integers."""
    if expr == variable:
        return lambda n: n
    if isinstance(expr, sympy.Integer):
        number = int(expr)
        return lambda n: number
    if expr in (sympy.true, sympy.false):
        truth = bool(expr)
        return lambda n: truth
    parts = [function_of(arg, variable) for arg in expr.args]
    known = [p for p in parts if p is not None]
    if not parts or len(known) < len(parts):
        return None
    name = type(expr).__name__
    if name == "Not":
        inner = known[0]
        return lambda n: not inner(n)
    if name == "Pow":
        exponent = expr.args[1]
        if not isinstance(exponent, sympy.Integer) or exponent < 0:
            return None
        inner, power = known[0], int(exponent)
        return lambda n: inner(n) ** power
    apply = _BINARY.get(name)
    if apply is None:
        return None
    return lambda n: reduce(apply, [part(n) for part in known])
