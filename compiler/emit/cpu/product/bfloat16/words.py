"""Pairs of bfloat16 values as 32-bit words, the first value in the lower half, and the products of such words.

AVX-512's VDPBF16PS adds both products of 16 words to 16 float32 sums. It takes denormal numbers for zeros.
"""

from __future__ import annotations

from ..function import LANES, VECTOR, Function

WORDS = f"vector<{LANES}xi32>"
#: 16 and 32 bfloat16 values in memory
HALF, HALVES = f"vector<{LANES}xi16>", f"vector<{2 * LANES}xi16>"
_PAIRS = f"vector<{2 * LANES}xbf16>"


def joined(e: Function, low: str, high: str) -> str:
    """The words of two vectors `HALF`."""
    low, high = (e(f"arith.extui {x} : {HALF} to {WORDS}") for x in (low, high))
    high = e(f"arith.shli {high}, {e.const(16, WORDS)} : {WORDS}")
    return e(f"arith.ori {low}, {high} : {WORDS}")


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
