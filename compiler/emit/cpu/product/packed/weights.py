"""Packing of a convolution's weight in strips of columns: `strip[tap][channel][column]`.

Taps are contiguous in memory, as in PyTorch's weights [o, c, taps]. Columns are the output channels and rows the input
channels, or the other way round for the gradient of the input.
"""

from __future__ import annotations

from functools import cache

from ...language.transpose import transposed
from ..function import ITEM, LANES, Function

_WORDS = f"vector<{LANES}xi32>"

#: channels that are prefetched ahead: those of a gradient are far apart
_AHEAD = 4

#: addresses of the first column's weights and of the strip, bytes between columns and between channels, the number of
#: columns, channels and taps
ARGUMENTS = "%from: !llvm.ptr, %to: !llvm.ptr, %lane: i64, %channel: i64, %lanes: i64, %channels: i64, %taps: i64"
TYPES = "!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, i64"


@cache
def pack(name: str, width: int) -> str:
    """The text of the function `name` that packs a strip of `width` columns.

    Columns beyond the weight repeat its last one, or keep what was there.
    """
    e = Function()
    last = e.sub("%lanes", 1)
    apart = e.mul("%channels", width * ITEM)  # bytes between taps of the strip
    ahead = e.mul("%channel", _AHEAD)

    def channel(c: str) -> None:
        source = e.at("%from", e.mul(c, "%channel"))
        to = e.at("%to", e.mul(c, width * ITEM))

        def vector(first: str) -> None:
            lanes = [e.at_most(e.add(first, i), last) for i in range(LANES)]
            rows = [e.at(source, e.mul(lane, "%lane")) for lane in lanes]

            def some(t: str) -> None:
                left, offset = e.sub("%taps", t), e.mul(t, ITEM)
                mask = e.first_lanes(e.at_most(left, LANES), LANES)
                given = []
                for row in rows:
                    at = e.at(row, offset)
                    e.prefetch(e.at(at, ahead))
                    given.append(e.read(at, _WORDS, ITEM, mask))
                for i, column in enumerate(transposed(e, given)):
                    at = e.at(to, e.add(e.mul(e.add(t, i), apart), e.mul(first, ITEM)))
                    e.branch(
                        e.compare("sgt", left, i),
                        lambda column=column, at=at: e.write(column, at, _WORDS, 64, None),  # type: ignore[misc]
                    )

            e.repeat(0, "%taps", LANES, some)

        e.repeat(0, "%lanes", LANES, vector)

    e.repeat(0, "%channels", 1, channel)
    return e.function(name, ARGUMENTS)
