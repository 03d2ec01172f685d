"""Transposition of 16 × 16 32-bit words in registers."""

from __future__ import annotations

from collections.abc import Sequence

from .ssa_text import Emitter

#: words of a vector, and vectors of a block
SIDE = 16

WORDS = f"vector<{SIDE}xi32>"


def transposed(e: Emitter, rows: Sequence[str]) -> list[str]:
    """The transpose of 16 vectors of 16 words, by 64 shuffles, each of which is one AVX-512 instruction."""

    def shuffle(a: str, b: str, lanes: list[int]) -> str:
        return e(f"vector.shuffle {a}, {b} {lanes} : {WORDS}, {WORDS}")

    def pairs(a: str, b: str, high: int) -> str:
        """The lower or upper two words of each quarter, alternating."""
        lanes = []
        for quarter in range(0, SIDE, 4):
            i = quarter + 2 * high
            lanes += [i, SIDE + i, i + 1, SIDE + i + 1]
        return shuffle(a, b, lanes)

    def doubles(a: str, b: str, high: int) -> str:
        """The lower or upper pair of words of each quarter, alternating."""
        lanes = []
        for quarter in range(0, SIDE, 4):
            i = quarter + 2 * high
            lanes += [i, i + 1, SIDE + i, SIDE + i + 1]
        return shuffle(a, b, lanes)

    def quarters(a: str, b: str, odd: int) -> str:
        """The even or odd quarters of both vectors."""
        lanes = [SIDE * s + 4 * q + j for s in (0, 1) for q in (odd, odd + 2) for j in range(4)]
        return shuffle(a, b, lanes)

    t = [pairs(rows[i & ~1], rows[i | 1], i & 1) for i in range(16)]
    u = [
        doubles(t[4 * i + h], t[4 * i + 2 + h], low)
        for i in range(4)
        for h in (0, 1)
        for low in (0, 1)
    ]
    columns = [""] * 16
    for c in range(4):
        v = [quarters(u[c + 8 * s], u[c + 8 * s + 4], odd) for s in (0, 1) for odd in (0, 1)]
        for quarter in range(4):
            columns[4 * quarter + c] = quarters(v[quarter & 1], v[2 + (quarter & 1)], quarter >> 1)
    return columns
