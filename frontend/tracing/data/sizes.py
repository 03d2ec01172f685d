"""Dynamic dimensions in a trace.

A dimension that the author marked as dynamic is a `torch.SymInt` while the graph is traced (`size_env`). In the trace,
a size that depends on it is a `Size`: an integer, its value at the stand-in (`gflow.dialects.extents`), together with
its polynomial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any

import torch

from gflow.dialects.extents import Coefficients, N, Symbol, evaluate, formula
from gflow.dialects.records import record
from gflow.errors import GraphTraceError

from .trace import Trace
from .values import ResultView, TraceOp, TraceOutput, TraceValue

#: up to how many sizes are evaluated one by one; and the least number of sizes a + b n for which a program is compiled
_ASKED, _FEWEST = 1 << 16, 8


#: the largest divisor for whose remainders programs are compiled
MOST_STEPS = 64


class Fixed(Exception):
    """A program for several sizes cannot have this formula; the message has the formula."""


@dataclass
class Narrower(Exception):
    """A formula is a polynomial only on a part of the domain.

    Args:
        step: the divisor by whose remainders k must be partitioned.
        bound: the value of k at which the domain must be split; it begins a part.
        second: whether the domain is that of the second dynamic dimension.
    """

    step: int = 1
    bound: int | None = None
    second: bool = False


@record
class Domain:
    """The sizes n = step * k + rest with k from `least` to `most`, of the symbol `name`."""

    name: str
    least: int
    most: int
    step: int = 1
    rest: int = 0

    @property
    def symbol(self) -> Symbol:
        """The symbol of the program, k."""
        return Symbol(self.name if self.step == 1 else "k", self.least, self.most)

    @property
    def formula(self) -> str:
        """A size n as a formula in the program's symbol."""
        return formula((self.rest, self.step), self.symbol.name)

    def k(self, n: int) -> int | None:
        """The k of the size n; None if n is not in the domain."""
        k, rest = divmod(n - self.rest, self.step)
        return k if not rest and self.least <= k <= self.most else None

    def at(self, k: int) -> int:
        """The size n for k."""
        return self.step * k + self.rest

    def narrowed(self, by: Narrower, n: int) -> Domain:
        """The part of the domain with the size `n`.

        Raises:
            Fixed: the part is too small for a program.
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
    """A question about a dynamic size has different answers in its range.

    Args:
        message: the error message.
        asked: computes the answer for a k of the domain; None if that is not possible.
        domain: the domain.
        linear: whether answers of one form a k + b count as one answer.
        by: how to partition the domain into parts with one answer each, where that is known.
        chooses: whether the question is a condition.
        second: whether it is about the second dynamic dimension.
    """

    def __init__(
        self,
        message: str,
        asked: Callable[[int], Any] | None,
        domain: Domain,
        *,
        linear: bool,
        by: Narrower | None = None,
        chooses: bool = False,
        second: bool = False,
    ) -> None:
        super().__init__(message)
        self.second = second
        self.asked, self.domain, self.linear, self.by = asked, domain, linear, by
        self.chooses = chooses and asked is not None

    @property
    def divides(self) -> bool:
        """Whether the domain has parts with one answer each; a part may be too small for a program."""
        if self.by is not None:
            return self.by.step * self.domain.step <= MOST_STEPS
        return self.chooses

    def part(self, n: int) -> Domain | None:
        """The part of the domain around `n` that has one answer; None if it is too small, or the whole domain."""
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


@record
class Dynamic:
    """The dynamic dimensions of a call.

    Args:
        sizes: the domain of the size.
        dims: the dimensions with that size, by the index of the input leaf.
        automatic: whether they were found by comparing calls, and not marked by the author.
        beside: names of other sizes that vary between calls, and are constants of a program.
        second: a second dynamic size.
    """

    sizes: Domain
    dims: dict[int, tuple[int, ...]]
    automatic: bool = False
    beside: tuple[str, ...] = field(default=(), compare=False)
    second: Dynamic | None = None

    @property
    def each(self) -> list[Dynamic]:
        """The dynamic sizes: one or two."""
        return [self] if self.second is None else [self, self.second]

    def which(self, leaf: int) -> dict[int, int]:
        """The dynamic dimensions of an input leaf, each with the index of its size in `each`."""
        return {d: at for at, one in enumerate(self.each) for d in one.dims.get(leaf, ())}

    def part_of(self, reason: SizeDecides, leaves: Sequence[Any]) -> Dynamic | None:
        """The same with a smaller domain around this call's size, in which a question has one answer; None if there is
        none."""
        at = self.each[reason.second]
        part = reason.part(size_of(at, leaves))
        if part is None:
            return None
        if not reason.second:
            return replace(self, sizes=part)
        return replace(self, second=replace(at, sizes=part))


def size_of(dynamic: Dynamic, leaves: Sequence[Any]) -> int:
    """The size n of a call."""
    i, dims = next(iter(dynamic.dims.items()))
    size: int = leaves[i].shape[dims[0]]
    return size


def step_of(dynamic: Dynamic, leaves: Sequence[Any]) -> N:
    """The k of a call, where its size is step * k + rest; a pair if there are two dynamic sizes."""
    sizes = dynamic.sizes
    k = (size_of(dynamic, leaves) - sizes.rest) // sizes.step
    if dynamic.second is None:
        return k
    other = step_of(dynamic.second, leaves)
    assert isinstance(other, int)
    return k, other


class Size(int):
    """A size in a trace: its value at the stand-in, with its polynomial."""

    coefficients: Coefficients
    symbol: Symbol

    @staticmethod
    def make(coefficients: Coefficients, symbol: Symbol) -> Size:
        """The size with these coefficients as a polynomial in a symbol; its integer value is that at the symbol's
        stand-in."""
        self = Size(evaluate(coefficients, symbol.place))
        self.coefficients, self.symbol = coefficients, symbol
        return self

    def __repr__(self) -> str:
        second = self.symbol.second
        return formula(self.coefficients, self.symbol.name, "m" if second is None else second.name)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)


def row_major(shape: Sequence[int], symbol: Symbol | None) -> tuple[int, ...]:
    """The row-major strides, in elements, of a shape with dynamic sizes.

    Raises:
        Fixed: a stride cannot be identified from its values at the stand-ins.
    """
    strides: list[int] = []
    ways = [symbol, symbol] if symbol is None else [symbol.standing(0), symbol.standing(1)]
    steps = [1, 1]
    for size in reversed(shape):
        step = steps[0]
        if symbol is not None and not symbol.fixes(step):
            found = symbol.coefficients(step)
            if ways[1].coefficients(steps[1]) != found:  # type: ignore[union-attr]
                raise Fixed(f"a stride of {[*shape]}")
            step = Size.make(found, symbol)
        strides.append(step)
        for at, way in enumerate(ways):
            own = size if way is None else at_size(size, way.place)
            steps[at] *= max(own, 1)
    return tuple(strides[::-1])


def at_size(value: Any, k: N) -> Any:
    """A number of a trace, or a tuple of numbers, for the size `k`; other values are returned as they are."""
    if isinstance(value, tuple):
        return tuple([evaluate(x.coefficients, k) if isinstance(x, Size) else x for x in value])
    return evaluate(value.coefficients, k) if isinstance(value, Size) else value


def view_at(view: ResultView, k: N) -> ResultView:
    """A `ResultView` for the size `k`."""
    names = ("base_strides", "shape", "strides", "offset")
    return replace(view, **{name: at_size(getattr(view, name), k) for name in names})


# -- a trace for one size


def at_one_size(trace: Trace, n: N, arguments: Sequence[Any]) -> tuple[Trace, list[Any]]:
    """A trace specialized for the size `n`, and its arguments.

    The argument that holds the size becomes a constant.
    """
    made = with_size(trace, n)
    given, left = list(arguments), [*n] if isinstance(n, tuple) else [n]
    for position, entry in enumerate(made.inputs):
        if entry.role == "size":
            made.inputs[position] = replace(entry, role="constant")
            own, *left = left
            given[position] = torch.tensor(own, dtype=torch.int64, device="cpu")
    return made, given


def with_forms(trace: Trace) -> Symbol:
    """The symbol of a trace with two dynamic sizes, with the multiples of the second size that occur in the trace
    (`forms`).

    Raises:
        Fixed: a size or a constant cannot be identified from its value at the stand-ins.
    """
    assert trace.size is not None
    assert trace.size.second is not None
    found: dict[Coefficients, Size] = {}
    plain: set[int] = set()

    def look(x: Any) -> None:
        if isinstance(x, TraceValue):
            look(x.shape)
            look(x.strides)
        elif isinstance(x, (list, tuple)):
            for i in x:
                look(i)
        elif isinstance(x, dict):
            look([*x.values()])
        elif isinstance(x, Size):
            found[x.coefficients] = x
        elif type(x) is int and abs(x) < 1 << 62:  # the end of a slice may be any large number
            plain.add(x)

    for given in trace.inputs:
        look(given.value)
    for op in trace.ops:
        look([op.args, op.kwargs, op.results])
    look([o.value for o in trace.outputs])
    forms = {
        tuple(x // gcd(*c) * (1 if c[1] > 0 else -1) for x in c)
        for size in found.values()
        for c in size.coefficients
        if isinstance(c, tuple) and len(c) == 2 and c[0]
    }
    inner = replace(trace.size.second, forms=tuple(sorted(forms)))  # type: ignore[arg-type]
    symbol = replace(trace.size, second=inner)
    for which in (0, 1):
        own = symbol.standing(which)
        for c, size in found.items():
            if own.coefficients(evaluate(c, own.place)) != c:
                raise Fixed(f"{size}, beside two sizes that vary")
        for x in plain:
            if not own.fixes(x):
                raise Fixed(f"{x}, which stands for {own.text(x)} beside two sizes that vary")
    return symbol


def standing(trace: Trace, which: int) -> Trace:
    """A trace with its sizes at the first (0) or the second (1) pair of stand-ins."""
    assert trace.size is not None
    symbol = trace.size.standing(which)
    return replace(with_size(trace, symbol.place), size=symbol)


def with_size(trace: Trace, n: N) -> Trace:
    """A trace with its sizes for `n`, and without a symbol."""
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
    made.size = None
    return made
