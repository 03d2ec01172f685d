"""Expressions of a size as Python functions: evaluated for a thousand sizes, sympy takes seconds where these take
milliseconds."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import sympy  # type: ignore[import-untyped]

Function = Callable[[int], Any]

#: classes of sympy and of `torch.utils._sympy.functions` by name → a function of two integers, or booleans
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Mul": operator.mul, "Max": max, "Min": min, "FloorDiv": operator.floordiv,
    "Mod": operator.mod, "PythonMod": operator.mod, "Equality": operator.eq, "Unequality": operator.ne,
    "StrictLessThan": operator.lt, "LessThan": operator.le, "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge, "And": operator.and_, "Or": operator.or_, "CleanDiv": operator.floordiv,
    "IntTrueDiv": operator.truediv, "FloatTrueDiv": operator.truediv, "PowByNatural": operator.pow,
}  # fmt: skip
_UNARY: dict[str, Callable[[Any], Any]] = {"Not": operator.not_, "ToFloat": float}


def function_of(expr: Any, variable: Any) -> Function | None:
    """An integer or a condition as a function of the size. None if it has other operations than sums, products,
    powers, comparisons and rounded quotients of integers."""
    found = function_of_several(expr, [variable])
    if found is None:
        return None
    known = found
    return lambda n: known((n,))


def function_of_several(
    expr: Any, variables: Sequence[Any]
) -> Callable[[Sequence[int]], Any] | None:
    """As `function_of`, of the values of several variables in their order."""
    if expr in variables:
        at = variables.index(expr)
        return lambda values: values[at]
    if isinstance(expr, (sympy.Integer, sympy.Float)):
        number = int(expr) if isinstance(expr, sympy.Integer) else float(expr)
        return lambda values: number
    if expr in (sympy.true, sympy.false):
        truth = bool(expr)
        return lambda values: truth
    parts = [function_of_several(arg, variables) for arg in expr.args]
    known = [p for p in parts if p is not None]
    if not parts or len(known) < len(parts):
        return None
    name = type(expr).__name__
    inner = known[0]
    if name in _UNARY:
        own = _UNARY[name]
        return lambda values: own(inner(values))
    if name == "Pow":
        exponent = expr.args[1]
        if not isinstance(exponent, sympy.Integer) or exponent < 0:
            return None
        power = int(exponent)
        return lambda values: inner(values) ** power
    apply = _BINARY.get(name)
    if apply is None:
        return None
    return lambda values: reduce(apply, [part(values) for part in known])
