"""Rows in pairs: a copy of a bfloat16 matrix whose word (i, j) holds elements j of rows 2 i and 2 i + 1.

It is the right operand of a product that sums over rows (`product/bfloat16/word_tile.py`): of v in the forward, of q,
dy and k in the backward.
"""

from __future__ import annotations

from functools import cache

from ..product.bfloat16.words import HALF, WORDS, joined
from ..product.function import ITEM, LANES, Function

#: addresses of the matrix and of the copy, bytes between their rows, the number of rows and columns of the matrix
ARGUMENTS = "%from: !llvm.ptr, %to: !llvm.ptr, %line: i64, %to_line: i64, %rows: i64, %columns: i64"
TYPES = "!llvm.ptr, !llvm.ptr, i64, i64, i64, i64"


@cache
def pair(name: str) -> str:
    """The text of the function `name` that copies rows in pairs.

    The partner of an odd last row is zeros, and so are columns up to a whole vector.
    """
    e = Function()

    def rows(i: str) -> None:
        low = e.at("%from", e.mul(i, "%line"))
        to = e.at("%to", e.mul(e.binary("divui", i, e.i64(2)), "%to_line"))
        there = e.compare("slt", e.add(i, 1), "%rows")
        high = e.at(low, e.choose(there, "%line", 0))
        every = e(f"vector.broadcast {there} : i1 to vector<{LANES}xi1>")

        def columns(j: str) -> None:
            mask = e.first_lanes(e.at_most(e.sub("%columns", j), LANES), LANES)
            both = e(f"arith.andi {mask}, {every} : vector<{LANES}xi1>")
            given = [
                e.read(e.at(row, e.mul(j, ITEM // 2)), HALF, 2, lanes)
                for row, lanes in ((low, mask), (high, both))
            ]
            e.write(joined(e, *given), e.at(to, e.mul(j, ITEM)), WORDS, ITEM, None)

        e.repeat(0, "%columns", LANES, columns)

    e.repeat(0, "%rows", 2, rows)
    return e.function(name, ARGUMENTS)
