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


#: the most remainders that programs are made for
MOST_STEPS = 64


class Fixed(Exception):
    """No program for several sizes holds this formula; the message has it."""


@dataclass
class Narrower(Exception):
    """A formula is a polynomial on a part of the domain alone. step: by which k must be split. bound: where k must be
    split: it begins a part."""

    step: int = 1
    bound: int | None = None


@dataclass(frozen=True)
class Domain:
    """The sizes n = step * k + rest with k from `least` to `most`, of the symbol `name`."""

    name: str
    least: int
    most: int
    step: int = 1
    rest: int = 0

    @property
    def symbol(self) -> Symbol:
        """What varies in the program, k."""
        return Symbol(self.name if self.step == 1 else "k", self.least, self.most)

    @property
    def formula(self) -> str:
        """A size, as it follows from what varies in the program."""
        return formula((self.rest, self.step), self.symbol.name)

    def k(self, n: int) -> int | None:
        """Of a size, None where it is not in the domain."""
        k, rest = divmod(n - self.rest, self.step)
        return k if not rest and self.least <= k <= self.most else None

    def at(self, k: int) -> int:
        """The size n."""
        return self.step * k + self.rest

    def narrowed(self, by: Narrower, n: int) -> Domain:
        """The part with the size `n`.

        Raises:
            Fixed: it is too small a part to be worth a program.
        """
        found = self
        if by.step > 1:
            step = self.step * by.step
            rest = n % step
            if step > MOST_STEPS:
                raise Fixed(f"{self.name} % {step}")
            low, high = self.at(self.least), self.at(self.most)
            found = replace(
                self,
                step=step,
                rest=rest,
                least=max(1, -((rest - low) // step)),
                most=(high - rest) // step,
            )
        if by.bound is not None:
            k = (n - found.rest) // found.step
            if k < by.bound:
                found = replace(found, most=min(found.most, by.bound - 1))
            else:
                found = replace(found, least=max(found.least, by.bound))
        if found.k(n) is None or found.least >= found.most:
            raise Fixed(f"{self.name} = {n}")
        return found

    def __str__(self) -> str:
        low, high = self.at(self.least), self.at(self.most)
        return f"[{low}, {high}]" if self.step == 1 else f"[{low}, {low + self.step}, ..., {high}]"


class SizeDecides(GraphTraceError):
    """What was asked of a size that varies has different answers in its range. asked: the answer for a k of the domain,
    where it can be computed; linear: whether one form a k + b is one answer; by: what splits the domain into parts that
    have one, where that is known; chooses: whether it is a condition."""

    def __init__(
        self,
        message: str,
        asked: Callable[[int], Any] | None,
        domain: Domain,
        *,
        linear: bool,
        by: Narrower | None = None,
        chooses: bool = False,
    ) -> None:
        super().__init__(message)
        self.asked, self.domain, self.linear, self.by = asked, domain, linear, by
        self.chooses = chooses and asked is not None

    @property
    def divides(self) -> bool:
        """Whether the domain has parts with one answer, be the one around some size too small for a program."""
        if self.by is not None:
            return self.by.step * self.domain.step <= MOST_STEPS
        return self.chooses

    def part(self, n: int) -> Domain | None:
        """The sizes around `n` that have one answer with it; None where these are few, or all."""
        asked, low, high = self.asked, self.domain.least, self.domain.most
        k = self.domain.k(n)
        if k is None:
            return None
        if self.by is not None:
            try:
                return self.domain.narrowed(self.by, n)
            except Fixed:
                return None
        if asked is None or high - low > _ASKED:
            return None
        slope = 0
        if self.linear:
            near = k if k < high else k - 1
            slope = asked(near + 1) - asked(near)
        first = asked(k)

        def alike(other: int) -> bool:
            answer = asked(other)
            return bool(answer == first + slope * (other - k) if self.linear else answer == first)

        least = most = k
        while least > low and alike(least - 1):
            least -= 1
        while most < high and alike(most + 1):
            most += 1
        few = most - least < (1 if self.chooses else _FEWEST)
        return (
            None
            if few or (least, most) == (low, high)
            else replace(self.domain, least=least, most=most)
        )


@dataclass(frozen=True)
class Dynamic:
    """What varies in a call: dimensions of input leaves, by number, all with one size. automatic: found by comparing
    calls, and not marked by the author."""

    sizes: Domain
    dims: dict[int, tuple[int, ...]]
    automatic: bool = False


def size_of(dynamic: Dynamic, leaves: Sequence[Any]) -> int:
    """The size that a call brings along."""
    i, dims = next(iter(dynamic.dims.items()))
    size: int = leaves[i].shape[dims[0]]
    return size


def step_of(dynamic: Dynamic, leaves: Sequence[Any]) -> int:
    """What a call brings along of what varies in its program: k, where its size is step * k + rest."""
    sizes = dynamic.sizes
    return (size_of(dynamic, leaves) - sizes.rest) // sizes.step


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
