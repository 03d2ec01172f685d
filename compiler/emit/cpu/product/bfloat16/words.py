"""Pairs of bfloat16 values as 32-bit words, the first value in the lower half, and the products of such words.

AVX-512's VDPBF16PS adds both products of 16 words to 16 float32 sums. It takes denormal numbers for zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gflow.dialects.program.processor import BF16_LINE

from ...language.scalars import bf16_bits
from ..function import LANES, VECTOR, Function

WORDS = f"vector<{LANES}xi32>"
#: 16 and 32 bfloat16 values in memory
HALF, HALVES = f"vector<{LANES}xi16>", f"vector<{2 * LANES}xi16>"
_PAIRS = f"vector<{2 * LANES}xbf16>"

#: adds the products of two vectors of words to a vector of sums
Products = Callable[[Function, str, str, str], str]


def joined(e: Function, low: str, high: str) -> str:
    """The words of two vectors `HALF`."""
    low, high = (e(f"arith.extui {x} : {HALF} to {WORDS}") for x in (low, high))
    return paired(e, low, high)


def rounded(e: Function, x: str) -> str:
    """The bfloat16 values nearest to a vector of float32, as the lower halves of words whose higher halves are 0."""
    return bf16_bits(e, x, LANES)


def paired(e: Function, low: str, high: str) -> str:
    """The words of two vectors of `rounded` values."""
    high = e(f"arith.shli {high}, {e.const(16, WORDS)} : {WORDS}")
    return e(f"arith.ori {low}, {high} : {WORDS}")


def widened(e: Function, half: str) -> str:
    """A vector `HALF` as float32."""
    word = e(f"arith.extui {half} : {HALF} to {WORDS}")
    word = e(f"arith.shli {word}, {e.const(16, WORDS)} : {WORDS}")
    return e(f"vector.bitcast {word} : {WORDS} to {VECTOR}")


def values(e: Function, words: str) -> tuple[str, str]:
    """The lower and the higher value of each word, as float32."""
    low = e(f"arith.shli {words}, {e.const(16, WORDS)} : {WORDS}")
    high = e(f"arith.andi {words}, {e.const(-65536, WORDS)} : {WORDS}")
    low, high = (e(f"vector.bitcast {x} : {WORDS} to {VECTOR}") for x in (low, high))
    return low, high


def dot(e: Function, total: str, a: str, b: str) -> str:
    """The float32 sums with the products of both values of each word added, by VDPBF16PS."""
    a, b = (e(f"vector.bitcast {x} : {WORDS} to {_PAIRS}") for x in (a, b))
    return e(
        f'llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"({total}, {a}, {b}) : '
        f"({VECTOR}, {_PAIRS}, {_PAIRS}) -> {VECTOR}"
    )


def multiply_add(e: Function, total: str, a: str, b: str) -> str:
    """The same by multiply-adds of float32, for processors without VDPBF16PS."""
    for x, y in zip(values(e, a), values(e, b)):
        total = e(f"math.fma {x}, {y}, {total} : {VECTOR}")
    return total


def both_ways(e: Function, write: Callable[[Products], None]) -> None:
    """Write code twice: with `dot` for processors that have VDPBF16PS, and with `multiply_add` for others."""
    usable = e(f"arith.constant true {BF16_LINE}")

    def by_dots() -> None:
        with e.marked(BF16_LINE):
            write(dot)

    e.branch(usable, by_dots, lambda: write(multiply_add))


def row_of_products(
    e: Function, products: Products, at: str, columns: Sequence[str], sums: Sequence[str]
) -> list[str]:
    """The sums of a row of a tile with the products of the word at the address `at` added.

    columns: vectors of words, as float32.
    """
    x = e(f"llvm.load {at} {{alignment = 2 : i64}} : !llvm.ptr -> i32")
    wide = e(f"vector.broadcast {x} : i32 to {WORDS}")
    given = [e(f"vector.bitcast {y} : {VECTOR} to {WORDS}") for y in columns]
    return [products(e, total, wide, y) for y, total in zip(given, sums)]
