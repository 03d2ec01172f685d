"""Errors a model author sees. Each message names the user's line and says what to do."""

from __future__ import annotations


class GraphError(RuntimeError):
    """A graph was defined or called in a way that cannot work."""


class GraphTraceError(GraphError):
    """`build()` or an optimizer's `step()` does something a static graph cannot hold.

    by_eager: why `gflow.compile` runs such a function as in eager mode: TorchDynamo would lose it. Empty where it
        would not.
    """

    by_eager = ""

    def to_eager(self, reason: str) -> GraphTraceError:
        """This error, of a function for eager mode."""
        self.by_eager = reason
        return self


class GraphInputError(GraphError, TypeError):
    """A graph was called with arguments it cannot take."""


class GraphAttributeError(GraphError, AttributeError):
    """A name that graphs do not have; the message says what to use instead."""


class StateChangedError(GraphError):
    """A function that `gflow.compile` compiles changes Python state, which a program does not change again.

    hidden: what TorchDynamo, which does not see the change either, would do; "" if it sees it.
    """

    hidden = ""


class EagerMismatch(GraphError):
    """A step that `config.check_against_eager()` checked is not what eager makes of it."""


def mark_traced(error: Exception) -> None:
    """Note that the author's code, or a library's, raised an error while it was traced."""
    error.__dict__["_gflow_traced"] = True


def is_traced(error: Exception) -> bool:
    """Whether an error was raised by code that was traced, and not by a program that ran."""
    return "_gflow_traced" in error.__dict__
