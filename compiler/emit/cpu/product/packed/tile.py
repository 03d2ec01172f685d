"""The microkernel of a product with a packed weight, which reads rows of the activation through a table of addresses.

The activation is not packed. A matrix product has one address for each row. A convolution has one for each row and tap,
and reads all channels there; a depthwise convolution reads only the channels of the tile's columns. Sums are computed
in chains of about 160 multiply-adds, as in `product/tile.py`.
"""

from __future__ import annotations

from functools import cache

from ..function import ITEM, LANES, VECTOR
from ..tile import ARGUMENTS as OTHERS
from ..tile import CHAIN, Tile
from ..tile import TYPES as OTHER_TYPES

#: the bytes of an address
ADDRESS = 8

#: the arguments of other tiles, and the address of the next data: it is prefetched into the second-level cache,
#: `%k_stride` bytes for each step of K
ARGUMENTS, TYPES = f"{OTHERS}, %next: !llvm.ptr", f"{OTHER_TYPES}, !llvm.ptr"


@cache
def tile(name: str, rows: int, vectors: int) -> str:
    """The text of the function `name` that computes a tile of `rows` rows and `vectors` vectors of columns.

    `%a` is the table of addresses, `%k_size` the number of channels, and `%side` the number of taps.
    """
    return _Packed(rows, vectors).function(name, ARGUMENTS)


@cache
def depthwise(name: str, rows: int, vectors: int) -> str:
    """The text of the function `name` that computes a tile of a depthwise convolution; column c reads channel c."""
    return _Depthwise(rows, vectors).function(name, ARGUMENTS)


class _Depthwise(Tile):
    def __init__(self, rows: int, vectors: int) -> None:
        super().__init__(rows, vectors)
        first = self.mul("%j", ITEM)

        def over(t: str, sums: list[str]) -> list[str]:
            table = self.at("%a", self.mul(t, rows * ADDRESS))
            b = self.at("%b", self.mul(t, vectors * LANES * ITEM))
            weights = [self.load(self.at(b, v * LANES * ITEM)) for v in range(vectors)]
            made: list[str] = []
            for i in range(rows):
                row = self(f"llvm.load {self.at(table, i * ADDRESS)} : !llvm.ptr -> !llvm.ptr")
                row = self.at(row, first)
                for v, weight in enumerate(weights):
                    x = self.load(self.at(row, v * LANES * ITEM), self.masks[v])
                    made.append(self(f"math.fma {x}, {weight}, {sums[len(made)]} : {VECTOR}"))
            return made

        sums = self.loop(0, "%side", 1, [(self.zero, VECTOR)] * (rows * vectors), over)
        for n, x in enumerate(sums):
            self.store(x, self.at(self.held, n * LANES * ITEM))
        self.finish_held()


class _Packed(Tile):
    def __init__(self, rows: int, vectors: int) -> None:
        super().__init__(rows, vectors)
        chain = self.i64(CHAIN)
        parts = self.at_least(self.granules("%k_size", chain), 1)
        #: channels and taps of a chain: several taps with all channels, or part of the channels of one tap
        self.channels = self.at_least(self.granules("%k_size", parts), 1)
        self.taps = self.at_least(self.binary("divui", chain, self.at_least("%k_size", 1)), 1)
        self.across = self.i64(vectors * LANES * ITEM)
        one = self.compare("sge", self.taps, "%side")
        whole = self(f"arith.andi {one}, {self.compare('eq', parts, 1)} : i1")
        for condition in (
            self.compare("sge", "%rows", self.rows),
            self.compare("sge", "%columns", self.vectors * LANES),
            self(f"arith.xori {self.follows}, {self.const(True, 'i1')} : i1"),
        ):
            whole = self(f"arith.andi {whole}, {condition} : i1")
        self.branch(whole, self._straight, self._parts)

    def _straight(self) -> None:
        """Sum all products in one chain, and store the tile from registers."""
        sums = self._products(self.i64(0), "%side", self.i64(0), "%k_size")
        for i in range(self.rows):
            row = self.at("%c", self.mul("%row", i))
            for v in range(self.vectors):
                self.store(sums[i * self.vectors + v], self.at(row, v * LANES * ITEM))

    def _parts(self) -> None:
        """Sum in several chains, which are added on the stack, then store the tile or call the epilogue."""

        def part(tap: str, channel: str) -> None:
            end = self.at_most(self.add(tap, self.taps), "%side")
            last = self.at_most(self.add(channel, self.channels), "%k_size")
            found = self._products(tap, end, channel, last)
            before = self.compare("sgt", self.add(tap, channel), 0)
            every = self(f"vector.broadcast {before} : i1 to vector<{LANES}xi1>")
            for n, x in enumerate(found):
                at = self.at(self.held, n * LANES * ITEM)
                self.store(self.plus(x, self.load(at, every)), at)

        def taps(tap: str) -> None:
            self.repeat(0, "%k_size", self.channels, lambda channel: part(tap, channel))

        self.repeat(0, "%side", self.taps, taps)
        self.finish_held()

    def _products(self, tap: str, taps: str, low: str, high: str) -> list[str]:
        """The sums of the products for taps tap … taps - 1 and channels low … high - 1."""

        def over(t: str, sums: list[str]) -> list[str]:
            table = self.at("%a", self.mul(t, self.rows * ADDRESS))
            rows = [
                self(f"llvm.load {self.at(table, i * ADDRESS)} : !llvm.ptr -> !llvm.ptr")
                for i in range(self.rows)
            ]
            first = self.mul(t, "%k_size")
            b = self.at("%b", self.mul(first, self.across))
            ahead = self.at("%next", self.mul(first, "%k_stride"))

            def add(k: str, sums: list[str]) -> list[str]:
                line = self.at(b, self.mul(k, self.across))
                offset = self.mul(k, ITEM)
                self.prefetch(self.at(ahead, self.mul(k, "%k_stride")), near=False)
                columns = [self.load(self.at(line, v * LANES * ITEM)) for v in range(self.vectors)]
                made = []
                for i, row in enumerate(rows):
                    x = self(f"llvm.load {self.at(row, offset)} : !llvm.ptr -> f32")
                    wide = self(f"vector.broadcast {x} : f32 to {VECTOR}")
                    for v in range(self.vectors):
                        total = sums[i * self.vectors + v]
                        made.append(self(f"math.fma {wide}, {columns[v]}, {total} : {VECTOR}"))
                return made

            return self.loop(low, high, 1, [(s, VECTOR) for s in sums], add)

        zeros = [(self.zero, VECTOR)] * (self.rows * self.vectors)
        return self.loop(tap, taps, 1, zeros, over)
