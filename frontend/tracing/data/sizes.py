"""Sizes that vary from call to call, in a trace.

A dimension that the author marked dynamic is a `torch.SymInt` while the graph is traced (`size_env`). In
the trace, a size that depends on it is a `Size`: its value at a stand-in (`gflow.dialects.extents`), with
its polynomial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gflow.dialects.extents import Symbol, evaluate, formula
from gflow.errors import GraphTraceError

from .trace import Trace
from .values import ResultView, TraceOp, TraceOutput, TraceValue

#: sizes that are asked one by one; and how many a form a n + b must hold for, to have a program
_ASKED, _FEWEST = 1 << 16, 8


@dataclass(frozen=True)
class Range:
    """A dimension's sizes, as the author marked them."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"[{self.least}, {self.most}]"


class SizeDecides(GraphTraceError):
    """What was asked of a size that varies has different answers in its range. asked: the answer for a size, where it
    can be computed; linear: whether one form a n + b is one answer."""

    def __init__(
        self, message: str, asked: Callable[[int], Any] | None, sizes: Range, linear: bool
    ) -> None:
        super().__init__(message)
        self.asked, self.sizes, self.linear = asked, sizes, linear

    def part(self, n: int) -> Range | None:
        """The sizes around `n` that have one answer with it; None where these are few, or all."""
        asked, low, high = self.asked, self.sizes.least, self.sizes.most
        if asked is None or high - low > _ASKED or not low <= n <= high:
            return None
        slope = 0
        if self.linear:
            near = n if n < high else n - 1
            slope = asked(near + 1) - asked(near)
        first = asked(n)

        def alike(k: int) -> bool:
            return bool(asked(k) == first + slope * (k - n) if self.linear else asked(k) == first)

        least = most = n
        while least > low and alike(least - 1):
            least -= 1
        while most < high and alike(most + 1):
            most += 1
        few = most - least < (_FEWEST if self.linear else 1)
        return None if few or (least, most) == (low, high) else Range(least, most)


@dataclass(frozen=True)
class Dynamic:
    """What varies in a call: dimensions of input leaves, by number, all with one size. automatic: found by comparing
    calls, and not marked by the author."""

    sizes: Range
    dims: dict[int, tuple[int, ...]]
    automatic: bool = False


def size_of(dynamic: Dynamic, leaves: Sequence[Any]) -> int:
    """The size that a call brings along."""
    i, dims = next(iter(dynamic.dims.items()))
    size: int = leaves[i].shape[dims[0]]
    return size


class Size(int):
    """A size in a trace: its value at the stand-in, and the polynomial that it is."""

    coefficients: tuple[int, ...]
    name: str

    @staticmethod
    def make(coefficients: tuple[int, ...], symbol: Symbol) -> Size:
        """The size that a polynomial of a symbol's size is; its value is that at the symbol's stand-in."""
        self = Size(evaluate(coefficients, symbol.stand_in))
        self.coefficients, self.name = coefficients, symbol.name
        return self

    def __repr__(self) -> str:
        return formula(self.coefficients, self.name)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)


def sized(value: int, symbol: Symbol | None) -> int:
    """An integer computed from sizes at the stand-in, as the size that it is."""
    if symbol is None or symbol.at(value, symbol.least) == value:
        return value
    return Size.make(symbol.coefficients(value), symbol)


def at_size(value: Any, k: int) -> Any:
    """A number of a trace, or a tuple of numbers, for a size of `k`; anything else is what it is."""
    if isinstance(value, tuple):
        return tuple([evaluate(x.coefficients, k) if isinstance(x, Size) else x for x in value])
    return evaluate(value.coefficients, k) if isinstance(value, Size) else value


def view_at(view: ResultView, k: int) -> ResultView:
    """A result that is a view, for a size of `k`."""
    names = ("base_strides", "shape", "strides", "offset")
    return replace(view, **{name: at_size(getattr(view, name), k) for name in names})


# -- a trace for one value


def at_one_size(trace: Trace, n: int, arguments: Sequence[Any]) -> tuple[Trace, list[Any]]:
    """A trace without a size that varies, as it is for `n`, and its arguments.

    The argument that brought the size along is a constant of that value.
    """
    made = with_size(trace, n)
    made.size = None
    given = list(arguments)
    for position, entry in enumerate(made.inputs):
        if entry.role == "size":
            made.inputs[position] = replace(entry, role="constant")
            given[position] = torch.tensor(n, dtype=torch.int64)
    return made, given


def with_size(trace: Trace, n: int) -> Trace:
    """A trace with the sizes that it has for `n` (a stand-in, or a real size)."""
    values: dict[int, TraceValue] = {}

    def number(x: Any) -> Any:
        return evaluate(x.coefficients, n) if isinstance(x, Size) else x

    def convert(x: Any) -> Any:
        if isinstance(x, TraceValue):
            found = values.get(x.id)
            if found is None:
                found = values[x.id] = TraceValue(
                    x.id, tuple(map(number, x.shape)), x.dtype, tuple(map(number, x.strides)),
                    x.device, x.is_number,
                )  # fmt: skip
            return found
        if isinstance(x, (list, tuple)):
            return type(x)([convert(i) for i in x])
        if isinstance(x, dict):
            return {k: convert(v) for k, v in x.items()}
        return number(x)

    made = replace(trace)
    made.inputs = [replace(i, value=convert(i.value)) for i in trace.inputs]
    made.ops = [
        TraceOp(
            op.func, convert(op.args), convert(op.kwargs), convert(op.results), op.loc, op.scope
        )
        for op in trace.ops
    ]
    made.proven = {new for old, new in zip(trace.ops, made.ops) if old in trace.proven}
    made.outputs = [TraceOutput(convert(o.value), o.alias, o.name) for o in trace.outputs]
    made.input_leaves = {convert(v): leaf for v, leaf in trace.input_leaves.items()}
    made.size = None if trace.size is None else replace(trace.size, stand_in=n)
    return made
