"""When ops of int64 and float64 give the results of Python's arithmetic, for numbers of a call: Python's integers are
unbounded, and their quotients are rounded once."""

from __future__ import annotations

import math
import operator
from typing import Any

from gflow.errors import GraphTraceError

from ...data.guards import Expr
from .number_nodes import ScalarRecorder, guard, is_int, number_of

#: ranges of integers that int64 represents, that float64 represents, and of shifts of int64
INTEGERS = (-(1 << 63), (1 << 63) - 1)
_EXACT, _BITS = 1 << 53, 63
#: functions that raise an error if the result exceeds the largest float
_OVERFLOW = (operator.pow, math.exp, math.expm1, math.sinh, math.cosh, math.pow)
_SHIFTS = (operator.lshift, operator.rshift)


def is_exact(
    recorder: ScalarRecorder,
    function: Any,
    operands: tuple[Any, ...],
    expr: Expr,
    hint: Any,
    integer: bool,
) -> bool:
    """Whether an op gives the result of Python's function for a call's numbers, with guards.

    Raises:
        GraphTraceError: the result is a complex number.
    """
    if isinstance(hint, complex):
        raise GraphTraceError(f"a Python number of the call gives a complex one, {hint!r}")

    def within(x: Any, low: int, high: int) -> bool:
        node = number_of(x)
        if node is None:
            return low <= x <= high
        return node.holds(operator.ge, low) and node.holds(operator.le, high)

    if function in _OVERFLOW and not integer:
        finite = math.isfinite(hint)
        guard(recorder, (math.isfinite, expr), finite)
    if integer:
        if not all(within(x, *INTEGERS) for x in operands if number_of(x) is None):
            return False
        if function in _SHIFTS and not within(operands[1], 0, _BITS):
            return False
        for compare, bound in ((operator.ge, INTEGERS[0]), (operator.le, INTEGERS[1])):
            holds = compare(hint, bound)
            guard(recorder, (compare, expr, bound), holds)
            if not holds:
                return False
        return True
    if function is operator.truediv and all(map(is_int, operands)):
        return all(within(x, -_EXACT, _EXACT) for x in operands)
    return True
