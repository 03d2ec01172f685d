"""Conditions on host numbers under which a program is valid, as data.

`{"number": 0}` is the number with that index, `{"call": "operator.lt", "args": [...]}` a function of
`operator`, `math` or a few builtins, `{"value": 1.5}` itself.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

_BUILTINS = {f.__name__: f for f in (abs, bool, float, int, max, min, pow, round)}
_OPERATORS = {n: getattr(operator, n) for n in (
    "abs", "add", "and_", "eq", "floordiv", "ge", "gt", "index", "invert", "le", "lt", "mod", "mul",
    "ne", "neg", "not_", "or_", "pos", "pow", "sub", "truediv", "truth", "xor",
)}  # fmt: skip
_MATH = {n: f for n, f in vars(math).items() if callable(f) and not n.startswith("_")}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"builtins.{n}": f for n, f in _BUILTINS.items()},
    **{f"operator.{n}": f for n, f in _OPERATORS.items()},
    **{f"math.{n}": f for n, f in _MATH.items()},
}
_NAMES = {id(f): n for n, f in _FUNCTIONS.items()}


def _small(function: Callable[..., Any], most: int) -> Callable[..., Any]:
    """The function for numbers up to a bound: beyond it integers grow without end.

    Raises:
        OverflowError: one is larger.
    """

    def bounded(*args: Any) -> Any:
        if any(isinstance(a, int) and abs(a) > most for a in args):
            raise OverflowError(f"{function.__name__} of {args}")
        return function(*args)

    return bounded


#: the function for a name: as `_FUNCTIONS`, except those whose time grows with the value of an integer
_BOUNDED = _FUNCTIONS | {
    name: _small(_FUNCTIONS[name], 1000)
    for name in ("builtins.pow", "operator.pow", "math.factorial", "math.comb", "math.perm")
}


def known(name: object) -> bool:
    """Whether a name represents a function."""
    return isinstance(name, str) and name in _FUNCTIONS


def name_of(function: Callable[..., Any]) -> str | None:
    """The name of a function; None if it has none."""
    return _NAMES.get(id(function))


def evaluate(expr: dict[str, Any], numbers: Sequence[float]) -> Any:
    """The value of an expression.

    Raises:
        KeyError: it is malformed.
    """
    if "number" in expr:
        return numbers[expr["number"]]
    if "call" in expr:
        return _BOUNDED[expr["call"]](*(evaluate(a, numbers) for a in expr["args"]))
    return expr["value"]


def holds(guard: dict[str, Any], numbers: Sequence[float]) -> bool:
    """Whether a guard's expression has the value that it had when the program was compiled."""
    try:
        return bool(evaluate(guard["expr"], numbers) == guard["expected"])
    except (ArithmeticError, ValueError):
        return False
