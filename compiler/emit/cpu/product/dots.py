"""Products of few rows whose operands are both contiguous along K, as dot products without packing.

16 vectors of partial sums are accumulated at a time, for 1 × 16, 2 × 8, 4 × 4 or 8 × 2 rows × columns. 30 shuffles and
15 additions reduce them to 16 numbers. A strip of 64 columns is collected on the stack and then stored, or processed by
the epilogue, as other tiles are.
"""

from __future__ import annotations

from functools import cache

from gflow.compiler.kernel.selection.cpu.blocking import STRIP

from .function import ITEM, LANES, VECTOR
from .tile import ARGUMENTS, Tile

#: up to so many columns side by side, the kernel prefetches explicitly
_FEW = 4

#: rows of a strip
ROWS = (1, 2, 4, 8)


@cache
def dots(name: str, rows: int) -> str:
    """The text of the function `name` that computes a strip of `rows` rows: 1, 2, 4 or 8.

    It has the arguments of a register tile (`tile.py`); `%k_stride` is the bytes between columns of B.
    """
    return _Dots(rows).function(name, ARGUMENTS)


class _Dots(Tile):
    def __init__(self, rows: int) -> None:
        super().__init__(rows, STRIP // LANES)
        self.beside = LANES // rows
        last = self.sub("%rows", 1)
        self.lines = [
            self.at("%a", self.mul(self.at_most(self.i64(i), last), "%side")) for i in range(rows)
        ]
        rest = self.binary("remsi", "%k_size", LANES)
        self.whole = self.sub("%k_size", rest)
        self.rest = self.first_lanes(rest, LANES)
        self.repeat(0, "%columns", self.beside, self._columns)
        self.finish_held()

    def _columns(self, j: str) -> None:
        last = self.sub("%columns", 1)
        # prefetch the next columns if few are read side by side; otherwise the hardware prefetcher follows each of them
        ahead = self.mul("%k_stride", self.beside)
        columns = [
            self.at("%b", self.mul(self.at_most(self.add(j, c), last), "%k_stride"))
            for c in range(self.beside)
        ]

        def step(mask: str | None, k: str, sums: list[str]) -> list[str]:
            offset = self.mul(k, ITEM)
            a = [self.load(self.at(line, offset), mask) for line in self.lines]
            made = []
            for c, column in enumerate(columns):
                at = self.at(column, offset)
                b = self.load(at, mask)
                if self.beside <= _FEW:
                    self.prefetch(self.at(at, ahead))
                for i in range(self.rows):
                    total = sums[c * self.rows + i]
                    made.append(self(f"math.fma {a[i]}, {b}, {total} : {VECTOR}"))
            return made

        zeros = [(self.zero, VECTOR)] * LANES
        sums = self.loop(0, self.whole, LANES, zeros, lambda k, s: step(None, k, s))
        given = [(s, VECTOR) for s in sums]
        sums = self.loop(self.whole, "%k_size", LANES, given, lambda k, s: step(self.rest, k, s))
        self._spread(self._added(sums), j)

    def _added(self, sums: list[str]) -> str:
        """The sums of the lanes of 16 vectors, as the lanes of one vector."""
        low = [LANES * s + 4 * q + i for q in range(4) for i in (0, 1) for s in (0, 1)]
        pair = [4 * q + LANES * s + i for q in range(4) for s in (0, 1) for i in (0, 1)]
        even = [LANES * s + 4 * q + i for s in (0, 1) for q in (0, 2) for i in range(4)]
        for first, step in ((low, 2), (pair, 2), (even, 4), (even, 4)):
            second = [lane + step for lane in first]
            sums = [
                self.plus(self._shuffled(a, b, first), self._shuffled(a, b, second))
                for a, b in zip(sums[::2], sums[1::2])
            ]
        return sums[0]

    def _shuffled(self, a: str, b: str, lanes: list[int]) -> str:
        return self(f"vector.shuffle {a}, {b} {lanes} : {VECTOR}, {VECTOR}")

    def _spread(self, sums: str, j: str) -> None:
        """Store 16 sums in the strip, from column `j` on."""
        n, order = (
            self.beside,
            [c * self.rows + r for r in range(self.rows) for c in range(self.beside)],
        )
        by_rows = self._shuffled(sums, sums, order) if self.rows > 1 else sums
        start, part = self.at(self.held, self.mul(j, ITEM)), f"vector<{n}xf32>"
        for r in range(self.rows):
            x = self(
                f"vector.extract_strided_slice {by_rows} {{offsets = [{r * n}], sizes = [{n}], strides = [1]}}"
                f" : {VECTOR} to {part}"
            )
            self.write(x, self.at(start, r * STRIP * ITEM), part, ITEM, None)
