"""The nodes behind traced numbers, with PyTorch's interface of symbolic numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from ...data.guards import Expr, Guard, same
from ...data.values import TraceValue


class StateBranch(Exception):
    """Python code reads the value of a number that is only known on the device."""


class ScalarRecorder(Protocol):
    """The interface of the recorder that a traced number uses."""

    guards: list[Guard]

    def record_number(
        self, func: Any, args: tuple[Any, ...], dtype: torch.dtype, words: Any = None
    ) -> TraceValue:
        """Record an ATen op on 0-d tensors, and return its result.

        Args:
            dtype: of the result, float64 or int64.
            words: keyword arguments of the op.
        """


def guard(recorder: ScalarRecorder, expr: Expr, expected: Any) -> None:
    """Record that the trace is valid only while `expr` evaluates to `expected`."""
    if not any(g.expr == expr for g in recorder.guards):
        recorder.guards.append(Guard(expr, expected))


class Number:
    """The node behind a traced number.

    Args:
        hint: its value in this trace.
        expr: its host expression; None if the value is read from a tensor.
        of_call: whether it depends on an argument of the call.
    """

    def __init__(
        self,
        recorder: ScalarRecorder,
        value: TraceValue,
        hint: float,
        expr: Expr,
        of_call: bool = False,
    ) -> None:
        self.recorder, self.value, self.hint, self.expr = recorder, value, hint, expr
        self.is_integer = value.dtype == torch.int64
        self.of_call = of_call

    def concrete(self, convert: Callable[[Any], Any] = same) -> Any:
        """The value in this trace, with a guard.

        Raises:
            StateBranch: the value is read from a tensor.
        """
        if self.expr is None:
            raise StateBranch
        result = convert(self.hint)
        guard(self.recorder, (convert, self.expr), result)
        return result

    def holds(self, function: Callable[[Any, Any], bool], bound: float) -> bool:
        """The result of a comparison with a constant in this trace, with a guard."""
        result = function(self.hint, bound)
        guard(self.recorder, (function, self.expr, bound), result)
        return result

    def shown(self) -> Any:
        """The value for conversion to text, with a guard if it depends on an argument of the call, since code may
        branch on the text."""
        return self.concrete() if self.of_call else self.hint

    # the interface of symbolic nodes that PyTorch's C++ code calls
    def is_int(self) -> bool:
        """Whether it is an integer."""
        return self.is_integer

    def is_float(self) -> bool:
        """Whether it is a float."""
        return not self.is_integer

    def is_bool(self) -> bool:
        """False: comparisons return Python's bools, with guards."""
        return False

    def is_symbolic(self) -> bool:
        """True: the value may differ at the next call."""
        return True

    def is_constant(self) -> bool:
        """False: the value may differ at the next call."""
        return False

    def is_nested_int(self) -> bool:
        """False: it is no size of a nested tensor."""
        return False

    def maybe_as_int(self) -> None:
        """None: no value is known without a guard."""
        return None

    def maybe_as_float(self) -> None:
        """None: no value is known without a guard."""
        return None

    def has_hint(self) -> bool:
        """Whether it has a value in this trace: it is not read from a tensor."""
        return self.expr is not None

    def clone(self) -> Number:
        """The node itself, which is immutable."""
        return self

    def guard_float(self, file: str = "", line: int = 0) -> float:
        """The value in this trace as a float, with a guard.

        Raises:
            StateBranch: it is read from a tensor.
        """
        return self.concrete(float)

    def guard_int(self, file: str = "", line: int = 0) -> int:
        """The value in this trace as an int, with a guard.

        Raises:
            StateBranch: it is read from a tensor.
        """
        return self.concrete(int)

    def guard_bool(self, file: str = "", line: int = 0) -> bool:
        """The value in this trace as a bool, with a guard.

        Raises:
            StateBranch: it is read from a tensor.
        """
        return self.concrete(bool)

    def _graph_repr(self) -> str:
        return f"traced({self.hint})"

    def __str__(self) -> str:
        return self._graph_repr()

    str = __str__


def number_of(obj: Any) -> Number | None:
    """The node of a traced number; None for any other value."""
    if isinstance(obj, (torch.SymFloat, torch.SymInt)):
        node = obj.node
        return node if isinstance(node, Number) else None
    return None


def is_int(x: Any) -> bool:
    node = number_of(x)
    return node.is_integer if node is not None else isinstance(x, int)
