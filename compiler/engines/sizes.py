"""Sizes that vary from call to call (`gflow.dialects.extents`), in the forms of engines.

ONNX has them as they are: shapes are computed from the shape of an argument, and one compiled model serves all calls.
StableHLO for XLA has none: XLA compiles a program for each size, from a text in which numbers that vary are marked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gflow.dialects.extents import Symbol, current, leaves, varies
from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record
from gflow.dialects.types import TensorType


@record
class Found:
    """Where a size is read: dimension `dim` of an argument is slope * n + rest."""

    argument: int
    dim: int
    rest: int
    slope: int


def size_in(symbol: Symbol, which: int, types: Sequence[TensorType]) -> Found | None:
    """Where arguments show the symbol's first (0) or second (1) size: in a dimension that is n itself, if possible."""
    best: Found | None = None
    for argument, ty in enumerate(types):
        for dim, size in enumerate(ty.shape):
            rest, slope = _line(symbol, which, size) or (0, 0)
            if slope > 0 and (best is None or (slope, abs(rest)) < (best.slope, abs(best.rest))):
                best = Found(argument, dim, rest, slope)
    return best


def _line(symbol: Symbol, which: int, size: int) -> tuple[int, int] | None:
    """(rest, slope) of a dimension that is a line in one of the sizes."""
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


def size_values(op: ir.Operation) -> list[ir.Value]:
    """The arguments of an op's function that are its sizes, as `size_arguments`."""
    parent = op.parent
    while parent is not None and parent.name != "func.func":
        parent = parent.operation.parent
    if parent is None:
        return []
    function = parent.opview
    assert isinstance(function, func.FuncOp)
    return [function.arguments[n] for n in size_arguments(function)]


def size_arguments(function: func.FuncOp) -> list[int]:
    """The arguments that bring the sizes along: of a program with two, that of the first one first."""
    if "arg_attrs" not in function.attributes:
        return []
    found = []
    for n, given in enumerate(ir.ArrayAttr(function.attributes["arg_attrs"])):
        attrs = ir.DictAttr(given)
        if "gflow.stand_in" in attrs:
            found.append((-ir.IntegerAttr(attrs["gflow.stand_in"]).value, n))
    return [n for _, n in sorted(found)]


#: coefficients of sizes are smaller; a constant of 64 bits that no size is has larger ones
_COEFFICIENT = 1 << 24


def is_size(value: int) -> bool:
    """Whether an integer is to be computed from the sizes. A constant that is taken for a size, or a size for a
    constant, is another one at the other stand-in, and with it the engine's code, which is an error."""
    symbol = current()
    if symbol is None or not varies(value):
        return False
    return max(map(abs, leaves(symbol.coefficients(value)))) < _COEFFICIENT


#: integers of a text: dimensions of types, and numbers that stand alone; no part of a float, a name or bytes
_INTEGERS = re.compile(r"(?<=[<x])\d+(?=x)|(?<![\w.%#@-])-?\d+(?![\w.])")


def marked(text: str) -> tuple[str, tuple[int, ...]]:
    """A text with `{k}` in the place of its k-th integer that varies, and these integers; braces of its own doubled."""
    found: list[int] = []

    def mark(match: re.Match[str]) -> str:
        value = int(match[0])
        if not varies(value):
            return match[0]
        found.append(value)
        return f"{{{len(found) - 1}}}"

    text = text.replace("{", "{{").replace("}", "}}")
    return _INTEGERS.sub(mark, text), tuple(found)
