"""The microkernel of a product with a packed B, which reads rows of the activation through a table of addresses.

The activation is not packed. The table (`windows.py`) has an entry for each tap: a matrix product has one. A
convolution reads all channels there; a depthwise convolution reads only the channels of the tile's columns. Sums are
computed in chains of about 160 multiply-adds, as in `product/tile.py`.

A tile of bfloat16 values reads two channels at a time, a word, and adds both products (`bfloat16/words.py`).
"""

from __future__ import annotations

from functools import cache

from ..bfloat16 import words
from ..function import ITEM, LANES, VECTOR
from ..tile import ARGUMENTS as OTHERS
from ..tile import CHAIN, FINISH_TYPES, Tile
from ..tile import TYPES as OTHER_TYPES
from .windows import WORD

#: the arguments of other tiles, and the address of the next data: it is prefetched into the second-level cache,
#: `%k_stride` bytes for each step of K
ARGUMENTS, TYPES = f"{OTHERS}, %next: !llvm.ptr", f"{OTHER_TYPES}, !llvm.ptr"


@cache
def tile(name: str, rows: int, vectors: int) -> str:
    """The text of the function `name` that computes a tile of `rows` rows and `vectors` vectors of columns.

    `%a` is the tile's table, `%k_size` the number of channels, and `%side` the number of taps in the table. `%c` is the
    address of the columns in row 0 of the result, `%row` the bytes between its rows; `%i` is not used.
    """
    return _Packed(rows, vectors).function(name, ARGUMENTS)


@cache
def pairs(name: str, rows: int, vectors: int) -> str:
    """The text of the function `name` that computes a tile of bfloat16 values, which an epilogue rounds.

    As `tile`; `%k_size` is the number of pairs of channels.
    """
    return _Pairs(rows, vectors).function(name, ARGUMENTS)


@cache
def depthwise(name: str, rows: int, vectors: int) -> str:
    """The text of the function `name` that computes a tile of a depthwise convolution; column c reads channel c."""
    return _Depthwise(rows, vectors).function(name, ARGUMENTS)


class _Rows(Tile):
    """A tile whose rows are those of a table."""

    def row_at(self, i: str | int) -> str:
        """The address of a row in C."""
        return self.at("%c", self.mul("%row", self.number(i)))

    def number(self, i: str | int) -> str:
        """The number of a row in the result."""
        at = self.at("%a", self.mul(self.add(i, 1), WORD) if isinstance(i, str) else (i + 1) * WORD)
        return self(f"llvm.load {at} : !llvm.ptr -> i64")

    def entry(self, t: str) -> tuple[str, list[str]]:
        """The number of a tap of the table, and the addresses of the rows."""
        width = (self.rows + 1) * WORD
        at = self.at("%a", self.add(self.mul(t, width), width))
        rows = [
            self(f"llvm.load {self.at(at, i * WORD)} : !llvm.ptr -> !llvm.ptr")
            for i in range(1, self.rows + 1)
        ]
        return self(f"llvm.load {at} : !llvm.ptr -> i64"), rows

    def follow(self) -> None:
        """Call the epilogue on the tile, or on each row if they aren't consecutive in the result."""
        first, last = self.number(0), self.sub("%rows", 1)
        along = self.compare("eq", self.sub(self.number(last), first), last)
        row = self.vectors * LANES * ITEM

        def call(held: str, number: str, rows: str) -> None:
            self.call("%finish", f"%words, {held}, {number}, %j, {rows}, %columns", FINISH_TYPES)

        def one(i: str) -> None:
            call(self.at(self.held, self.mul(i, row)), self.number(i), self.i64(1))

        self.branch(
            along,
            lambda: call(self.held, first, "%rows"),
            lambda: self.repeat(0, "%rows", 1, one),
        )


class _Depthwise(_Rows):
    def __init__(self, rows: int, vectors: int) -> None:
        super().__init__(rows, vectors)
        first = self.mul("%j", ITEM)

        def over(t: str, sums: list[str]) -> list[str]:
            tap, addresses = self.entry(t)
            b = self.at("%b", self.mul(tap, vectors * LANES * ITEM))
            weights = [self.load(self.at(b, v * LANES * ITEM)) for v in range(vectors)]
            made: list[str] = []
            for row in addresses:
                row = self.at(row, first)
                for v, weight in enumerate(weights):
                    x = self.load(self.at(row, v * LANES * ITEM), self.masks[v])
                    made.append(self(f"math.fma {x}, {weight}, {sums[len(made)]} : {VECTOR}"))
            return made

        sums = self.loop(0, "%side", 1, [(self.zero, VECTOR)] * (rows * vectors), over)
        for n, x in enumerate(sums):
            self.store(x, self.at(self.held, n * LANES * ITEM))
        self.finish_held()


class _Packed(_Rows):
    def __init__(self, rows: int, vectors: int) -> None:
        super().__init__(rows, vectors)
        chain = self.i64(CHAIN)
        parts = self.at_least(self.granules("%k_size", chain), 1)
        #: channels and taps of a chain: several taps with all channels, or part of the channels of one tap
        self.channels = self.at_least(self.granules("%k_size", parts), 1)
        self.taps = self.at_least(self.binary("divui", chain, self.at_least("%k_size", 1)), 1)
        self.across = self.i64(vectors * LANES * ITEM)
        self._write(parts)

    def _write(self, parts: str) -> None:
        """Write the tile. parts: the number of chains that the channels of a tap are divided into."""
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
            row = self.row_at(i)
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

        # without any tap the tile is zeros
        self.repeat(0, self.at_least("%side", 1), self.taps, taps)
        self.finish_held()

    def _products(self, tap: str, taps: str, low: str, high: str) -> list[str]:
        """The sums of the products for taps tap … taps - 1 and channels low … high - 1."""

        def over(t: str, sums: list[str]) -> list[str]:
            number, rows = self.entry(t)
            b = self.at("%b", self.mul(number, "%k_size", self.across))
            ahead = self.at("%next", self.mul(t, "%k_size", "%k_stride"))

            def add(k: str, sums: list[str]) -> list[str]:
                line = self.at(b, self.mul(k, self.across))
                offset = self.mul(k, ITEM)
                self.prefetch(self.at(ahead, self.mul(k, "%k_stride")), near=False)
                columns = [self.load(self.at(line, v * LANES * ITEM)) for v in range(self.vectors)]
                made = []
                for i, row in enumerate(rows):
                    found = sums[i * self.vectors : (i + 1) * self.vectors]
                    made += self._row_of_products(self.at(row, offset), columns, found)
                return made

            return self.loop(low, high, 1, [(s, VECTOR) for s in sums], add)

        zeros = [(self.zero, VECTOR)] * (self.rows * self.vectors)
        return self.loop(tap, taps, 1, zeros, over)

    def _row_of_products(self, at: str, columns: list[str], sums: list[str]) -> list[str]:
        """The sums of a row with the products of the value at the address `at` added."""
        x = self(f"llvm.load {at} : !llvm.ptr -> f32")
        wide = self(f"vector.broadcast {x} : f32 to {VECTOR}")
        return [self(f"math.fma {wide}, {y}, {sum} : {VECTOR}") for y, sum in zip(columns, sums)]


class _Pairs(_Packed):
    def _write(self, parts: str) -> None:
        def write(products: words.Products) -> None:
            self.products = products
            self._parts()

        words.both_ways(self, write)

    def _row_of_products(self, at: str, columns: list[str], sums: list[str]) -> list[str]:
        return words.row_of_products(self, self.products, at, columns, sums)
