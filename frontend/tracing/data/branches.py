"""Branches: truths of values that Python has asked for while `build()` was traced."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.dialects.records import record

from .values import SourceLoc


@record
class Branch:
    """A truth for which a program is made, and which it checks.

    Args:
        truth: that of the trace.
        loc: where Python asked for it.
        message: of the check; no other one of the program has it.
    """

    truth: bool
    loc: SourceLoc
    message: str

    @property
    def where(self) -> str:
        return f"the condition at {self.loc.file}:{self.loc.line}"


def truths_of(branches: Sequence[Branch]) -> tuple[bool, ...]:
    """The truths for which a program is made, in the order of the questions."""
    return tuple([branch.truth for branch in branches])


def failed_branch(branches: Sequence[Branch], error: Exception) -> int:
    """The index of the branch whose check has raised `error`."""
    text = str(error)
    return next(n for n, branch in enumerate(branches) if text.startswith(branch.message))


def truths_after(branches: Sequence[Branch], error: Exception) -> tuple[bool, ...]:
    """The truths of a call for which a check of a program has raised `error`, as far as it tells them."""
    n = failed_branch(branches, error)
    return (*truths_of(branches[:n]), not branches[n].truth)
