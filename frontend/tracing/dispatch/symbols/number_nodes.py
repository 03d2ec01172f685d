"""The nodes behind traced numbers, with PyTorch's interface of symbolic numbers."""

from __future__ import annotations

import math
import operator
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


#: what PyTorch's C++ code computes with symbolic numbers → the function of the values
_OPERATORS: dict[str, Callable[..., Any]] = {
    **{n: getattr(operator, n) for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg")},
    **{n: getattr(operator, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    "float_truediv": operator.truediv, "int_truediv": operator.truediv, "int_floordiv": operator.floordiv,
    "float_pow": operator.pow, "pow_by_natural": operator.pow, "sym_min": min, "sym_max": max, "sym_float": float,
    "sym_and": operator.and_, "sym_or": operator.or_, "sym_not": operator.not_, "ceil": math.ceil, "floor": math.floor,
}  # fmt: skip


class _Node:
    """What PyTorch's C++ code asks of a symbolic number. What it computes (of the ends of a slice, of shapes) is
    computed with values of this trace, guarded."""

    kind: type
    known = False

    def concrete(self, convert: Callable[[Any], Any] = same) -> Any:
        """The value in this trace, guarded."""
        raise NotImplementedError

    def is_int(self) -> bool:
        """Whether it is an integer (of PyTorch's protocol for symbolic nodes)."""
        return self.kind is int

    def is_float(self) -> bool:
        """Whether it is a float."""
        return self.kind is float

    def is_bool(self) -> bool:
        """Whether it is a bool."""
        return self.kind is bool

    def is_symbolic(self) -> bool:
        """Whether the value may differ at the next call."""
        return not self.known

    def is_constant(self) -> bool:
        """Whether the value never differs."""
        return self.known

    def is_nested_int(self) -> bool:
        """False: it is no size of a nested tensor."""
        return False

    def maybe_as_int(self) -> int | None:
        """The value where it needs no guard."""
        return self.concrete() if self.known and self.kind is int else None

    def maybe_as_float(self) -> float | None:
        """The value where it needs no guard."""
        return self.concrete() if self.known and self.kind is float else None

    def maybe_as_bool(self) -> bool | None:
        """The value where it needs no guard."""
        return self.concrete() if self.known and self.kind is bool else None

    constant_int, constant_bool = maybe_as_int, maybe_as_bool

    def has_hint(self) -> bool:
        """Whether it has a value in this trace."""
        return True

    def clone(self) -> _Node:
        """The node itself, which never changes."""
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

    guard_or_false = guard_or_true = guard_size_oblivious = expect_true = guard_bool
    statically_known_true = guard_bool

    def wrap_int(self, value: Any) -> _Node:
        """A node for a number beside this one."""
        return _Known(value)

    wrap_float = wrap_bool = wrap_int

    def __getattr__(self, name: str) -> Any:
        function = _OPERATORS.get(name)
        if function is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return lambda *others: _Known(function(*(n.concrete() for n in (self, *others))))


class _Known(_Node):
    """A number that the trace holds for alone."""

    known = True

    def __init__(self, value: Any) -> None:
        self.value, self.kind = value, type(value)

    def concrete(self, convert: Callable[[Any], Any] = same) -> Any:
        """The value."""
        return convert(self.value)


class Number(_Node):
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
        self.kind = int if self.is_integer else float
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
        """The value for conversion to text, with a guard, since code may branch on the text.

        Raises:
            StateBranch: the value is read from a tensor.
        """
        return self.concrete()

    def has_hint(self) -> bool:
        """Whether it has a value in this trace; not if it is read from a tensor."""
        return self.expr is not None

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
