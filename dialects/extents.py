"""Sizes that vary from call to call: extents.

A program may have one *size*, a number n between a least and a greatest that each call brings along
(a batch, a length). In the IR it is an argument of role "size"; a dimension that varies with it is
written as its value at a stand-in, a large prime that the argument states:

    %n: tensor<i64> {gflow.role = "size", gflow.name = "n", gflow.min = 1, gflow.max = 64,
                     gflow.stand_in = 1000000007}
    %x: tensor<1000000007x3xf32>           n x 3
    %y: tensor<3000000021xf32>             3 n

Integers made of sizes by sums and products are polynomials in n with small coefficients, and one value at
a large enough prime says which (Kronecker's substitution): so integer arithmetic on shapes, strides and
offsets is exact for every n without knowing of it. What is not a polynomial shows: computed at another
stand-in it is not the same polynomial's value (`gflow.compiler.ir.dynamic_sizes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import gcd, log

#: the stand-in that modules have, and the one that programs are checked with
STAND_INS = (1_000_000_007, 1_000_900_009)

#: integers from here on are taken for values at a stand-in
_LARGE = STAND_INS[0] // 2


@dataclass(frozen=True)
class Symbol:
    """A size: its name, the range of its values, the prime that stands for it in shapes."""

    name: str
    least: int
    most: int
    stand_in: int = STAND_INS[0]

    def coefficients(self, value: int) -> tuple[int, ...]:
        """Of the polynomial in n whose value at the stand-in is `value`, constant first."""
        found = []
        while value:
            digit = value % self.stand_in
            if digit > self.stand_in // 2:
                digit -= self.stand_in
            found.append(digit)
            value = (value - digit) // self.stand_in
        return tuple(found)

    def at(self, value: int, n: int) -> int:
        """What an integer of the IR is for a size of `n`."""
        return value if -_LARGE < value < _LARGE else evaluate(self.coefficients(value), n)

    def is_count(self, value: int) -> bool:
        """Whether an integer is never negative, and greatest at an end of the range."""
        _, *rest = self.coefficients(value) or (0,)
        ends = (self.at(value, self.least), self.at(value, self.most))
        return min(ends) >= 0 and (len(rest) < 2 or min(rest) >= 0)

    def text(self, value: int) -> str:
        """An integer of the IR as a formula: `3*n`."""
        return formula(self.coefficients(value), self.name)

    def __str__(self) -> str:
        return f"{self.name} in [{self.least}, {self.most}]"


@dataclass(frozen=True)
class Extent:
    """A number of a program that depends on its size: a polynomial, constant first.

    With a `limit`, it is what is left of that from `first` on, and at most the limit: a piece of a
    whole, which may be empty.
    """

    coefficients: tuple[int, ...]
    first: int = 0
    limit: int | None = None

    def at(self, n: int) -> int:
        """The number for a size of `n`."""
        c = self.coefficients
        value = c[0] + c[1] * n if len(c) == 2 else evaluate(c, n)
        return value if self.limit is None else max(0, min(value - self.first, self.limit))

    def __str__(self) -> str:
        text = formula(self.coefficients, "n")
        return text if self.limit is None else f"clamp({text} - {self.first}, 0, {self.limit})"


@dataclass(frozen=True)
class Piece:
    """How many of `whole` (an integer of the IR, that varies) there are from `first` on, at most `limit`:
    code that works piece by piece has pieces for the greatest size, the last of which may be empty."""

    whole: int
    first: int
    limit: int

    def times(self, factor: int, divisor: int = 1) -> Piece:
        """The same in another unit: all three times `factor / divisor`.

        Raises:
            ValueError: that gives no integers.
        """
        scaled = [divmod(x * factor, divisor) for x in (self.whole, self.first, self.limit)]
        if any(rest for _, rest in scaled):
            raise ValueError(f"{self} in units of {divisor}/{factor} is no integer")
        return Piece(*(x for x, _ in scaled))

    @property
    def like(self) -> int:
        """An integer that varies, and has the divisors that this number always has."""
        symbol = current()
        assert symbol is not None
        return symbol.stand_in * gcd(divisor(self.whole), self.first, self.limit)


Count = int | Piece


def pieces(total: int, length: int) -> list[tuple[int, Count]]:
    """(first, count) of pieces of `length` that make up `total`."""
    if not varies(total):
        return [(at, min(length, total - at)) for at in range(0, total, length)]
    most = at_most(total)
    if most <= length:
        return [(0, total)]
    return [(at, Piece(total, at, min(length, most - at))) for at in range(0, most, length)]


def longest(counts: Sequence[tuple[int, Count]]) -> int:
    """The most of one piece."""
    return max(c.limit if isinstance(c, Piece) else at_most(c) for _, c in counts)


def evaluate(coefficients: Sequence[int], n: int) -> int:
    """A polynomial's value."""
    value = 0
    for c in reversed(coefficients):
        value = value * n + c
    return value


def formula(coefficients: Sequence[int], name: str) -> str:
    """A polynomial as text."""
    terms = []
    for power in range(len(coefficients) - 1, -1, -1):
        c = coefficients[power]
        if not c:
            continue
        variable = "" if not power else name if power == 1 else f"{name}**{power}"
        terms.append(
            variable if variable and c == 1 else "*".join(filter(None, (str(c), variable)))
        )
    return " + ".join(terms).replace("+ -", "- ") or "0"


def roughly(value: int) -> int:
    """About what an integer becomes at most: for costs, whose coefficients are too large to be told
    apart."""
    symbol = _symbol.get()
    if -_LARGE < value < _LARGE or symbol is None:
        return value
    degree = max(1, round(log(value, symbol.stand_in) - 0.4))
    return int(value * (symbol.most / symbol.stand_in) ** degree)


_symbol: ContextVar[Symbol | None] = ContextVar("symbol", default=None)


@contextmanager
def size_of_program(symbol: Symbol | None) -> Iterator[None]:
    """The program at work has this size."""
    token = _symbol.set(symbol)
    try:
        yield
    finally:
        _symbol.reset(token)


def current() -> Symbol | None:
    """The size of the program at work."""
    return _symbol.get()


def varies(value: int) -> bool:
    """Whether an integer depends on the size of the program at work."""
    return not -_LARGE < value < _LARGE and _symbol.get() is not None


def minimum(a: int, b: int) -> int:
    """The smaller of two integers, whatever the size.

    Raises:
        ValueError: that is another one for other sizes.
    """
    symbol = _symbol.get()
    if symbol is None or not (varies(a) or varies(b)):
        return min(a, b)
    for x, y in ((a, b), (b, a)):
        if symbol.is_count(y - x):
            return x
    raise ValueError(
        f"{symbol.text(a)} and {symbol.text(b)} with {symbol}: either may be the smaller"
    )


def divisor(value: int) -> int:
    """The greatest number that divides an integer whatever the size; the integer itself if that is fixed."""
    if -_LARGE < value < _LARGE:
        return value
    symbol = _symbol.get()
    return value if symbol is None else gcd(*symbol.coefficients(value))


def at_most(value: int) -> int:
    """The greatest that an integer becomes: bytes to plan for, work to share."""
    if -_LARGE < value < _LARGE:
        return value
    symbol = _symbol.get()
    if symbol is None:
        return value
    return max(symbol.at(value, n) for n in (symbol.least, symbol.most))
