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

A program may have a second size, m, that varies on its own (a batch and a length). Stand-ins are a large prime P for n,
and a small one, Q, for m, so that n m² and n m times a vocabulary fit 64 bits. A number's digits to the base P are the
coefficients of powers of n, as before, and each is a polynomial in m where it is a multiple of Q, up to `_NEAR`, or of
what the program says that it has (`gflow.forms`: 2 m + 1). That reading is a guess: a constant may be such a multiple,
too. It is so at one Q and not at another: what was guessed wrongly differs between the two compilations of a program,
which is an error (`guesses`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import gcd, log, sqrt
from typing import Any

from .records import record

#: the stand-in that modules have, and the one that programs are checked with
STAND_INS = (1_000_000_007, 1_000_900_009)

#: the same for programs with two sizes, n and m
PAIRS = ((4_294_967_311, 1097), (4_295_867_299, 1109))

#: integers from here on are taken for values at a stand-in
_LARGE = STAND_INS[0] // 2

#: how far from a multiple of m's stand-in a number is a polynomial in m
_NEAR = 1

#: the value of a program's size, or those of both
N = int | tuple[int, int]

#: of a polynomial in n, constant first; where there is a second size, of polynomials in m
Coefficients = tuple["int | tuple[int, ...]", ...]


@record
class Symbol:
    """A size: its name, the range of its values, the prime that stands for it in shapes. second: the program's other
    size, if it has one. forms: of a second size, what its multiples are in the program, (b, a) for a m + b."""

    name: str
    least: int
    most: int
    stand_in: int = STAND_INS[0]
    second: Symbol | None = None
    forms: tuple[tuple[int, int], ...] = ()

    @property
    def each(self) -> list[Symbol]:
        """The size, or both."""
        return [self] if self.second is None else [self, self.second]

    @property
    def place(self) -> N:
        """The stand-in, or both."""
        return self.stand_in if self.second is None else (self.stand_in, self.second.stand_in)

    @property
    def greatest(self) -> N:
        """The end of the range, or of both."""
        return self.most if self.second is None else (self.most, self.second.most)

    @property
    def corners(self) -> list[N]:
        """Ends of the range, least first; of two, the corners of the rectangle."""
        ends = (self.least, self.most)
        if self.second is None:
            return [*ends]
        return [*product(ends, (self.second.least, self.second.most))]

    def standing(self, which: int) -> Symbol:
        """The same with its first (0) or other (1) stand-ins."""
        if self.second is None:
            return replace(self, stand_in=STAND_INS[which])
        outer, inner = PAIRS[which]
        return replace(self, stand_in=outer, second=replace(self.second, stand_in=inner))

    def coefficients(self, value: int) -> Coefficients:
        """Of the polynomial in n whose value at the stand-in is `value`, constant first."""
        if self.second is not None:
            found = _of_both(value, self.stand_in, self.second.stand_in, self.second.forms)
            guessed = _guessed.get()
            if guessed is not None and len(found) == 1 and type(found[0]) is tuple:
                guessed.add(value)
            return found
        return _digits(value, self.stand_in)

    def fixes(self, value: int) -> bool:
        """Whether an integer of the IR is the same for all sizes."""
        if self.second is None:
            return -_LARGE < value < _LARGE
        found = self.coefficients(value)
        return not found or (len(found) == 1 and type(found[0]) is int)

    def at(self, value: int, n: N) -> int:
        """What an integer of the IR is for a size of `n`."""
        return value if self.fixes(value) else evaluate(self.coefficients(value), n)

    def is_count(self, value: int) -> bool:
        """Whether an integer is never negative, and greatest at a corner of the range."""
        found = self.coefficients(value)
        if min(self.at(value, corner) for corner in self.corners) < 0:
            return False
        # of degree one in each size, the least lies at a corner as well
        flat = len(found) <= 2 and all(type(c) is int or len(c) <= 2 for c in found)  # type: ignore[arg-type]
        return flat or min(leaves(found)[1:]) >= 0

    def text(self, value: int) -> str:
        """An integer of the IR as a formula: `3*n`."""
        second = "m" if self.second is None else self.second.name
        return formula(self.coefficients(value), self.name, second)

    def __str__(self) -> str:
        own = f"{self.name} in [{self.least}, {self.most}]"
        return own if self.second is None else f"{own}, {self.second}"


def _digits(value: int, base: int) -> tuple[int, ...]:
    found = []
    while value:
        digit = value % base
        if digit > base // 2:
            digit -= base
        found.append(digit)
        value = (value - digit) // base
    return tuple(found)


@lru_cache(1 << 16)
def _of_both(
    value: int, outer: int, inner: int, forms: tuple[tuple[int, int], ...]
) -> Coefficients:
    return tuple([_near(digit, inner, forms) for digit in _digits(value, outer)])


def _near(value: int, base: int, forms: tuple[tuple[int, int], ...]) -> int | tuple[int, ...]:
    """A number as a polynomial in m: the number itself unless it lies at a multiple of its stand-in."""
    if abs(value) <= base // 2:
        return value
    rest = (value + base // 2) % base - base // 2
    if rest:
        for b, a in forms:
            times, left = divmod(value, a * base + b)
            if not left and abs(times) < base:
                return times * b, times * a
        if abs(rest) > _NEAR:
            return value
    higher = _near((value - rest) // base, base, forms)
    return (rest, *higher) if isinstance(higher, tuple) else (rest, higher)


def leaves(coefficients: Sequence[int | Sequence[int]]) -> list[int]:
    """All coefficients of a polynomial, that of the constant first."""
    if not coefficients:
        return [0]
    return [x for c in coefficients for x in (c if isinstance(c, (tuple, list)) else (c,))]


@record
class Extent:
    """A number of a program that depends on its size: a polynomial, constant first.

    With a `limit`, it is what is left of that from `first` on, and at most the limit: a piece of a
    whole, which may be empty.
    """

    coefficients: Coefficients
    first: int = 0
    limit: int | None = None

    def at(self, n: N) -> int:
        """The number for a size of `n`."""
        value = evaluate(self.coefficients, n)
        return value if self.limit is None else max(0, min(value - self.first, self.limit))

    def __str__(self) -> str:
        text = formula(self.coefficients, "n")
        return text if self.limit is None else f"clamp({text} - {self.first}, 0, {self.limit})"


@record
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


def evaluate(coefficients: Sequence[int | Sequence[int]], n: N) -> int:
    """A polynomial's value."""
    if isinstance(n, tuple):
        n, m = n
        coefficients = [c if type(c) is int else evaluate(c, m) for c in coefficients]  # type: ignore[arg-type]
    value: int = 0
    for c in reversed(coefficients):
        value = value * n + c  # type: ignore[operator]
    return value


def horner(coefficients: Sequence[int | Sequence[int]], sizes: Sequence[Any]) -> Any:
    """A polynomial's value by the operators of `sizes`, which need not be integers: of n, or of n and m."""
    if not sizes:  # a program of fixed sizes: the polynomial is a number
        (constant,) = coefficients or (0,)  # zero has no coefficients
        return constant
    size, *inner = sizes
    total: Any = 0
    for c in reversed(coefficients):
        # numbers that are traced pass for integers, and are not asked for their value
        own = c if type(c) is int else horner(c, inner)  # type: ignore[arg-type]
        if type(total) is not int:
            total = total * size
        elif total:
            total = size if total == 1 else size * total
        if type(own) is not int or own:
            total = own if type(total) is int and not total else total + own
    return total


def formula(coefficients: Sequence[int | Sequence[int]], name: str, second: str = "m") -> str:
    """A polynomial as text. second: the name of the other size."""
    terms = []
    for power in range(len(coefficients) - 1, -1, -1):
        c = coefficients[power]
        if not c:
            continue
        variable = "" if not power else name if power == 1 else f"{name}**{power}"
        own = str(c) if isinstance(c, int) else formula(c, second)
        if variable and " " in own:
            own = f"({own})"
        terms.append(variable if variable and c == 1 else "*".join(filter(None, (own, variable))))
    return " + ".join(terms).replace("+ -", "- ") or "0"


def roughly(value: int) -> int:
    """About what an integer becomes at most: for costs, whose coefficients are too large to be told
    apart."""
    symbol = _symbol.get()
    if -_LARGE < value < _LARGE or symbol is None:
        return value
    if symbol.second is not None:
        return abs(symbol.at(value, symbol.greatest))
    degree = max(1, round(log(value, symbol.stand_in) - 0.4))
    return int(value * (symbol.most / symbol.stand_in) ** degree)


_symbol: ContextVar[Symbol | None] = ContextVar("symbol", default=None)


_guessed: ContextVar[set[int] | None] = ContextVar("guessed", default=None)


@contextmanager
def guesses() -> Iterator[set[int]]:
    """Inside, integers that are taken for polynomials in the second size alone are collected. One that is so with both
    stand-ins is a constant."""
    found: set[int] = set()
    token = _guessed.set(found)
    try:
        yield found
    finally:
        _guessed.reset(token)


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
    symbol = _symbol.get()
    return symbol is not None and not symbol.fixes(value)


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
    symbol = _symbol.get()
    return (
        value if symbol is None or symbol.fixes(value) else gcd(*leaves(symbol.coefficients(value)))
    )


def at_most(value: int) -> int:
    """The greatest that an integer becomes: bytes to plan for, work to share."""
    symbol = _symbol.get()
    if symbol is None or symbol.fixes(value):
        return value
    return max(symbol.at(value, n) for n in symbol.corners)


def typical(value: int) -> int:
    """What an integer is in the middle of the range, where ways to compute something are compared: at the geometric
    mean of its ends, since sizes in use are often far below the largest that is planned for."""
    symbol = _symbol.get()
    if symbol is None or symbol.fixes(value):
        return value
    middle = [round(sqrt(max(s.least, 1) * max(s.most, 1))) for s in symbol.each]
    return symbol.at(value, middle[0] if len(middle) == 1 else (middle[0], middle[1]))
