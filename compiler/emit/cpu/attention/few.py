"""Scores of few rows: 16 rows of q with keys that are read in place.

Each row of q is a lane, so each element of a key is loaded once and broadcast to all lanes. Several keys are multiplied
side by side to hide the latency of multiply-adds, but not more: keys whose distance is a power of two share few sets of
the first-level cache. The sums of 16 keys are transposed in registers.
"""

from __future__ import annotations

from functools import cache

from gflow.compiler.kernel.blocks import ITEM, LANES

from ..language.transpose import WORDS, transposed
from ..product.function import VECTOR, Function
from ..product.tile import ARGUMENTS, CHAIN


@cache
def few(name: str, beside: int) -> str:
    """The text of the function `name` that computes 16 rows of scores.

    It has the arguments of a register tile (`product/tile.py`): `%a` is a panel of q, `%k_stride` the bytes between
    keys, and `%c` has room for 16 rows of whole vectors.

    Args:
        name: the function's name.
        beside: the keys that are multiplied side by side, a divisor of 16.
    """
    e = Function()
    last = e.sub("%columns", 1)
    next_block = e.mul("%k_stride", LANES)

    def sums(j: str, first: int) -> list[str]:
        keys = [
            e.at("%b", e.mul(e.at_most(e.add(j, first + i), last), "%k_stride"))
            for i in range(beside)
        ]

        def add(k: str, totals: list[str], ahead: bool = False) -> list[str]:
            q = e.load(e.at("%a", e.mul(k, LANES * ITEM)))
            offset, made = e.mul(k, ITEM), []
            for key, total in zip(keys, totals):
                at = e.at(key, offset)
                x = e(f"llvm.load {at} : !llvm.ptr -> f32")
                if ahead:
                    e.prefetch(e.at(at, next_block))
                wide = e(f"vector.broadcast {x} : f32 to {VECTOR}")
                made.append(e(f"math.fma {q}, {wide}, {total} : {VECTOR}"))
            return made

        def several(k: str, totals: list[str]) -> list[str]:
            for i in range(LANES):
                totals = add(e.add(k, i), totals, i == 0)
            return totals

        zeros = [(e.const(0.0, VECTOR), VECTOR)] * beside

        def part(k: str, before: list[str]) -> list[str]:
            end = e.at_most(e.add(k, CHAIN), "%k_size")
            whole = e.sub(end, e.binary("remsi", e.sub(end, k), LANES))
            found = e.loop(k, whole, LANES, zeros, several)
            found = e.loop(whole, end, 1, [(x, VECTOR) for x in found], add)
            return [e.plus(a, b) for a, b in zip(before, found)]

        return e.loop(0, "%k_size", CHAIN, zeros, part)

    def block(j: str) -> None:
        found = [x for first in range(0, LANES, beside) for x in sums(j, first)]
        rows = transposed(e, [e(f"vector.bitcast {x} : {VECTOR} to {WORDS}") for x in found])
        to = e.at("%c", e.mul(j, ITEM))
        for i, row in enumerate(rows):
            e.write(row, e.at(to, e.mul("%row", i)), WORDS, ITEM, None)

    e.repeat(0, "%columns", LANES, block)
    return e.function(name, ARGUMENTS)
