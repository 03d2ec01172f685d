"""Sums of a tile of bfloat16 products by AVX-512: an instruction adds two products to each of 16 float32 sums.

The panels are those of Intel AMX (`panels.py`) with one part. A word of A is repeated for 16 columns, whose words of B
are a vector. Sums of `_ROWS` rows are in registers at a time.
"""

from __future__ import annotations

from gflow.compiler.kernel.blocks import AMX_LANES, PADDED
from gflow.dialects.program.processor import BF16_LINE

from ..function import ITEM, LANES, VECTOR, Function
from .panels import BESIDE, PART, ROW
from .words import WORDS, dot

#: rows whose sums are in registers at a time: with two vectors of columns, more sums than the instruction has cycles
_ROWS = 8


def sums(e: Function, held: str) -> None:
    """Write the sums of the tile whose panels are at `%a` and `%b` over `%k_size` of K to the address `held`."""
    vectors = AMX_LANES // LANES
    zero = e.const(0.0, VECTOR)

    def rows(i: str) -> None:
        lines = e.at("%a", e.mul(i, ROW))

        def chunk(k: str, given: list[str]) -> list[str]:
            offset = e.mul(e.binary("divui", k, PADDED), BESIDE * PART)
            a, b = e.at(lines, offset), e.at("%b", offset)
            total = list(given)
            for pair in range(PADDED // 2):
                columns = [
                    e.read(e.at(b, v * PART + pair * ROW), WORDS, ROW, None) for v in range(vectors)
                ]
                for n in range(_ROWS):
                    x = e(f"llvm.load {e.at(a, n * ROW + pair * ITEM)} : !llvm.ptr -> i32")
                    wide = e(f"vector.broadcast {x} : i32 to {WORDS}")
                    for v in range(vectors):
                        at = n * vectors + v
                        total[at] = dot(e, total[at], wide, columns[v])
            return total

        start = [(zero, VECTOR)] * (_ROWS * vectors)
        row = e.at(held, e.mul(i, AMX_LANES * ITEM))
        for n, total in enumerate(e.loop(0, "%k_size", PADDED, start, chunk)):
            e.store(total, e.at(row, n * ROW))

    with e.marked(BF16_LINE):
        e.repeat(0, e.i64(AMX_LANES), _ROWS, rows)
