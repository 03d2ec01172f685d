"""Errors a model author sees. Each message names the user's line and says what to do."""

from __future__ import annotations


class GraphError(RuntimeError):
    """A graph was defined or called in a way that cannot work."""


class GraphTraceError(GraphError):
    """`build()` or an optimizer's `step()` does something that a static graph cannot express.

    by_eager: why `gflow.compile` runs such a function in eager mode: TorchDynamo would lose the effect. Empty if it
    would not.
    """

    by_eager = ""

    def to_eager(self, reason: str) -> GraphTraceError:
        """This error, for a function that must run in eager mode."""
        self.by_eager = reason
        return self


class ShapeOfValues(GraphTraceError):
    """An op gives a result whose shape depends on values. A trace with a tail may take it."""


class GraphInputError(GraphError, TypeError):
    """A graph was called with arguments that it does not accept."""


class GraphAttributeError(GraphError, AttributeError):
    """A name that graphs do not have; the message says what to use instead."""


class StateChangedError(GraphError):
    """A function that `gflow.compile` compiles changes Python state. A program would not repeat the change.

    hidden: what TorchDynamo, which does not detect the change either, would do; "" if it detects it.
    """

    hidden = ""


class EagerMismatch(GraphError):
    """A step that `config.check_against_eager()` checked differs from eager."""


def mark_traced(error: Exception) -> None:
    """Mark an error of the author's code or of a library as raised during tracing."""
    error.__dict__["_gflow_traced"] = True


def is_traced(error: Exception) -> bool:
    """Whether an error was raised by code that was traced, and not by a running program."""
    return "_gflow_traced" in error.__dict__
