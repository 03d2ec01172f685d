"""The register tile: some rows and columns of a product, summed in registers over a block of K.

Sums are made of parts of 160 products, which are added up in the first cache: long chains of additions in float32
lose accuracy. What follows a product is applied behind the last block of K: the tile goes to the stack, and
from there through the function that `finish` writes. Without one it is stored, or added to what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from .function import ITEM, LANES, VECTOR, Function

#: products that are added up in one chain
CHAIN = 160

#: panels of A and B, bytes from one k to the next in B, K; where C is and bytes between its rows; how many rows and
#: columns of it there are; whether to add to it; what follows (0: nothing), its words, and the tile's first position;
#: bytes between rows of A, where that is read as it lies
ARGUMENTS = (
    "%a: !llvm.ptr, %b: !llvm.ptr, %k_stride: i64, %k_size: i64, %c: !llvm.ptr, %row: i64, %rows: i64, %columns: i64, "
    "%more: i64, %finish: !llvm.ptr, %words: !llvm.ptr, %i: i64, %j: i64, %side: i64"
)
TYPES = "!llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64"

#: of what follows: its words, the tile (rows of `nr` elements), its first position, how many rows and columns
FINISH_TYPES = "!llvm.ptr, !llvm.ptr, i64, i64, i64, i64"


@cache
def tile(name: str, rows: int, vectors: int, packed: bool) -> str:
    """The function `name` of a tile of so many rows and vectors of columns. packed: B is; else it is read where it
    lies, with neighbouring columns side by side."""
    return _Tile(rows, vectors, packed).function(name, ARGUMENTS)


class Tile(Function):
    """A tile on the stack, and what becomes of it."""

    def __init__(self, rows: int, vectors: int) -> None:
        super().__init__()
        self.rows, self.vectors = rows, vectors
        self.zero = self.const(0.0, VECTOR)
        count = self.i64(rows * vectors * LANES)
        self.held = self(f"llvm.alloca {count} x f32 {{alignment = 64 : i64}} : (i64) -> !llvm.ptr")
        self.masks = [
            self.first_lanes(
                self.at_most(self.at_least(self.sub("%columns", v * LANES), 0), LANES), LANES
            )
            for v in range(vectors)
        ]
        self.add_to = self.compare("ne", "%more", 0)
        null = self("llvm.mlir.zero : !llvm.ptr")
        self.follows = self(f'llvm.icmp "ne" %finish, {null} : !llvm.ptr')

    def finish_held(self) -> None:
        """Store the tile from the stack, or call what follows."""
        self.branch(self.follows, self._follow, self._edge)

    def _edge(self) -> None:
        """Store the rows and columns that there are."""
        every = self(f"vector.broadcast {self.add_to} : i1 to vector<{LANES}xi1>")

        def row(i: str) -> None:
            for v, (x, at) in enumerate(self._row(i)):
                both = self(f"arith.andi {self.masks[v]}, {every} : vector<{LANES}xi1>")
                self.store(self.plus(x, self.load(at, both)), at, self.masks[v])

        self.repeat(0, "%rows", 1, row)

    def _follow(self) -> None:
        """Call what follows, after what was summed before has been added."""

        def row(i: str) -> None:
            for v, (x, at) in enumerate(self._row(i)):
                held = self.at(
                    self.held, self.add(self.mul(i, self.vectors * LANES * ITEM), v * LANES * ITEM)
                )
                self.store(self.plus(x, self.load(at, self.masks[v])), held)

        self.branch(self.add_to, lambda: self.repeat(0, "%rows", 1, row))
        self.call("%finish", f"%words, {self.held}, %i, %j, %rows, %columns", FINISH_TYPES)

    def _row(self, i: str) -> list[tuple[str, str]]:
        """Of each vector of a row: its sums, and its address in C."""
        held = self.at(self.held, self.mul(i, self.vectors * LANES * ITEM))
        row = self.at("%c", self.mul("%row", i))
        offsets = [v * LANES * ITEM for v in range(self.vectors)]
        return [(self.load(self.at(held, o)), self.at(row, o)) for o in offsets]


class _Tile(Tile):
    def __init__(self, rows: int, vectors: int, packed: bool) -> None:
        super().__init__(rows, vectors)
        self.packed = packed
        for i in range(rows):  # the tile of C is on its way while products are summed
            row = self.at("%c", self.mul("%row", i))
            for v in range(vectors):
                self.prefetch(self.at(row, v * LANES * ITEM), write=True)
        self._finish(self._sums())

    # -- sums

    def _products(self, low: str | int, high: str, sums: Sequence[str]) -> list[str]:
        """Add the products of k in low…high."""
        across = self.vectors * LANES * ITEM

        def add(k: str, sums: list[str]) -> list[str]:
            a = self.at("%a", self.mul(k, self.rows * ITEM))
            b = self.at("%b", self.mul(k, across if self.packed else "%k_stride"))
            columns = []
            for v in range(self.vectors):
                at = self.at(b, v * LANES * ITEM)
                if self.packed:
                    columns.append(self.read(at, VECTOR, 64, None))
                else:
                    columns.append(self.load(at, self.masks[v]))
                    self.prefetch(self.at(at, across))
            made = []
            for i in range(self.rows):
                x = self(f"llvm.load {self.at(a, i * ITEM)} : !llvm.ptr -> f32")
                wide = self(f"vector.broadcast {x} : f32 to {VECTOR}")
                for v in range(self.vectors):
                    total = sums[i * self.vectors + v]
                    made.append(self(f"math.fma {wide}, {columns[v]}, {total} : {VECTOR}"))
            return made

        return self.loop(low, high, 1, [(s, VECTOR) for s in sums], add, rolled=True)

    def _sums(self) -> list[str]:
        """The tile's sums; in parts where K is large."""
        count = self.rows * self.vectors
        zeros = [self.zero] * count
        types = ", ".join([VECTOR] * count)
        result = self.fresh("r")
        many = self.compare("sgt", "%k_size", CHAIN)
        before = self.mul(self.binary("divsi", self.sub("%k_size", 1), CHAIN), CHAIN)
        self.line(f"{result}:{count} = scf.if {many} -> ({types}) {{")
        with self.indented():
            for n in range(count):
                self.store(self.zero, self._place(n))

            def part(k: str) -> None:
                for n, x in enumerate(self._products(k, self.add(k, CHAIN), zeros)):
                    self.store(self.plus(x, self.load(self._place(n))), self._place(n))

            self.repeat(0, before, CHAIN, part)
            last = self._products(before, "%k_size", zeros)
            sums = [self.plus(x, self.load(self._place(n))) for n, x in enumerate(last)]
            self.line(f"scf.yield {', '.join(sums)} : {types}")
        self.line("} else {")
        with self.indented():
            self.line(f"scf.yield {', '.join(self._products(0, '%k_size', zeros))} : {types}")
        self.line("}")
        return [f"{result}#{n}" for n in range(count)]

    def _place(self, n: int) -> str:
        """Where the n-th vector of the tile is held."""
        return self.at(self.held, n * LANES * ITEM)

    # -- what becomes of them

    def _finish(self, sums: list[str]) -> None:
        add = self.add_to
        whole = self(
            f"arith.andi {self.compare('sge', '%rows', self.rows)}, "
            f"{self.compare('sge', '%columns', self.vectors * LANES)} : i1"
        )
        alone = self(f"arith.xori {self.follows}, {self.const(True, 'i1')} : i1")
        straight = self(f"arith.andi {whole}, {alone} : i1")

        def held() -> None:
            for n, x in enumerate(sums):
                self.store(x, self._place(n))
            self.finish_held()

        self.branch(
            straight,
            lambda: self.branch(
                add, lambda: self._whole(sums, True), lambda: self._whole(sums, False)
            ),
            held,
        )

    def _whole(self, sums: list[str], add: bool) -> None:
        for i in range(self.rows):
            row = self.at("%c", self.mul("%row", i))
            for v in range(self.vectors):
                x, at = sums[i * self.vectors + v], self.at(row, v * LANES * ITEM)
                self.store(self.plus(x, self.load(at)) if add else x, at)
