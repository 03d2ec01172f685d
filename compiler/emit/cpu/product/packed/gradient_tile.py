"""The microkernel of the gradient of a convolution's weight: a tile of output channels × input channels of one tap."""

from __future__ import annotations

from functools import cache

from ..bfloat16.words import HALF, WORDS, Products, both_ways, dot, joined
from ..function import ITEM, LANES, VECTOR
from ..tile import ARGUMENTS, CHAIN, Tile
from .windows import WORD


@cache
def tile(name: str, rows: int, vectors: int, pairs: bool) -> str:
    """The text of the function `name` that computes a tile of `rows` output channels and `vectors` vectors of input
    channels.

    `%a` is the tap's part of the table, `%k_size` the number of its entries. `%k_stride` and `%side` are the offsets of
    the first output and input channel in bytes. The first `%i` rows are not stored.

    pairs: of bfloat16 operands, two positions at a time.
    """
    return (_Pairs if pairs else _Tile)(rows, vectors).function(name, ARGUMENTS)


class _Tile(Tile):
    #: positions of an entry
    positions = 1

    def __init__(self, rows: int, vectors: int) -> None:
        super().__init__(rows, vectors)
        self.first = "%i"

        def prefetch(i: str) -> None:
            for v in range(vectors):
                self.prefetch(self.at(self.row_at(i), v * LANES * ITEM), write=True)

        self.repeat(0, self.i64(rows), 1, prefetch)
        straight = self.all(
            self.compare("eq", self.sub("%rows", "%i"), rows),
            self.compare("sge", "%columns", vectors * LANES),
            self.compare("eq", "%more", 0),
            self.compare("sle", "%k_size", CHAIN),
        )
        self._write(straight)

    def _write(self, straight: str) -> None:
        """Write the tile. straight: whether one chain sums all entries of a complete tile that is stored."""
        self.branch(straight, self._one_chain, self._chains)

    def _one_chain(self) -> None:
        """Sum all entries in one chain, and store the tile from registers."""
        sums = iter(self._products(self.i64(0), "%k_size"))
        for i in range(self.rows):
            row = self.row_at(i)
            for v in range(self.vectors):
                self.store(next(sums), self.at(row, v * LANES * ITEM))

    def _chains(self) -> None:
        """Sum in several chains, which are added on the stack, then store the tile or add it to dw."""

        def part(low: str) -> None:
            found = self._products(low, self.at_most(self.add(low, CHAIN), "%k_size"))
            before = self.compare("sgt", low, 0)
            every = self(f"vector.broadcast {before} : i1 to vector<{LANES}xi1>")
            for n, x in enumerate(found):
                at = self.at(self.held, n * LANES * ITEM)
                self.store(self.plus(x, self.load(at, every)), at)

        self.repeat(0, self.at_least("%k_size", 1), CHAIN, part)
        self.finish_held()

    def _products(self, low: str, high: str) -> list[str]:
        """The sums of the products of entries low … high - 1."""

        def add(k: str, sums: list[str]) -> list[str]:
            entry = self.at("%a", self.mul(k, (1 + self.positions) * WORD))
            dy, *x = (
                self(f"llvm.load {self.at(entry, n * WORD)} : !llvm.ptr -> !llvm.ptr")
                for n in range(1 + self.positions)
            )
            dy, x = self.at(dy, "%k_stride"), [self.at(one, "%side") for one in x]
            columns = [self._column(x, v) for v in range(self.vectors)]
            made: list[str] = []
            for i in range(self.rows):
                wide = self._repeated(self.at(dy, i * ITEM))
                for column in columns:
                    made.append(self._plus_product(sums[len(made)], wide, column))
            return made

        zeros = [(self.zero, VECTOR)] * (self.rows * self.vectors)
        return self.loop(low, high, 1, zeros, add)

    def _column(self, x: list[str], v: int) -> str:
        """Vector `v` of the input channels of an entry. x: the address of each position's first channel."""
        return self.load(self.at(x[0], v * LANES * ITEM), self.masks[v])

    def _repeated(self, at: str) -> str:
        """The gradient of an output at the address `at`, in all lanes."""
        y = self(f"llvm.load {at} : !llvm.ptr -> f32")
        return self(f"vector.broadcast {y} : f32 to {VECTOR}")

    def _plus_product(self, total: str, a: str, b: str) -> str:
        return self(f"math.fma {a}, {b}, {total} : {VECTOR}")


class _Pairs(_Tile):
    positions = 2

    def _write(self, straight: str) -> None:
        def write(products: Products) -> None:
            self.products = products
            if products is dot:
                super(_Pairs, self)._write(straight)
            else:
                self._chains()

        both_ways(self, write)

    def _column(self, x: list[str], v: int) -> str:
        low, high = (self.read(self.at(at, 2 * v * LANES), HALF, 2, self.masks[v]) for at in x)
        return joined(self, low, high)

    def _repeated(self, at: str) -> str:
        y = self(f"llvm.load {at} : !llvm.ptr -> i32")
        return self(f"vector.broadcast {y} : i32 to {WORDS}")

    def _plus_product(self, total: str, a: str, b: str) -> str:
        return self.products(self, total, a, b)
