"""Python integers of TorchDynamo's graphs that are not sizes: inputs of a program, with their values at each call.

A symbol that occurs in no tensor's shape, strides or offset is a number. Its expressions that ops read (n, 2 n + 1, n
/ 3) are computed by Python before each call, and passed as 0-d tensors. A call whose numbers exceed int64 or float32
runs op by op.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from gflow.dialects.records import record
from gflow.tracing.data.sizes import Fixed
from gflow.tracing.data.values import TraceValue
from gflow.tracing.dispatch.symbols.exact_numbers import INTEGERS
from gflow.tracing.dispatch.symbols.held_numbers import NUMBERS

aten = torch.ops.aten
#: kinds of schema parameters that may be such a number
TAKERS = ("NumberType", "FloatType", "TensorType")
#: ops with special cases for 0 or for negative integers
_OWN_RULES = frozenset(
    f"aten::{n}"
    for n in (
        *("addmm", "addmv", "addbmm", "baddbmm", "addr", "__lshift__", "__rshift__"),
        *("bitwise_left_shift", "bitwise_right_shift"),
    )
)
_RULES_OF_INTEGERS = frozenset(
    f"aten::{n}" for n in ("pow", "floor_divide", "remainder", "fmod", "div")
)
#: dtypes that represent all results of `Counted.value`
_WIDE = (torch.int64, torch.float64, torch.float32, torch.bfloat16)
_MOST = float(torch.finfo(torch.float32).max)


class Beyond(Exception):
    """A number of a call is out of the range that programs support."""


@record
class Counted:
    """A number that is computed from integers among a graph's arguments."""

    function: Callable[[Sequence[Any]], Any]

    def value(self, given: Sequence[Any]) -> Any:
        """The number in a call with these arguments.

        Raises:
            Beyond: it is out of the range of int64 or float32, or cannot be computed.
        """
        try:
            found = self.function(given)
        except ArithmeticError as error:
            raise Beyond(str(error)) from None
        low, high = INTEGERS if isinstance(found, int) else (-_MOST, _MOST)
        if not low <= found <= high:
            raise Beyond(repr(found))
        return found


def numbers_in(module: torch.fx.GraphModule) -> dict[Any, int]:
    """The symbols of a graph that are not sizes, each with the index of its argument."""
    found: dict[Any, int] = {}
    for index, node in enumerate(module.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            found.setdefault(value.node.expr, index)
    if found:
        for node in module.graph.nodes:
            for symbol in _sizes(node.meta.get("val")):
                found.pop(symbol, None)
    return found


def _sizes(value: Any) -> set[Any]:
    """The symbols in shapes, strides and offsets of the tensors in a value."""
    if isinstance(value, (list, tuple)):
        return set().union(*map(_sizes, value))
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return set()
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return set().union(*(n.node.expr.free_symbols for n in numbers if isinstance(n, torch.SymInt)))


def counted(expr: Any, places: Mapping[Any, int]) -> Counted:
    """A formula of integers among the arguments.

    Args:
        expr: a sympy expression.
        places: the argument index of each symbol.

    Raises:
        Fixed: the expression has other symbols, or unknown functions.
    """
    return Counted(_function(sympy.sympify(expr), places))


def check_taken(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that a program supports a number of any value as an argument of an op.

    Raises:
        Fixed: the op has special cases for some numbers, or computes in a dtype that does not represent all of them.
    """
    dtypes = [a.dtype for a in args if isinstance(a, TraceValue) and not a.is_number]
    floating = any(d.is_floating_point for d in dtypes)
    name = func._schema.name
    if name in _OWN_RULES or (name in _RULES_OF_INTEGERS and not floating):
        raise Fixed(f"a number of the call as an argument of {func}")
    check_held(func, args, kwargs)


def check_held(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that the dtype in which an op computes represents all numbers.

    Raises:
        Fixed: it does not, and the op refuses such numbers.
    """
    if func not in NUMBERS:
        return
    tensors = [a.dtype for a in args if isinstance(a, TraceValue) and not a.is_number]
    dtypes = [kwargs.get("dtype"), *tensors[:1], *(d for d in tensors if d != torch.bool)]
    if not all(d in _WIDE for d in dtypes if d is not None):
        raise Fixed(f"a number that varies as an argument of {func}")


def _function(expr: Any, places: Mapping[Any, int]) -> Callable[[Sequence[Any]], Any]:
    if expr.is_Symbol:
        if expr not in places:
            raise Fixed(str(expr))
        place = places[expr]
        return lambda given: given[place]
    if expr.is_Integer:
        integer = int(expr)
        return lambda given: integer
    if expr.is_number:
        number = float(expr)
        return lambda given: number
    name = type(expr).__name__
    if name == "ToFloat":
        inner = _function(expr.args[0], places)
        return lambda given: float(inner(given))
    apply = _FUNCTIONS.get(name)
    if apply is None:
        raise Fixed(str(expr))
    parts = [_function(a, places) for a in expr.args]
    return lambda given: reduce(apply, [part(given) for part in parts])  # of one part: its value


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and (b < 0 or (abs(a) > 1 and b > 1000)):
        raise OverflowError
    return a**b


#: classes of sympy and of `torch.utils._sympy.functions` by name → a function of two numbers
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Mul": operator.mul, "Pow": _power, "PowByNatural": _power, "FloatPow": math.pow,
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "PythonMod": operator.mod, "Max": max, "Min": min,
    "IntTrueDiv": operator.truediv, "FloatTrueDiv": operator.truediv,
}  # fmt: skip
