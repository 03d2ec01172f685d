"""Errors of compilation. None is a `ValueError`, so that no handler of wrong arguments takes one for its own."""

from __future__ import annotations


class CompileError(RuntimeError):
    """A module cannot be compiled as asked; the message says what and why."""


class CannotLower(CompileError):
    """A code generator of the target cannot express an op or a region."""
