"""Dynamic dimensions in shapes, strides and offsets.

A program may have a dynamic dimension n (a batch, a length): a number in a declared range that each call passes. In
the IR it is an argument of role "size". An integer that depends on n is written as its value at a *stand-in*, a large
prime that the argument states:

    %n: tensor<i64> {gflow.role = "size", gflow.name = "n", gflow.min = 1, gflow.max = 64,
                     gflow.stand_in = 1000000007}
    %x: tensor<1000000007x3xf32>           n x 3
    %y: tensor<3000000021xf32>             3 n

Sums and products of sizes are polynomials in n with small coefficients. The value of such a polynomial at a large
enough prime determines its coefficients (Kronecker substitution). So code that computes with shapes, strides and
offsets as plain integers computes exactly for every n. An integer that is not a polynomial is found by compiling a
second time with another stand-in: its value is then not that of the same polynomial
(`gflow.compiler.ir.dynamic_sizes`).

A program may have a second, independent dynamic dimension m (a batch and a length). The stand-in for n is a large prime
P, and the one for m is a small prime Q, so that n m² and n m times the size of a vocabulary fit in 64 bits. The digits
of a number to the base P are the coefficients of powers of n. A digit is read as a polynomial in m if it is within
`_NEAR` of a multiple of Q, or of another form that the program declares (`gflow.forms`: 2 m + 1). This reading is a
guess, since a constant may be such a multiple by chance. The same constant is no such multiple of the second Q, so a
wrong guess makes the two compilations of a program differ, which is an error (`guesses`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, product, zip_longest
from math import gcd, log, sqrt
from typing import Any

from .records import record

#: the stand-in of modules, and the second one, with which programs are checked
STAND_INS = (1_000_000_007, 1_000_900_009)

#: the same for programs with two sizes, n and m
PAIRS = ((4_294_967_311, 1097), (4_295_867_299, 1109))

#: integers from this value on are read as values at a stand-in
_LARGE = STAND_INS[0] // 2

#: a number within this distance of a multiple of m's stand-in is read as a polynomial in m
_NEAR = 1

#: the value of a program's dynamic dimension, or the values of both
N = int | tuple[int, int]

#: coefficients of a polynomial in n, the constant first; with a second dynamic dimension, polynomials in m
Coefficients = tuple["int | tuple[int, ...]", ...]


@record
class Symbol:
    """A dynamic dimension: its name, its range, and its stand-in, the prime that represents it in shapes.

    second: the program's second dynamic dimension, if it has one. forms: of a second dimension, the linear forms that
    occur in the program, (b, a) for a m + b."""

    name: str
    least: int
    most: int
    stand_in: int = STAND_INS[0]
    second: Symbol | None = None
    forms: tuple[tuple[int, int], ...] = ()

    @property
    def each(self) -> list[Symbol]:
        """The dynamic dimension, or both."""
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
        ends = [(s.least, s.most) for s in self.each]
        return [*ends[0]] if self.second is None else [*product(ends[0], ends[1])]

    @property
    def samples(self) -> list[N]:
        """The corners, and sizes beside them that tell other remainders and small cases apart."""
        inner = [
            [min(s.least + 1, s.most), min(s.least + 2, s.most), max(s.most - 1, s.least)]
            for s in self.each
        ]
        beside: list[N] = [*inner[0]] if self.second is None else [*zip(*inner)]  # type: ignore[arg-type]
        return [*dict.fromkeys((*self.corners, *beside))]

    def standing(self, which: int) -> Symbol:
        """The same with its first (0) or second (1) stand-ins."""
        if self.second is None:
            return replace(self, stand_in=STAND_INS[which])
        outer, inner = PAIRS[which]
        return replace(self, stand_in=outer, second=replace(self.second, stand_in=inner))

    def coefficients(self, value: int) -> Coefficients:
        """The coefficients, constant first, of the polynomial in n whose value at the stand-in is `value`."""
        if self.second is not None:
            found = _of_both(value, self.stand_in, self.second.stand_in, self.second.forms)
            guessed = _guessed.get()
            if guessed is not None and len(found) == 1 and type(found[0]) is tuple:
                guessed.add(value)
            return found
        return _digits(value, self.stand_in)

    def fixes(self, value: int) -> bool:
        """Whether an integer of the IR is independent of the dynamic dimensions."""
        if self.second is None:
            return -_LARGE < value < _LARGE
        found = self.coefficients(value)
        return not found or (len(found) == 1 and type(found[0]) is int)

    def at(self, value: int, n: N) -> int:
        """The value of an integer of the IR for a dynamic dimension of `n`."""
        return value if self.fixes(value) else evaluate(self.coefficients(value), n)

    def is_count(self, value: int) -> bool:
        """Whether an integer is nonnegative in the whole range, with its maximum at a corner of the range."""
        return self._is_count(self.coefficients(value))

    def is_ordered(self, a: int, b: int) -> bool:
        """Whether one integer is at most another in the whole range. Their difference as an integer need not tell its
        coefficients: those of a second dimension are recognized near multiples of its stand-in only."""
        if self.fixes(a) and self.fixes(b):
            return a <= b
        return self._is_count(_minus(self.coefficients(b), self.coefficients(a)))

    def _is_count(self, found: Coefficients) -> bool:
        if min(evaluate(found, corner) for corner in self.corners) < 0:
            return False
        # it has degree one in each size, so its minimum is also at a corner
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
    """A number as a polynomial in m; the number itself if it is not near a multiple of m's stand-in."""
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


def _minus(a: Any, b: Any) -> Any:
    """The difference of two polynomials, or of two of their coefficients."""
    if type(a) is int and type(b) is int:
        return a - b
    a, b = (c if isinstance(c, tuple) else (c,) for c in (a, b))
    return tuple([_minus(x, y) for x, y in zip_longest(a, b, fillvalue=0)])


def leaves(coefficients: Sequence[int | Sequence[int]]) -> list[int]:
    """All coefficients of a polynomial, the constant first."""
    if not coefficients:
        return [0]
    return [x for c in coefficients for x in (c if isinstance(c, (tuple, list)) else (c,))]


@record
class Extent:
    """A number of a program that depends on a dynamic dimension: the coefficients of a polynomial, the constant first.

    With a `limit`, the number is the length of a piece of a range: the polynomial's value minus `first`, clamped to 0
    and `limit`.
    """

    coefficients: Coefficients
    first: int = 0
    limit: int | None = None

    def at(self, n: N) -> int:
        """The number for a dynamic dimension of `n`."""
        value = evaluate(self.coefficients, n)
        return value if self.limit is None else max(0, min(value - self.first, self.limit))

    def __str__(self) -> str:
        text = formula(self.coefficients, "n")
        return text if self.limit is None else f"clamp({text} - {self.first}, 0, {self.limit})"


@record
class Piece:
    """The length of a piece of a dynamic range: `whole` (a dynamic integer of the IR) minus `first`, clamped to 0 and
    `limit`.

    Code that divides a range into pieces has enough pieces for the greatest size; the last ones may be empty.
    """

    whole: int
    first: int
    limit: int

    def times(self, factor: int, divisor: int = 1) -> Piece:
        """The same in another unit: all three numbers times `factor / divisor`.

        Raises:
            ValueError: the results are not integers.
        """
        scaled = [divmod(x * factor, divisor) for x in (self.whole, self.first, self.limit)]
        if any(rest for _, rest in scaled):
            raise ValueError(f"{self} in units of {divisor}/{factor} is no integer")
        return Piece(*(x for x, _ in scaled))

    @property
    def like(self) -> int:
        """A dynamic integer of the IR that has the divisors that this number has at every size."""
        symbol = current()
        assert symbol is not None
        return symbol.stand_in * gcd(divisor(self.whole), self.first, self.limit)


Count = int | Piece


def pieces(total: int, length: int) -> list[tuple[int, Count]]:
    """Divide `total` into pieces of `length`; returns (first, count) of each."""
    if not varies(total):
        return [(at, min(length, total - at)) for at in range(0, total, length)]
    most = at_most(total)
    if most <= length:
        return [(0, total)]
    return [(at, Piece(total, at, min(length, most - at))) for at in range(0, most, length)]


def longest(counts: Sequence[tuple[int, Count]]) -> int:
    """The greatest length of a piece."""
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
    """A polynomial's value, by Horner's scheme with the operators of `sizes`, n or n and m, which may be any type."""
    if not sizes:  # a program of fixed sizes: the polynomial is a number
        (constant,) = coefficients or (0,)  # zero has no coefficients
        return constant
    size, *inner = sizes
    total: Any = 0
    for c in reversed(coefficients):
        # traced numbers are integers by type; their values must not be read
        own = c if type(c) is int else horner(c, inner)  # type: ignore[arg-type]
        if type(total) is not int:
            total = total * size
        elif total:
            total = size if total == 1 else size * total
        if type(own) is not int or own:
            total = own if type(total) is int and not total else total + own
    return total


def formula(coefficients: Sequence[int | Sequence[int]], name: str, second: str = "m") -> str:
    """A polynomial as text. name: the name of n. second: the name of m."""
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
    """About the maximum of a number of the IR, for costs, whose coefficients are too large to be recovered."""
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
    """Collect the integers that are read as polynomials in the second dimension alone while the context is active.

    An integer that is read so with both stand-ins is a constant.
    """
    found: set[int] = set()
    token = _guessed.set(found)
    try:
        yield found
    finally:
        _guessed.reset(token)


@contextmanager
def size_of_program(symbol: Symbol | None) -> Iterator[None]:
    """Set the dynamic dimension of the program that is being compiled."""
    token = _symbol.set(symbol)
    try:
        yield
    finally:
        _symbol.reset(token)


def current() -> Symbol | None:
    """The dynamic dimension of the program that is being compiled; None if it has none."""
    return _symbol.get()


def varies(value: int) -> bool:
    """Whether an integer depends on a dynamic dimension of the program that is being compiled."""
    symbol = _symbol.get()
    return symbol is not None and not symbol.fixes(value)


def minimum(a: int, b: int) -> int:
    """The smaller of two integers at every size.

    Raises:
        ValueError: which one is smaller depends on the size.
    """
    symbol = _symbol.get()
    if symbol is None or not (varies(a) or varies(b)):
        return min(a, b)
    for x, y in ((a, b), (b, a)):
        if symbol.is_ordered(x, y):
            return x
    raise ValueError(
        f"{symbol.text(a)} and {symbol.text(b)} with {symbol}: either may be the smaller"
    )


def remainder(value: int, by: int) -> int:
    """value % by at every size.

    Raises:
        ValueError: it is no polynomial in the size. (The stand-ins are odd, so `n % 2` is 1 for both of them.)
    """
    symbol, found = _symbol.get(), value % by
    if symbol is not None and (varies(value) or varies(by)):
        for n in symbol.samples:
            at = symbol.at(by, n)
            if not at or symbol.at(found, n) != symbol.at(value, n) % at:
                raise ValueError(f"{symbol.text(value)} % {symbol.text(by)} with {symbol}")
    return found


def is_ordered(*values: int) -> bool:
    """Whether integers are in ascending order at every size."""
    symbol = _symbol.get()
    return all(a <= b if symbol is None else symbol.is_ordered(a, b) for a, b in pairwise(values))


def is_sum(total: int, *parts: int) -> bool:
    """Whether an integer is the sum of others at every size. With two sizes, a sum that is none of the program's forms
    (`Symbol.forms`) is read as a constant."""
    symbol = _symbol.get()
    if symbol is None:
        return total == sum(parts)
    rest: Any = symbol.coefficients(total)
    for part in parts:
        rest = _minus(rest, symbol.coefficients(part))
    return not any(leaves(rest))


def divisor(value: int) -> int:
    """A divisor of an integer at every size: the gcd of its coefficients; the integer itself if it is static."""
    symbol = _symbol.get()
    return (
        value if symbol is None or symbol.fixes(value) else gcd(*leaves(symbol.coefficients(value)))
    )


def at_most(value: int) -> int:
    """The maximum of an integer over all sizes, for example the bytes that memory planning reserves."""
    symbol = _symbol.get()
    if symbol is None or symbol.fixes(value):
        return value
    return max(symbol.at(value, n) for n in symbol.corners)


def typical(value: int) -> int:
    """The value of an integer in the middle of the range, at which cost models compare kernels.

    The middle is the geometric mean of the ends, since the sizes in use are often far below the declared maximum.
    """
    symbol = _symbol.get()
    if symbol is None or symbol.fixes(value):
        return value
    middle = [round(sqrt(max(s.least, 1) * max(s.most, 1))) for s in symbol.each]
    return symbol.at(value, middle[0] if len(middle) == 1 else (middle[0], middle[1]))
