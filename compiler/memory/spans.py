"""The bytes of values, and memory dependences between ops.

a writes arena 0 … 64, b reads arena 0 … 32    →    b depends on a
a reads arg 2, b reads arg 2                   →    no dependence
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gflow.dialects.program import Place

from ..ir.ssa import Body, Op
from ..ir.views import Layout


class Span(NamedTuple):
    """Bytes low … high - 1 of the buffer that `space` and `index` name."""

    space: str
    index: int  # type: ignore[assignment]  # hides tuple.index, as in `Place`
    low: int
    high: int


def address(value: int, body: Body, at: Sequence[Layout], places: dict[int, Place]) -> Place:
    """The address of a value's first element. places: the addresses of values that aren't views."""
    layout = at[value]
    base = places[layout.base]
    if layout.offset == 0:
        return base
    offset = base.offset + layout.offset * body.types[value].itemsize
    return Place(base.space, base.index, offset)


def span_of(value: int, body: Body, at: Sequence[Layout], places: dict[int, Place]) -> Span:
    """The bytes from a value's first element to its last."""
    ty, start = body.types[value], address(value, body, at, places)
    last = sum((n - 1) * s for n, s in zip(ty.shape, at[value].strides))
    size = 0 if ty.numel == 0 else (1 + last) * ty.itemsize
    return Span(start.space, start.index, start.offset, start.offset + size)


class Spans:
    """A set of bytes, as disjoint spans in order."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], list[tuple[int, int]]] = {}

    def meets(self, span: Span) -> bool:
        """Whether the set and a span have a byte in common."""
        found = self._of.get(span[:2])
        if found is None or span.low >= span.high:
            return False
        n = bisect_right(found, span.low, key=_high)
        return n < len(found) and found[n][0] < span.high

    def add(self, span: Span) -> None:
        """Add the bytes of a span."""
        if span.low >= span.high:
            return
        found = self._of.setdefault(span[:2], [])
        first = bisect_left(found, span.low, key=_high)
        after = bisect_right(found, span.high, key=lambda entry: entry[0])
        touched = [(span.low, span.high), *found[first:after]]
        found[first:after] = [(min(t[0] for t in touched), max(t[1] for t in touched))]


def _high(entry: tuple[int, int]) -> int:
    return entry[1]


class Together:
    """A set of ops without memory dependences between them, which may run in any order or in parallel."""

    def __init__(self, body: Body, at: Sequence[Layout], places: dict[int, Place]) -> None:
        self.body, self.at, self.places = body, at, places
        self.read, self.written = Spans(), Spans()

    def spans(self, values: Iterable[int]) -> list[Span]:
        """The spans of values."""
        return [span_of(v, self.body, self.at, self.places) for v in values]

    def conflict(self, o: Op) -> Span | None:
        """A span through which an op depends on the added ones; None: it does not."""
        for span in self.spans(o.operands):
            if self.written.meets(span):
                return span
        for span in self.spans(o.results):
            if self.written.meets(span) or self.read.meets(span):
                return span
        return None

    def add(self, o: Op) -> None:
        """Add an op to the set."""
        for span in self.spans(o.operands):
            self.read.add(span)
        for span in self.spans(o.results):
            self.written.add(span)
