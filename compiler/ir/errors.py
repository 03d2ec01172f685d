"""Errors of compilation. None is a `ValueError`, so handlers of wrong arguments do not catch them."""

from __future__ import annotations

from gflow.dialects.mlir import ir


class CompileError(RuntimeError):
    """A module cannot be compiled with the given options. The message says what and why."""


class CannotLower(CompileError):
    """The target's code generator does not support an op or a region."""


class PassError(CompileError):
    """A pass fails on this IR. The message says why, and is shown as a diagnostic.

    op: the operation of the diagnostic's location; the function if None.
    """

    def __init__(self, message: str, op: ir.Operation | ir.OpView | None = None) -> None:
        super().__init__(message)
        self.op = op


class BudgetError(PassError):
    """A memory budget cannot be met, even with recomputation. least: the smallest budget that can, in bytes."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least
