"""The microkernel of a matrix product: a tile of C, summed in registers over a block of K.

Each sum is computed in chains of 160 multiply-adds, and the chains are added up in the first-level cache: longer chains
of float32 additions lose accuracy. After the last block of K an epilogue may follow: the tile is stored on the stack,
and the function that `finish.py` writes reads it from there. Without one the tile is stored to C, or added to it.
"""

from __future__ import annotations

from functools import cache

from .function import ITEM, LANES, VECTOR, Function

#: multiply-adds of one chain
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
def tile(
    name: str,
    rows: int,
    vectors: int,
    packed: bool,
    steps: tuple[int, int] | None = None,
    chain: int = CHAIN,
    ahead: int = 0,
) -> str:
    """The function `name` of a tile of so many rows and vectors of columns.

    Args:
        packed: B is packed. Otherwise B is read in place, and its columns are contiguous. Where the processor has mask
            registers (`reads_both`), the same function reads both.
        steps: bytes in A from one k to the next, and from one row to the next; None: A is packed.
        chain: multiply-adds of one chain.
        ahead: rows ahead whose part of B is prefetched; 0: the columns that come next are.
    """
    masked = not packed or reads_both(vectors)
    made = _Tile(rows, vectors, masked, steps or (rows * ITEM, ITEM), chain, ahead)
    return made.function(name, ARGUMENTS)


def reads_both(vectors: int) -> bool:
    """Whether a tile reads B by the same code where it is packed and where it lies.

    Compile time goes with the text, so one function is better than two. Tiles of several vectors are for AVX-512
    (`compiler/targets/processors.py`), where a load under a mask costs what a plain one does. On AVX2 masks take
    registers from the sums: packed products of 6 x 16 tiles were 13 % slower.
    """
    return vectors > 1


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
    """Large parts of the text are there once for each vector of the tile, and compile time goes with the text. So only
    a whole tile of few products is stored from registers, and the rest goes over the stack."""

    def __init__(
        self, rows: int, vectors: int, masked: bool, steps: tuple[int, int], chain: int, ahead: int
    ) -> None:
        super().__init__(rows, vectors)
        self.masked, self.steps_of_a, self.chain = masked, steps, chain
        across = self.vectors * LANES * ITEM
        self.next = self.mul("%k_stride", ahead) if ahead else self.i64(across)

        def prefetch(i: str) -> None:
            row = self.at("%c", self.mul("%row", i))
            for v in range(self.vectors):
                self.prefetch(self.at(row, v * LANES * ITEM), write=True)

        # the tile of C is on its way while products are summed
        self.repeat(0, self.i64(rows), 1, prefetch)
        straight = self._all(
            self.compare("sge", "%rows", self.rows),
            self.compare("sge", "%columns", self.vectors * LANES),
            self.compare("eq", "%more", 0),
            self.compare("sle", "%k_size", self.chain),
            self(f"arith.xori {self.follows}, {self.const(True, 'i1')} : i1"),
        )
        self.branch(straight, self._one_part, self._parts)

    def _all(self, first: str, *others: str) -> str:
        """Whether all of some conditions hold."""
        for condition in others:
            first = self(f"arith.andi {first}, {condition} : i1")
        return first

    # -- sums

    def _products(self, low: str, high: str) -> list[str]:
        """The sums of the products of k in low…high."""

        def add(k: str, sums: list[str]) -> list[str]:
            along, down = self.steps_of_a
            a = self.at("%a", self.mul(k, along))
            b = self.at("%b", self.mul(k, "%k_stride"))
            columns = []
            for v in range(self.vectors):
                at = self.at(b, v * LANES * ITEM)
                if self.masked:
                    columns.append(self.load(at, self.masks[v]))
                    self.prefetch(self.at(at, self.next))
                else:
                    columns.append(self.read(at, VECTOR, 64, None))
            made = []
            for i in range(self.rows):
                x = self(f"llvm.load {self.at(a, i * down)} : !llvm.ptr -> f32")
                wide = self(f"vector.broadcast {x} : f32 to {VECTOR}")
                for v in range(self.vectors):
                    total = sums[i * self.vectors + v]
                    made.append(self(f"math.fma {wide}, {columns[v]}, {total} : {VECTOR}"))
            return made

        zeros = [(self.zero, VECTOR)] * (self.rows * self.vectors)
        return self.loop(low, high, 1, zeros, add)

    def _one_part(self) -> None:
        """Sum all of K, and store the tile."""
        sums = self._products(self.i64(0), "%k_size")
        for i in range(self.rows):
            row = self.at("%c", self.mul("%row", i))
            for v in range(self.vectors):
                self.store(sums[i * self.vectors + v], self.at(row, v * LANES * ITEM))

    def _parts(self) -> None:
        """Sum K in parts, which are added up on the stack, and go on from there."""

        def part(low: str) -> None:
            found = self._products(low, self.at_most(self.add(low, self.chain), "%k_size"))
            before = self.compare("sgt", low, 0)
            every = self(f"vector.broadcast {before} : i1 to vector<{LANES}xi1>")
            for n, x in enumerate(found):
                at = self.at(self.held, n * LANES * ITEM)
                self.store(self.plus(x, self.load(at, every)), at)

        # without any product the tile is zeros
        self.repeat(0, self.at_least("%k_size", 1), self.chain, part)
        self.finish_held()
