"""Calls of programs that are made for the truths of conditions (`tracing.data.branches`).

A program checks its conditions before it updates anything. After a check that fails, the call is undone, and runs the
program for the truth that the check has told; if there is none, one is traced. The program that ran last is tried
first at the next call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gflow.errors import GraphError
from gflow.tracing.data.branches import Branch, failed_branch, truths_after

if TYPE_CHECKING:
    from .plans.plan import Plan


class OtherTruth(Exception):
    """A run has found another truth of a condition than its program is for.

    Attributes: truths: of the call, up to this one. branch: the condition.
    """

    def __init__(self, branches: Sequence[Branch], error: Exception) -> None:
        self.branch = branches[failed_branch(branches, error)]
        self.truths = truths_after(branches, error)
        super().__init__(f"{self.branch.where} is {self.truths[-1]}, which was {self.branch.truth}")


class Branching:
    """What the runs of one call have told of its conditions.

    Attributes: truths: as far as they are known, in the order of the questions. why: the last one that was another, as
    text.
    """

    def __init__(self) -> None:
        self.truths: tuple[bool, ...] = ()
        self.why = ""
        self._seen: set[tuple[bool, ...]] = set()

    def add(self, found: OtherTruth, name: str) -> None:
        """Take what a run has told. name: of the graph.

        Raises:
            GraphError: two programs do not agree about a condition.
        """
        if found.truths in self._seen:
            raise GraphError(
                f"{name}: the program for {found.branch.where} being True finds that it is False, and the other one "
                "that it is True: its value is so close to a limit that rounding decides. Choose by torch.where in "
                "build(), which needs no second program."
            ) from found
        self._seen.add(found.truths)
        self.truths, self.why = found.truths, str(found)

    def takes(self, plan: Plan) -> bool:
        """Whether a plan's program is for these truths."""
        return plan.truths[: len(self.truths)] == self.truths
