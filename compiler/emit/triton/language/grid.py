"""The grid of a launch, evaluated from a kernel's expressions over its arguments."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from gflow.compiler.ir.errors import CompileError
from gflow.compiler.kernel.sizes import cdiv
from gflow.dialects.program import Place, TritonConfig, TritonKernel

_FUNCTIONS: dict[str, Callable[..., int]] = {"cdiv": cdiv, "min": min, "max": max}
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def grid_of(
    kernel: TritonKernel, config: TritonConfig, args: Sequence[int | float | Place]
) -> tuple[int, ...]:
    """The three sizes of a launch's grid."""
    numbers: dict[str, Any] = {
        name: value
        for name, value in zip(kernel.parameters, args, strict=True)
        if not isinstance(value, Place)
    }
    numbers |= kernel.constants | config.constants
    sizes = [int(_value(_tree(text), numbers)) for text in kernel.grid]
    return (*sizes, *(1,) * (3 - len(sizes)))


@cache
def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _value(node: ast.expr, numbers: Mapping[str, Any]) -> Any:
    """The value of an expression.

    Only numbers, names, + - * // %, `or`, cdiv, min and max are allowed, since the text may come from a file.

    Raises:
        CompileError: the expression has anything else.
    """
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name) if name in numbers:
            return numbers[name]
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.BoolOp(ast.Or(), values):
            found: Any = 0
            for part in values:
                found = _value(part, numbers)
                if found:
                    break
            return found
        case ast.Call(ast.Name(id=name), args, []) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(a, numbers) for a in args))
    raise CompileError(f"{ast.unparse(node)!r} is no part of a grid's size")
