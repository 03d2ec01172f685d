"""Python integers of TorchDynamo's graphs that are no sizes: inputs of a program, with their values at each call.

A symbol that no tensor's shape, strides or offset has is a number. What ops take of it (n, 2 n + 1, n / 3) is computed
by Python before each call, and brought along as a 0-d tensor; what int64 or float32 does not hold runs op by op.
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
#: what kinds of parameters a number may stand for, by schemas
TAKERS = ("NumberType", "FloatType", "TensorType")
#: ops with rules of their own for 0 or for negative integers
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
#: dtypes that hold what `Counted.value` gives
_WIDE = (torch.int64, torch.float64, torch.float32, torch.bfloat16)
_MOST = float(torch.finfo(torch.float32).max)


class Beyond(Exception):
    """A number of a call is none that programs take."""


@record
class Counted:
    """A number that follows from integers among a graph's arguments."""

    function: Callable[[Sequence[Any]], Any]

    def value(self, given: Sequence[Any]) -> Any:
        """What it is in a call with these arguments.

        Raises:
            Beyond: programs do not take it.
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
    """The symbols that are no sizes, by the argument that each is."""
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
    """The symbols in shapes, strides and offsets."""
    if isinstance(value, (list, tuple)):
        return set().union(*map(_sizes, value))
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return set()
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return set().union(*(n.node.expr.free_symbols for n in numbers if isinstance(n, torch.SymInt)))


def counted(expr: Any, places: Mapping[Any, int]) -> Counted:
    """A formula of integers among the arguments. places: which each symbol is.

    Raises:
        Fixed: it has other symbols, or functions that are not known.
    """
    return Counted(_function(sympy.sympify(expr), places))


def check_taken(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Whether a program takes a number of any value as an argument of an op.

    Raises:
        Fixed: the op has rules of its own for some numbers, or computes in a dtype that does not hold all.
    """
    dtypes = [a.dtype for a in args if isinstance(a, TraceValue) and not a.is_number]
    floating = any(d.is_floating_point for d in dtypes)
    name = func._schema.name
    if name in _OWN_RULES or (name in _RULES_OF_INTEGERS and not floating):
        raise Fixed(f"a number of the call as an argument of {func}")
    check_held(func, args, kwargs)


def check_held(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """
    Raises:
        Fixed: the op computes in a dtype that does not hold all numbers, and refuses those.
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
    return lambda given: reduce(apply, [part(given) for part in parts])  # of one: itself


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
