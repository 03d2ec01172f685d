"""Packing of a convolution's weight in strips of columns: `strip[tap][channel][column]`.

Taps are contiguous in memory, as in PyTorch's weights [o, c, taps]. Columns are the output channels and rows the input
channels, or the other way round for the gradient of the input. A strip ends with an integer: whether it has an infinity
or a NaN, whose products with the zeros outside of the input would be NaN.

Of a bfloat16 weight, two channels are a word of a strip, the first one its lower half.
"""

from __future__ import annotations

from functools import cache

from ...language.transpose import transposed
from ..bfloat16.words import HALF, joined, values
from ..function import ITEM, LANES, VECTOR, Function

_WORDS = f"vector<{LANES}xi32>"

#: vectors that find infinities and NaN, side by side: each is a chain of multiply-adds
_CHAINS = 4

#: channels that are prefetched ahead: those of a gradient are far apart
_AHEAD = 4

#: addresses of the first column's weights and of the strip, bytes between columns and between channels, the number of
#: columns, channels and taps
ARGUMENTS = "%from: !llvm.ptr, %to: !llvm.ptr, %lane: i64, %channel: i64, %lanes: i64, %channels: i64, %taps: i64"
TYPES = "!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64"


@cache
def pack(name: str, width: int, item: int, apart: bool) -> str:
    """The text of the function `name` that packs a strip of `width` columns, whose taps are contiguous.

    Columns beyond the weight repeat its last one, or keep what was there. A kernel of one tap whose channels are
    contiguous is packed as one whose taps are the channels.

    Args:
        name: the function's name.
        width: columns of a strip.
        item: bytes of a value, 4 or 2. Of bfloat16 values, `%channels` counts pairs.
        apart: the values of a pair are `%channel` bytes apart; otherwise they are adjacent.
    """
    e = Function()
    last = e.sub("%lanes", 1)
    between = e.mul("%channels", width * ITEM)  # bytes between taps of the strip
    beside, step = (2, item) if apart else (1, ITEM)
    ahead = e.mul("%channel", _AHEAD * beside)

    def channel(c: str, seen: list[str]) -> list[str]:
        source = e.at("%from", e.mul(c, beside, "%channel"))
        to = e.at("%to", e.mul(c, width * ITEM))

        def vector(first: str, seen: list[str]) -> list[str]:
            lanes = [e.at_most(e.add(first, i), last) for i in range(LANES)]
            rows = [e.at(source, e.mul(lane, "%lane")) for lane in lanes]

            def some(t: str, seen: list[str]) -> list[str]:
                left, offset = e.sub("%taps", t), e.mul(t, step)
                mask = e.first_lanes(e.at_most(left, LANES), LANES)
                given = []
                for row in rows:
                    at = e.at(row, offset)
                    for here in (at, e.at(at, "%channel"))[:beside]:
                        e.prefetch(e.at(here, ahead))
                    given.append(_words(e, at, mask, apart))
                for i, column in enumerate(transposed(e, given)):
                    at = e.at(to, e.add(e.mul(e.add(t, i), between), e.mul(first, ITEM)))
                    e.branch(
                        e.compare("sgt", left, i),
                        lambda column=column, at=at: e.write(column, at, _WORDS, 64, None),  # type: ignore[misc]
                    )
                for i, row in enumerate(given):
                    _find_nan(e, row, item, seen, i)
                return seen

            return e.loop(0, "%taps", LANES, [(x, VECTOR) for x in seen], some)

        return e.loop(0, "%lanes", LANES, [(x, VECTOR) for x in seen], vector)

    seen = e.loop(0, "%channels", 1, [(e.const(0.0, VECTOR), VECTOR)] * _CHAINS, channel)
    _mark(e, seen, e.at("%to", e.mul("%taps", between)))
    return e.function(name, ARGUMENTS)


@cache
def pack_rows(name: str, width: int, item: int) -> str:
    """The text of the function `name` that packs a strip of `width` columns of a kernel of one tap, whose columns are
    contiguous.

    Columns beyond the weight are zeros, or keep what was there. item: as of `pack`; pairs are `%channel` bytes apart.
    """
    e = Function()
    beside = ITEM // item

    def channel(c: str, seen: list[str]) -> list[str]:
        source = e.at("%from", e.mul(c, beside, "%channel"))
        to = e.at("%to", e.mul(c, width * ITEM))

        def vector(first: str, seen: list[str]) -> list[str]:
            mask = e.first_lanes(e.at_most(e.sub("%lanes", first), LANES), LANES)
            row = _words(e, e.at(source, e.mul(first, item)), mask, beside > 1)
            e.write(row, e.at(to, e.mul(first, ITEM)), _WORDS, 64, None)
            _find_nan(e, row, item, seen, 0)
            return seen

        return e.loop(0, "%lanes", LANES, [(x, VECTOR) for x in seen], vector)

    seen = e.loop(0, "%channels", 1, [(e.const(0.0, VECTOR), VECTOR)], channel)
    _mark(e, seen, e.at("%to", e.mul("%channels", width * ITEM)))
    return e.function(name, ARGUMENTS)


def _words(e: Function, at: str, mask: str, apart: bool) -> str:
    """16 words at the address `at`. apart: the second value of each is at this place of the next channel."""
    if not apart:
        return e.read(at, _WORDS, ITEM, mask)
    low, high = (e.read(line, HALF, 2, mask) for line in (at, e.at(at, "%channel")))
    return joined(e, low, high)


def _find_nan(e: Function, row: str, item: int, seen: list[str], n: int) -> None:
    """Add zero times the values of a row to chain `n`: 0 · x is NaN for infinities and NaN."""
    zero = e.const(0.0, VECTOR)
    found = (e(f"vector.bitcast {row} : {_WORDS} to {VECTOR}"),) if item == ITEM else values(e, row)
    n %= len(seen)
    for x in found:
        seen[n] = e(f"math.fma {x}, {zero}, {seen[n]} : {VECTOR}")


def _mark(e: Function, seen: list[str], at: str) -> None:
    """Store whether a chain is NaN."""
    total = seen[0]
    for other in seen[1:]:
        total = e.plus(total, other)
    nan = e(f"arith.cmpf uno, {total}, {total} : {VECTOR}")
    some_nan = e(f"vector.reduction <or>, {nan} : vector<{LANES}xi1> into i1")
    flag = e(f"arith.extui {some_nan} : i1 to i64")
    e.line(f"llvm.store {flag}, {at} : i64, !llvm.ptr")
