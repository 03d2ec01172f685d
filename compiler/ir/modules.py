"""Modules and the functions in them."""

from __future__ import annotations

from typing import Any

from gflow.dialects.mlir import func, ir

from .errors import CompileError


def entry_function(module: ir.Module) -> func.FuncOp:
    """The first function of a module, which is the program.

    Raises:
        CompileError: there is none.
    """
    for op in module.body.operations:
        if isinstance(op.operation.opview, func.FuncOp):
            return op.operation.opview
    raise CompileError("the module has no function")


def text_of(attrs: Any, key: str, default: str) -> str:
    """A string attribute's text, or `default` where there is none of that name. attrs: a mapping of attributes."""
    return ir.StringAttr(attrs[key]).value if key in attrs else default
