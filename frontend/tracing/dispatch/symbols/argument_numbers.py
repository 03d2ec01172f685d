"""Numbers of a call as arguments of ops: inputs if a kernel supports it, otherwise constants of this trace.

A number that an op combines with tensors (a factor, an addend, a bound) is an input of the program. In other positions
(a size, a dimension, the ends of `arange`) the number is a constant, and the trace is valid only for it. If the kernel
has special cases for some numbers, a guard records which case applies:

- 0, with which `addmm(beta=0)` ignores its operand;
- numbers that the dtype in which the kernel computes cannot represent, which PyTorch refuses;
- negative powers of integers, which it also refuses, and shifts by more bits than the dtype has.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from .held_numbers import NUMBERS
from .number_nodes import Number, number_of

aten = torch.ops.aten
#: ops whose numbers are sizes of their result
_RANGES = ("aten::arange", "prims::iota", "aten::linspace", "aten::logspace", "aten::range")
#: parameter types of schemas that accept a number
_TAKE_NUMBERS = ("number", "Optional[number]", "Tensor", "Optional[Tensor]")
#: parameters that take a number, by which a kernel is made
_CONSTANT = ("correction",)
_POWERS = (aten.pow.Tensor_Scalar,)
_SHIFTS = (
    "__lshift__",
    "__rshift__",
    "__ilshift__",
    "__irshift__",
    "bitwise_left_shift",
    "bitwise_right_shift",
)


@functools.cache
def _taking(func: Any) -> frozenset[int | str]:
    """The places and names of an op's parameters for which a number may be an input of the program."""
    schema = func._schema
    if schema.name in _RANGES:
        return frozenset()
    return frozenset(
        place
        for n, a in enumerate(schema.arguments)
        if str(a.type) in _TAKE_NUMBERS and a.name not in _CONSTANT
        for place in (n, a.name)
    )


def settled(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an op, of which numbers are left that it takes as inputs."""
    taking = _taking(func)

    def settle(arg: Any, place: int | str, inside: bool = False) -> Any:
        if isinstance(arg, (list, tuple)):
            return type(arg)([settle(a, place, True) for a in arg])
        node = number_of(arg)
        if node is None:
            return arg
        takes = place in taking and not inside
        if not node.of_call:
            return arg if takes else node.concrete()
        return arg if takes and _is_usual(func, node, place, words) else _constant(node, takes)

    words = plain(args), {k: plain(v) for k, v in kwargs.items()}
    return (
        tuple([settle(a, n) for n, a in enumerate(args)]),
        {k: settle(a, k) for k, a in kwargs.items()},
    )


def _constant(node: Number, takes: bool) -> Any:
    """The number's value in this trace. takes: whether the op would accept other values as inputs; the trace is then
    valid for equal numbers."""
    if not takes:
        return node.concrete()
    node.holds(operator.eq, node.hint)
    return node.hint


def _is_usual(func: Any, node: Number, place: int | str, words: Any) -> bool:
    """Whether the kernel has no special case for a number in this trace, with a guard."""
    if node.expr is None:
        return True
    if not node.holds(operator.ne, 0):
        return False
    args, kwargs = words
    entry = NUMBERS.get(func)
    if entry is not None and place in (*entry[1], *entry[2]):
        dtype = entry[0](args, kwargs)
        if dtype is not None and not _is_held(node, dtype):
            return False
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    whole = first is not None and not (first.is_floating_point() or first.is_complex())
    if func in _POWERS and whole and node.is_integer:
        return node.holds(operator.ge, 0)
    if func._schema.name.removeprefix("aten::") in _SHIFTS:
        bits = 64 if first is None else 8 * first.element_size()
        return node.holds(operator.ge, 0) and node.holds(operator.lt, bits)
    return True


def _is_held(node: Number, dtype: torch.dtype) -> bool:
    """Whether a kernel converts the number to a dtype without an error, with a guard; see `held_numbers.can_hold`."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        most = float(torch.finfo(dtype).max)
        low, high = -most, most
    else:
        bounds = torch.iinfo(dtype)
        unsigned = node.is_integer and not bounds.min
        low, high = (-bounds.max if unsigned else bounds.min), bounds.max
    return node.holds(operator.ge, low) and node.holds(operator.le, high)


def plain(value: Any) -> Any:
    """Arguments with numbers replaced by their values in this trace."""
    if isinstance(value, (list, tuple)):
        return type(value)([plain(v) for v in value])
    node = number_of(value)
    return value if node is None else node.hint


def has_number(value: Any) -> bool:
    """Whether an argument of an op is, or holds, a traced number."""
    if isinstance(value, (list, tuple)):
        return any(map(has_number, value))
    return number_of(value) is not None
