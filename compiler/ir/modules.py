"""Modules and the functions in them."""

from __future__ import annotations

from typing import Any

from gflow.dialects.mlir import func, ir

from .errors import CompileError


def entry_function(module: ir.Module) -> func.FuncOp:
    """The first function of a module, which is the program.

    Raises:
        CompileError: the module has no function.
    """
    for op in module.body.operations:
        if isinstance(op.operation.opview, func.FuncOp):
            return op.operation.opview
    raise CompileError("the module has no function")


def functions(module: ir.Module) -> list[func.FuncOp]:
    """All functions of a module, in order."""
    found = (op.operation.opview for op in module.body.operations)
    return [op for op in found if isinstance(op, func.FuncOp)]


def split_functions(module: ir.Module) -> list[ir.Module]:
    """One module for each function, with the attributes of `module`; `module` itself if it has one function."""
    count = len(functions(module))
    if count < 2:
        return [module]
    found = []
    for n in range(count):
        one = ir.Module.parse(module.operation.get_asm(enable_debug_info=True))
        for other, function in enumerate(functions(one)):
            if other != n:
                function.operation.erase()
        found.append(one)
    return found


def text_of(attrs: Any, key: str, default: str) -> str:
    """A string attribute's text, or `default` where there is none of that name. attrs: a mapping of attributes."""
    return ir.StringAttr(attrs[key]).value if key in attrs else default
