"""Modules and the functions in them."""

from __future__ import annotations

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
