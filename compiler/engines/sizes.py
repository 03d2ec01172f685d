"""Dynamic dimensions (`gflow.dialects.extents`) in the formats of engines.

In ONNX, sizes are computed from the shape of an argument, and one compiled model serves all sizes. StableHLO for XLA is
static: XLA compiles a program for each size, from a text template in which integers that depend on the size are marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from gflow.dialects.extents import Symbol, current, horner, leaves, varies
from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record
from gflow.dialects.types import TensorType


@record
class Found:
    """A dimension from which a dynamic size n can be computed: dimension `dim` of an argument is slope * n + rest."""

    argument: int
    dim: int
    rest: int
    slope: int


def size_in(symbol: Symbol, which: int, types: Sequence[TensorType]) -> Found | None:
    """The dimension of an argument from which the first (which = 0) or second (1) size can be computed; None: none.

    A dimension that is n itself is preferred.
    """
    best: Found | None = None
    for argument, ty in enumerate(types):
        for dim, size in enumerate(ty.shape):
            rest, slope = _line(symbol, which, size) or (0, 0)
            if slope > 0 and (best is None or (slope, abs(rest)) < (best.slope, abs(best.rest))):
                best = Found(argument, dim, rest, slope)
    return best


def _line(symbol: Symbol, which: int, size: int) -> tuple[int, int] | None:
    """(rest, slope) of a dimension that is linear in one of the sizes; None for others."""
    if symbol.fixes(size):
        return None
    found = symbol.coefficients(size)
    if symbol.second is not None and which == 1:
        if len(found) != 1 or isinstance(found[0], int):
            return None
        found = found[0]
    if len(found) != 2 or not all(isinstance(c, int) for c in found):
        return None
    rest, slope = found
    assert isinstance(rest, int)
    assert isinstance(slope, int)
    return rest, slope


#: writes the sum ("add") or product ("multiply") of a value and of a value or a number
Combine = Callable[[str, Any, Any], Any]


class _Term:
    """A value of a written program with the operators for evaluating polynomials."""

    def __init__(self, value: Any, combine: Combine) -> None:
        self.value, self._combine = value, combine

    def __mul__(self, other: int | _Term) -> _Term:
        return self._with("multiply", other)

    def __add__(self, other: int | _Term) -> _Term:
        return self._with("add", other)

    __rmul__, __radd__ = __mul__, __add__

    def _with(self, kind: str, other: int | _Term) -> _Term:
        right = other.value if isinstance(other, _Term) else other
        return _Term(self._combine(kind, self.value, right), self._combine)


def computed(number: int, sizes: Sequence[Any], combine: Combine) -> Any:
    """Write the computation of an integer that depends on the dynamic sizes. sizes: their values in the program."""
    symbol = current()
    assert symbol is not None
    terms = [_Term(size, combine) for size in sizes]
    return horner(symbol.coefficients(number), terms).value


def size_values(op: ir.Operation) -> list[ir.Value]:
    """The arguments of an op's function that are its dynamic sizes, in the order of `size_arguments`."""
    parent = op.parent
    while parent is not None and parent.name != "func.func":
        parent = parent.operation.parent
    if parent is None:
        return []
    function = parent.opview
    assert isinstance(function, func.FuncOp)
    return [function.arguments[n] for n in size_arguments(function)]


def size_arguments(function: func.FuncOp) -> list[int]:
    """The numbers of a function's arguments that are its dynamic sizes, the first size first."""
    if "arg_attrs" not in function.attributes:
        return []
    found = []
    for n, given in enumerate(ir.ArrayAttr(function.attributes["arg_attrs"])):
        attrs = ir.DictAttr(given)
        if "gflow.stand_in" in attrs:
            found.append((-ir.IntegerAttr(attrs["gflow.stand_in"]).value, n))
    return [n for _, n in sorted(found)]


#: coefficients of polynomials in sizes are smaller; 64-bit constants that aren't sizes have larger ones
_COEFFICIENT = 1 << 24


def is_size(value: int) -> bool:
    """Whether an integer of the IR is to be computed from the dynamic sizes.

    A wrong answer is detected: the module is compiled with two primes that stand for a size, and the engine's code
    would differ between them, which is an error.
    """
    symbol = current()
    if symbol is None or not varies(value):
        return False
    return max(map(abs, leaves(symbol.coefficients(value)))) < _COEFFICIENT


#: matches integers of a text: dimensions of types, and separate numbers; no parts of floats, names or bytes
_INTEGERS = re.compile(r"(?<=[<x])\d+(?=x)|(?<![\w.%#@-])-?\d+(?![\w.])")


def marked(text: str) -> tuple[str, tuple[int, ...]]:
    """A text template with `{k}` for the k-th integer that depends on a dynamic size, and these integers.

    Other braces of the text are doubled, as `str.format` needs.
    """
    found: list[int] = []

    def mark(match: re.Match[str]) -> str:
        value = int(match[0])
        if not varies(value):
            return match[0]
        found.append(value)
        return f"{{{len(found) - 1}}}"

    text = text.replace("{", "{{").replace("}", "}}")
    return _INTEGERS.sub(mark, text), tuple(found)
