"""The microkernel of a matrix product: a tile of C, summed in registers over a block of K.

Each sum is computed in chains of 160 multiply-adds, whose results are added in the first-level cache: longer chains of
float32 additions lose accuracy. After the last block of K, the epilogue's function (`finish.py`) is called on the tile,
which is stored on the stack. Without an epilogue, the tile is stored to C, or added to it.
"""

from __future__ import annotations

from functools import cache

from .function import ITEM, LANES, VECTOR, Function

#: the multiply-adds of one chain
CHAIN = 160

#: as a stride of A: the argument of the function
GIVEN = "%side"

#: the arguments: panels of A and B; the stride of B along K in bytes; K; the address of C and its row stride in bytes;
#: the number of rows and columns; whether to add to C; the epilogue's function (null: none) and arguments, and the
#: tile's first row and column; a stride of A in bytes, if A is not packed
ARGUMENTS = (
    "%a: !llvm.ptr, %b: !llvm.ptr, %k_stride: i64, %k_size: i64, %c: !llvm.ptr, %row: i64, %rows: i64, %columns: i64, "
    "%more: i64, %finish: !llvm.ptr, %words: !llvm.ptr, %i: i64, %j: i64, %side: i64"
)
TYPES = "!llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr, i64, i64, i64, i64, !llvm.ptr, !llvm.ptr, i64, i64, i64"

#: of the epilogue: its arguments, the tile (rows of `nr` elements), its first row and column, its rows and columns
FINISH_TYPES = "!llvm.ptr, !llvm.ptr, i64, i64, i64, i64"


@cache
def tile(
    name: str,
    rows: int,
    vectors: int,
    packed: bool,
    steps: tuple[int | str, int | str] | None = None,
    chain: int = CHAIN,
    ahead: int = 0,
) -> str:
    """The text of the function `name` that computes a tile of `rows` rows and `vectors` vectors of columns.

    Args:
        name: the function's name.
        rows, vectors: the size of the tile.
        packed: B is packed. Otherwise B is read in place, and its columns are contiguous. On CPUs with mask registers
            (`reads_both`), one function reads both.
        steps: the strides of A along K and from row to row, in bytes; None: A is packed. One may be `GIVEN`.
        chain: the multiply-adds of one chain.
        ahead: B is prefetched so many rows of B ahead; 0: the next columns are prefetched.
    """
    masked = not packed or reads_both(vectors)
    made = RegisterTile(rows, vectors, masked, steps or (rows * ITEM, ITEM), chain, ahead)
    return made.function(name, ARGUMENTS)


def reads_both(vectors: int) -> bool:
    """Whether one function reads both a packed B and a B in place.

    Compile time grows with the text, so one function is better than two. Tiles of several vectors are for AVX-512
    (`compiler/targets/processors.py`), where a masked load costs as much as a plain one. On AVX2, masks take registers
    from the accumulators: packed products with 6 × 16 tiles were 13 % slower.
    """
    return vectors > 1


class Tile(Function):
    """The end of a tile's computation: the tile on the stack is stored, or passed to the epilogue."""

    def __init__(self, rows: int, vectors: int) -> None:
        super().__init__()
        self.rows, self.vectors = rows, vectors
        self.first: str | int = 0  #: the first row that is stored
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

    def all(self, first: str, *others: str) -> str:
        """The conjunction of conditions."""
        for condition in others:
            first = self(f"arith.andi {first}, {condition} : i1")
        return first

    def finish_held(self) -> None:
        """Store the tile from the stack, or call the epilogue on it."""
        self.branch(self.follows, self._follow, self._edge)

    def _edge(self) -> None:
        """Store an incomplete tile: only the rows and columns that exist."""
        every = self(f"vector.broadcast {self.add_to} : i1 to vector<{LANES}xi1>")

        def row(i: str) -> None:
            for v, (x, at) in enumerate(self._row(i)):
                both = self(f"arith.andi {self.masks[v]}, {every} : vector<{LANES}xi1>")
                self.store(self.plus(x, self.load(at, both)), at, self.masks[v])

        self.repeat(self.first, "%rows", 1, row)

    def _follow(self) -> None:
        """Call the epilogue, after adding the sums of earlier blocks of K."""

        def row(i: str) -> None:
            for v, (x, at) in enumerate(self._row(i)):
                held = self.at(
                    self.held, self.add(self.mul(i, self.vectors * LANES * ITEM), v * LANES * ITEM)
                )
                self.store(self.plus(x, self.load(at, self.masks[v])), held)

        self.branch(self.add_to, lambda: self.repeat(0, "%rows", 1, row))
        self.follow()

    def follow(self) -> None:
        """Call the epilogue on the tile."""
        self.call("%finish", f"%words, {self.held}, %i, %j, %rows, %columns", FINISH_TYPES)

    def row_at(self, i: str | int) -> str:
        """The address of a row of the tile in C."""
        return self.at("%c", self.mul("%row", i))

    def _row(self, i: str) -> list[tuple[str, str]]:
        """For each vector of a row: its sums, and its address in C."""
        held = self.at(self.held, self.mul(i, self.vectors * LANES * ITEM))
        row = self.row_at(i)
        offsets = [v * LANES * ITEM for v in range(self.vectors)]
        return [(self.load(self.at(held, o)), self.at(row, o)) for o in offsets]


class RegisterTile(Tile):
    """The computation of a tile.

    Compile time grows with the text, large parts of which exist once for each vector of the tile. So only a complete
    tile with a single chain is stored from registers; all others are stored through the stack.
    """

    def __init__(
        self,
        rows: int,
        vectors: int,
        masked: bool,
        steps: tuple[int | str, int | str],
        chain: int,
        ahead: int,
    ) -> None:
        super().__init__(rows, vectors)
        self.masked, self.steps_of_a, self.chain = masked, steps, chain
        across = self.vectors * LANES * ITEM
        self.next = self.mul("%k_stride", ahead) if ahead else self.i64(across)

        def prefetch(i: str) -> None:
            row = self.at("%c", self.mul("%row", i))
            for v in range(self.vectors):
                self.prefetch(self.at(row, v * LANES * ITEM), write=True)

        # prefetch the tile of C during the multiply-adds
        self.repeat(0, self.i64(rows), 1, prefetch)
        straight = self.all(
            self.compare("sge", "%rows", self.rows),
            self.compare("sge", "%columns", self.vectors * LANES),
            self.compare("eq", "%more", 0),
            self.compare("sle", "%k_size", self.chain),
            self(f"arith.xori {self.follows}, {self.const(True, 'i1')} : i1"),
        )
        self._write(straight)

    def _write(self, straight: str) -> None:
        """Write the tile. straight: whether one chain sums all of K of a complete tile that is stored."""
        self.branch(straight, self._one_part, self._parts)

    # -- sums

    def _products(self, low: str, high: str) -> list[str]:
        """The sums of the products for k in low … high - 1."""

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
                made += self._row_of_products(
                    self._row_of_a(a, i, down),
                    columns,
                    sums[i * self.vectors : (i + 1) * self.vectors],
                )
            return made

        zeros = [(self.zero, VECTOR)] * (self.rows * self.vectors)
        return self.loop(low, high, 1, zeros, add)

    def _row_of_a(self, a: str, i: int, down: int | str) -> str:
        """The address of the value of A in row i. Rows are counted from every fourth one, so that an address is one of
        few registers and a multiple of the stride that instructions can add."""
        if isinstance(down, int):
            return self.at(a, i * down)
        return self.at(self.at(a, self.mul(down, i // 4 * 4)), self.mul(down, i % 4))

    def _row_of_products(self, at: str, columns: list[str], sums: list[str]) -> list[str]:
        """The sums of a row with the products of the value at the address `at` added."""
        x = self(f"llvm.load {at} : !llvm.ptr -> f32")
        wide = self(f"vector.broadcast {x} : f32 to {VECTOR}")
        return [
            self(f"math.fma {wide}, {y}, {total} : {VECTOR}") for y, total in zip(columns, sums)
        ]

    def _one_part(self) -> None:
        """Sum all of K in one chain, and store the tile from registers."""
        sums = self._products(self.i64(0), "%k_size")
        for i in range(self.rows):
            row = self.at("%c", self.mul("%row", i))
            for v in range(self.vectors):
                self.store(sums[i * self.vectors + v], self.at(row, v * LANES * ITEM))

    def _parts(self) -> None:
        """Sum K in several chains, which are added on the stack, then store the tile or call the epilogue."""

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
