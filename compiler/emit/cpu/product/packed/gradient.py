"""The loops of the gradient of a convolution's weight, whose operands are both read in place.

    for blocks of positions
        write the table of the block                    (threads share the taps)
        for shares                                      (a tap × output channels; a free thread takes the next one)
            for tiles of output channels
                for strips of input channels            (accumulators in registers, then added to dw)

The table has, for each tap, the positions whose windows are inside the input there: the address of each one's dy, and
of the input at the tap. Products with elements outside are left out, unless dy has an infinity or a NaN there: their
products with zeros are NaN. Threads meet after each block, so sums have the same order for any number of threads.
"""

from __future__ import annotations

from functools import cache

from ..function import ITEM, LANES, VECTOR, Function
from ..tile import ARGUMENTS, CHAIN, TYPES, Tile
from .windows import DIMENSIONS, SPATIAL, WORD, Windows

#: the function's arguments. rows: output positions. deep: those of a block. beside: output channels of a share. counts:
#: bytes of the numbers of entries at the start of the table. each: bytes of the entries of a tap. zeros: the
#: offset of zeros after the table.
WORDS = (
    *("x", "dy", "dw", "table", "tile", "next"),
    *("rows", "images", "inputs", "outputs", "taps", "deep", "beside", "mr", "nr", "counts", "each", "zeros"),
    "by_position",
    *(f"{name}_{d}" for name in SPATIAL for d in DIMENSIONS),
)  # fmt: skip
_POINTERS = WORDS[:4]
#: external functions, besides the tile's, whose address is an argument
EXTERNALS = ("omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier")

#: bytes of an entry: two addresses
ENTRY = 2 * WORD

#: positions whose addresses are computed side by side
SIDE = 8


@cache
def function(name: str) -> str:
    """The text of the function `name` that computes gradients of weights."""
    return _Gradient().function(name)


@cache
def tile(name: str, rows: int, vectors: int) -> str:
    """The text of the function `name` that computes a tile of `rows` output channels and `vectors` vectors of input
    channels.

    `%a` is the tap's part of the table, `%k_size` the number of its entries. `%k_stride` and `%side` are the offsets of
    the first output and input channel in bytes. The first `%i` rows are not stored.
    """
    return _Tile(rows, vectors).function(name, ARGUMENTS)


class _Gradient(Function):
    def __init__(self) -> None:
        super().__init__()
        w = self.w = {
            name: self.load_word(i, "!llvm.ptr" if name in _POINTERS else "i64")
            for i, name in enumerate(WORDS)
            if name != "next"
        }
        w["tile"] = self(f"llvm.inttoptr {w['tile']} : i64 to !llvm.ptr")
        self.next = self.at("%w", WORD * WORDS.index("next"))
        self.me, self.team = self.thread("thread_num"), self.thread("num_threads")
        self.together = self.compare("sgt", self.team, 1)
        w["pixel"] = self.mul(w["inputs"], ITEM)
        self.pixel = self.mul(w["outputs"], ITEM)
        self.entries = self.at(w["table"], w["counts"])
        self.zeros = self.at(w["table"], w["zeros"])
        self.windows = Windows(self, w, self.zeros, SIDE, False)
        nothing = self.const(0, "i8")

        def clear() -> None:
            self.line(
                f'"llvm.intr.memset"({self.zeros}, {nothing}, {w["pixel"]}) <{{isVolatile = false}}> : '
                "(!llvm.ptr, i8, i64) -> ()"
            )

        self.branch(self.compare("eq", self.me, 0), clear)
        self.repeat(0, w["rows"], w["deep"], self._block)

    def _block(self, first: str) -> None:
        w = self.w
        later = self.compare("sgt", first, 0)
        deep = self.at_most(w["deep"], self.sub(w["rows"], first))
        self.branch(self(f"arith.andi {later}, {self.together} : i1"), self.barrier)
        self._table(first, deep)
        self.branch(self.together, self.barrier)
        more = self.choose(later, 1, 0)
        count = self.mul(self.granules(w["outputs"], w["beside"]), w["taps"])
        taken = self.shares(
            self.next, count, w["taps"], lambda block, tap, _: self._share(block, tap, more)
        )
        last = self.compare("eq", taken, self.sub(self.add(count, self.team), 1))
        self.branch(
            last, lambda: self.line(f"llvm.store {self.i64(0)}, {self.next} : i64, !llvm.ptr")
        )

    # -- the table

    def _count(self, tap: str) -> str:
        return self.at(self.w["table"], self.mul(tap, WORD))

    def _table(self, first: str, deep: str) -> None:
        """Write this thread's taps of the table for positions first … first + deep - 1."""
        w, zero = self.w, self.i64(0)
        self.repeat(
            self.me,
            w["taps"],
            self.team,
            lambda t: self.line(f"llvm.store {zero}, {self._count(t)} : i64, !llvm.ptr"),
        )

        never = self._is_finite(
            self.at(w["dy"], self.mul(first, self.pixel)), self.mul(deep, w["outputs"])
        )
        always = self(f"arith.xori {never}, {self.const(True, 'i1')} : i1")
        always = self(f"vector.broadcast {always} : i1 to vector<{SIDE}xi1>")

        def some(r: str) -> None:
            row = self.add(first, r)
            numbers = self.windows.op("addi", self.steps(SIDE, "i64"), self.windows.wide(row))
            image, at = self.windows.coordinates(numbers)
            exist = self.first_lanes(self.at_most(self.sub(deep, r), SIDE), SIDE)
            dy = self.at(w["dy"], self.mul(row, self.pixel))

            def tap(t: str, there: str, inside: str, _: list[str]) -> list[str]:
                own = self.compare("eq", self.binary("remui", t, self.team), self.me)
                mask, wide = f"vector<{SIDE}xi1>", self.windows.type
                there = self(
                    f"arith.select {inside}, {there}, {self.windows.zeros} : {mask}, {wide}"
                )
                inside = self(f"arith.ori {inside}, {always} : {mask}")
                inside = self(f"arith.andi {inside}, {exist} : {mask}")
                some = self(f"vector.reduction <or>, {inside} : vector<{SIDE}xi1> into i1")
                both = self(f"arith.andi {own}, {some} : i1")
                self.branch(both, lambda: self._entries(t, dy, there, inside))
                return []

            self.windows.taps(image, at, [], tap)

        self.repeat(0, deep, SIDE, some)

    def _is_finite(self, at: str, count: str) -> str:
        """Whether `count` values from the address `at` on are finite: 0 · x is NaN for others."""
        zero = self.const(0.0, VECTOR)

        def some(n: str, seen: list[str]) -> list[str]:
            mask = self.first_lanes(self.at_most(self.sub(count, n), LANES), LANES)
            x = self.load(self.at(at, self.mul(n, ITEM)), mask)
            return [self(f"math.fma {x}, {zero}, {seen[0]} : {VECTOR}")]

        (total,) = self.loop(0, count, LANES, [(zero, VECTOR)], some)
        sound = self(f"arith.cmpf ord, {total}, {total} : {VECTOR}")
        return self(f"vector.reduction <and>, {sound} : vector<{LANES}xi1> into i1")

    def _entries(self, tap: str, dy: str, there: str, inside: str) -> None:
        """Append the entries of the positions in `inside`. What follows overwrites those of others."""
        count = self._count(tap)
        end = self(f"llvm.load {count} : !llvm.ptr -> i64")
        entries = self.at(self.entries, self.mul(tap, self.w["each"]))
        for lane in range(SIDE):
            x = self(f"vector.extract {there}[{lane}] : i64 from vector<{SIDE}xi64>")
            ok = self(f"vector.extract {inside}[{lane}] : i1 from vector<{SIDE}xi1>")
            to = self.at(entries, self.mul(end, ENTRY))
            own = self.at(dy, self.mul(self.pixel, lane)) if lane else dy
            self.line(f"llvm.store {own}, {to} : !llvm.ptr, !llvm.ptr")
            self.line(f"llvm.store {x}, {self.at(to, WORD)} : i64, !llvm.ptr")
            end = self.add(end, self(f"arith.extui {ok} : i1 to i64"))
        self.line(f"llvm.store {end}, {count} : i64, !llvm.ptr")

    # -- tiles

    def _share(self, block: str, tap: str, more: str) -> None:
        w = self.w
        count = self(f"llvm.load {self._count(tap)} : !llvm.ptr -> i64")
        entries = self.at(self.entries, self.mul(tap, w["each"]))
        low = self.mul(block, w["beside"])
        high = self.at_most(self.add(low, w["beside"]), w["outputs"])
        row = self.mul(w["taps"], w["pixel"])
        null = self("llvm.mlir.zero : !llvm.ptr")

        def line(o: str) -> None:
            # an incomplete tile begins earlier, so that all its rows exist
            begin = self.at_most(o, self.sub(w["outputs"], w["mr"]))
            rows = self.at_most(self.sub(high, begin), w["mr"])
            down, before = self.mul(begin, ITEM), self.sub(o, begin)
            to = self.at(w["dw"], self.add(self.mul(begin, row), self.mul(tap, w["pixel"])))

            def one(c: str) -> None:
                columns = self.at_most(self.sub(w["inputs"], c), w["nr"])
                across = self.mul(c, ITEM)
                arguments = (entries, null, down, count, self.at(to, across), row, rows, columns, more, null, null,
                             before, c, across)  # fmt: skip
                self.call(w["tile"], ", ".join(arguments), TYPES)

            self.repeat(0, w["inputs"], w["nr"], one)

        used = self.at_least(count, self.sub(1, more))  # the first block writes zeros
        self.branch(self.compare("sgt", used, 0), lambda: self.repeat(low, high, w["mr"], line))


class _Tile(Tile):
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
            entry = self.at("%a", self.mul(k, ENTRY))
            dy, x = (
                self(f"llvm.load {self.at(entry, n * WORD)} : !llvm.ptr -> !llvm.ptr")
                for n in range(2)
            )
            dy, x = self.at(dy, "%k_stride"), self.at(x, "%side")
            columns = [
                self.load(self.at(x, v * LANES * ITEM), self.masks[v]) for v in range(self.vectors)
            ]
            made: list[str] = []
            for i in range(self.rows):
                y = self(f"llvm.load {self.at(dy, i * ITEM)} : !llvm.ptr -> f32")
                wide = self(f"vector.broadcast {y} : f32 to {VECTOR}")
                for column in columns:
                    made.append(self(f"math.fma {wide}, {column}, {sums[len(made)]} : {VECTOR}"))
            return made

        zeros = [(self.zero, VECTOR)] * (self.rows * self.vectors)
        return self.loop(low, high, 1, zeros, add)
