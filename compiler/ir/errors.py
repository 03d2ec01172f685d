"""Errors of compilation. None is a `ValueError`, so that no handler of wrong arguments takes one for its own."""

from __future__ import annotations

from gflow.dialects.mlir import ir


class CompileError(RuntimeError):
    """A module cannot be compiled as asked; the message says what and why."""


class CannotLower(CompileError):
    """A code generator of the target cannot express an op or a region."""


class PassError(CompileError):
    """A pass cannot do its work on this IR; the message says why, and is shown as a diagnostic.

    op: the operation at whose location the diagnostic is shown; the function where it is None.
    """

    def __init__(self, message: str, op: ir.Operation | ir.OpView | None = None) -> None:
        super().__init__(message)
        self.op = op
