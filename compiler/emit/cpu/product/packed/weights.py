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
def pack(name: str, width: int, pairs: bool = False) -> str:
    """The text of the function `name` that packs a strip of `width` columns.

    Columns beyond the weight repeat its last one, or keep what was there.

    pairs: of a bfloat16 weight; `%channels` is the number of pairs of channels.
    """
    e = Function()
    last = e.sub("%lanes", 1)
    apart = e.mul("%channels", width * ITEM)  # bytes between taps of the strip
    item, beside = (2, 2) if pairs else (ITEM, 1)
    ahead = e.mul("%channel", _AHEAD * beside)
    zero = e.const(0.0, VECTOR)

    def channel(c: str, seen: list[str]) -> list[str]:
        source = e.at("%from", e.mul(c, beside, "%channel"))
        to = e.at("%to", e.mul(c, width * ITEM))

        def vector(first: str, seen: list[str]) -> list[str]:
            lanes = [e.at_most(e.add(first, i), last) for i in range(LANES)]
            rows = [e.at(source, e.mul(lane, "%lane")) for lane in lanes]

            def some(t: str, seen: list[str]) -> list[str]:
                left, offset = e.sub("%taps", t), e.mul(t, item)
                mask = e.first_lanes(e.at_most(left, LANES), LANES)
                given = []
                for row in rows:
                    at = e.at(row, offset)
                    e.prefetch(e.at(at, ahead))
                    given.append(_pairs(e, at, mask) if pairs else e.read(at, _WORDS, ITEM, mask))
                for i, column in enumerate(transposed(e, given)):
                    at = e.at(to, e.add(e.mul(e.add(t, i), apart), e.mul(first, ITEM)))
                    e.branch(
                        e.compare("sgt", left, i),
                        lambda column=column, at=at: e.write(column, at, _WORDS, 64, None),  # type: ignore[misc]
                    )
                for i, row in enumerate(given):  # 0 · x is NaN for infinities and NaN
                    found = values(e, row) if pairs else (_float(e, row),)
                    n = i % _CHAINS
                    for x in found:
                        seen[n] = e(f"math.fma {x}, {zero}, {seen[n]} : {VECTOR}")
                return seen

            return e.loop(0, "%taps", LANES, [(x, VECTOR) for x in seen], some)

        return e.loop(0, "%lanes", LANES, [(x, VECTOR) for x in seen], vector)

    seen = e.loop(0, "%channels", 1, [(zero, VECTOR)] * _CHAINS, channel)
    total = seen[0]
    for other in seen[1:]:
        total = e.plus(total, other)
    nan = e(f"arith.cmpf uno, {total}, {total} : {VECTOR}")
    some_nan = e(f"vector.reduction <or>, {nan} : vector<{LANES}xi1> into i1")
    flag = e(f"arith.extui {some_nan} : i1 to i64")
    e.line(f"llvm.store {flag}, {e.at('%to', e.mul('%taps', apart))} : i64, !llvm.ptr")
    return e.function(name, ARGUMENTS)


def _float(e: Function, words: str) -> str:
    return e(f"vector.bitcast {words} : {_WORDS} to {VECTOR}")


def _pairs(e: Function, at: str, mask: str) -> str:
    """Words of the taps of a bfloat16 channel at the address `at` and of the next channel."""
    low, high = (e.read(line, HALF, 2, mask) for line in (at, e.at(at, "%channel")))
    return joined(e, low, high)
