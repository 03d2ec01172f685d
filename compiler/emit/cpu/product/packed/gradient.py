"""The loops of the gradient of a convolution's weight, whose operands are both read in place.

    for blocks of positions
        write the table of the block                    (threads share the taps)
        for shares                                      (a tap × output channels; a free thread takes the next one)
            for tiles of output channels
                for strips of input channels            (accumulators in registers, then added to dw)

The table has, for each tap, the positions whose windows are inside the input there: the address of each one's dy, and
of the input at the tap. Products with elements outside are left out, unless dy has an infinity or a NaN there: their
products with zeros are NaN. Threads meet after each block, so sums have the same order for any number of threads.

Of bfloat16 operands two positions are multiplied at a time (`bfloat16/words.py`): an entry of the table is for two
positions, one of which may be outside, where it reads zeros. The block's dy is rearranged as words of two positions.
"""

from __future__ import annotations

from functools import cache

from ..bfloat16.words import HALF, HALVES, WORDS, joined, values
from ..function import ITEM, LANES, VECTOR, Function
from ..tile import TYPES
from .windows import DIMENSIONS, SPATIAL, WORD, Windows

#: the function's arguments. rows: output positions. deep: those of a block. beside: output channels of a share. counts:
#: bytes of the numbers of entries at the start of the table. each: bytes of the entries of a tap. zeros, pairs: the
#: offsets of zeros and of the words of dy after the table. line: bytes between words of two entries.
ARGUMENTS = (
    *("x", "dy", "dw", "table", "tile", "next"),
    *("rows", "images", "inputs", "outputs", "taps", "deep", "beside", "mr", "nr", "counts", "each", "zeros"),
    *("pairs", "line", "by_position"),
    *(f"{name}_{d}" for name in SPATIAL for d in DIMENSIONS),
)  # fmt: skip
_POINTERS = ARGUMENTS[:4]
#: external functions, besides the tile's, whose address is an argument
EXTERNALS = ("omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier")

#: positions whose addresses are computed side by side
SIDE = 8


@cache
def function(name: str, pairs: bool) -> str:
    """The text of the function `name` that computes gradients of weights. pairs: of bfloat16 operands."""
    return _Gradient(pairs).function(name)


class _Gradient(Function):
    def __init__(self, pairs: bool) -> None:
        super().__init__()
        #: positions of an entry, bytes of an element
        self.positions, self.item = (2, 2) if pairs else (1, ITEM)
        #: bytes of an entry: the addresses of dy and of the positions' inputs
        self.entry = WORD * (1 + self.positions)
        w = self.w = self.words_by_name(ARGUMENTS, _POINTERS, ("tile",))
        self.next = self.at("%w", WORD * ARGUMENTS.index("next"))
        self.me, self.team = self.thread("thread_num"), self.thread("num_threads")
        self.together = self.compare("sgt", self.team, 1)
        w["pixel"] = self.mul(w["inputs"], self.item)
        self.pixel = self.mul(w["outputs"], self.item)
        self.words = self.at(w["table"], w["pairs"])
        self.entries = self.at(w["table"], w["counts"])
        self.zeros = self.at(w["table"], w["zeros"])
        self.windows = Windows(self, w, self.zeros, SIDE, False)
        first = self.compare("eq", self.me, 0)
        self.branch(first, lambda: self.clear(self.zeros, w["pixel"]))
        self.repeat(0, w["rows"], w["deep"], self._block)

    def _block(self, first: str) -> None:
        w = self.w
        later = self.compare("sgt", first, 0)
        deep = self.at_most(w["deep"], self.sub(w["rows"], first))
        self.branch(self(f"arith.andi {later}, {self.together} : i1"), self.barrier)
        self._table(first, deep)
        if self.positions > 1:
            self._pair(first, deep)
        self.branch(self.together, self.barrier)
        more = self.choose(later, 1, 0)
        count = self.mul(self.granules(w["outputs"], w["beside"]), w["taps"])
        self.all_shares(
            self.next, count, w["taps"], lambda block, tap, _: self._share(block, tap, more)
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
            if self.positions > 1:
                dy = self.at(self.words, self.mul(self.binary("divui", r, 2), self._line))
            else:
                dy = self.at(w["dy"], self.mul(row, self.pixel))

            def tap(t: str, there: str, inside: str, _: list[str]) -> list[str]:
                own = self.compare("eq", self.binary("remui", t, self.team), self.me)
                mask, wide = f"vector<{SIDE}xi1>", self.windows.type
                inside = self(f"arith.andi {inside}, {exist} : {mask}")
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
        step = LANES * ITEM // self.item

        def some(n: str, seen: list[str]) -> list[str]:
            mask = self.first_lanes(self.at_most(self.sub(count, n), step), step)
            here = self.at(at, self.mul(n, self.item))
            found: tuple[str, ...] = (self.load(here, mask),) if self.positions == 1 else ()
            if not found:
                read = self.read(here, HALVES, self.item, mask)
                found = values(self, self(f"vector.bitcast {read} : {HALVES} to {WORDS}"))
            total = seen[0]
            for x in found:
                total = self(f"math.fma {x}, {zero}, {total} : {VECTOR}")
            return [total]

        (total,) = self.loop(0, count, step, [(zero, VECTOR)], some)
        sound = self(f"arith.cmpf ord, {total}, {total} : {VECTOR}")
        return self(f"vector.reduction <and>, {sound} : vector<{LANES}xi1> into i1")

    @property
    def _line(self) -> str:
        """Bytes of the words of two positions."""
        return self.w["line"]

    def _pair(self, first: str, deep: str) -> None:
        """Write this thread's words of dy at two positions of the block; the last position may be alone."""
        w = self.w

        def both(n: str) -> None:
            position = self.mul(n, 2)
            here = self.at(w["dy"], self.mul(self.add(first, position), self.pixel))
            to = self.at(self.words, self.mul(n, self._line))
            exists = self.compare("slt", self.add(position, 1), deep)
            exists = self(f"vector.broadcast {exists} : i1 to vector<{LANES}xi1>")

            def some(o: str) -> None:
                mask = self.first_lanes(self.at_most(self.sub(w["outputs"], o), LANES), LANES)
                there = self(f"arith.andi {mask}, {exists} : vector<{LANES}xi1>")
                at = self.at(here, self.mul(o, self.item))
                low = self.read(at, HALF, self.item, mask)
                high = self.read(self.at(at, self.pixel), HALF, self.item, there)
                self.write(
                    joined(self, low, high), self.at(to, self.mul(o, ITEM)), WORDS, ITEM, mask
                )

            self.repeat(0, w["outputs"], LANES, some)

        self.repeat(self.me, self.granules(deep, 2), self.team, both)

    def _entries(self, tap: str, dy: str, there: str, inside: str) -> None:
        """Append the entries of which a position is in `inside`. What follows overwrites those of others."""
        count = self._count(tap)
        end = self(f"llvm.load {count} : !llvm.ptr -> i64")
        entries = self.at(self.entries, self.mul(tap, self.w["each"]))
        line = self._line if self.positions > 1 else self.pixel
        for n, first in enumerate(range(0, SIDE, self.positions)):
            lanes = range(first, first + self.positions)
            ok = [
                self(f"vector.extract {inside}[{lane}] : i1 from vector<{SIDE}xi1>")
                for lane in lanes
            ]
            to = self.at(entries, self.mul(end, self.entry))
            own = self.at(dy, self.mul(line, n)) if n else dy
            self.line(f"llvm.store {own}, {to} : !llvm.ptr, !llvm.ptr")
            for i, lane in enumerate(lanes):
                x = self(f"vector.extract {there}[{lane}] : i64 from vector<{SIDE}xi64>")
                self.line(f"llvm.store {x}, {self.at(to, (i + 1) * WORD)} : i64, !llvm.ptr")
            some = ok[0]
            for other in ok[1:]:
                some = self(f"arith.ori {some}, {other} : i1")
            end = self.add(end, self(f"arith.extui {some} : i1 to i64"))
        self.line(f"llvm.store {end}, {count} : i64, !llvm.ptr")

    # -- tiles

    def _share(self, block: str, tap: str, more: str) -> None:
        w = self.w
        count = self(f"llvm.load {self._count(tap)} : !llvm.ptr -> i64")
        entries = self.at(self.entries, self.mul(tap, w["each"]))
        low = self.mul(block, w["beside"])
        high = self.at_most(self.add(low, w["beside"]), w["outputs"])
        pixel = self.mul(w["inputs"], ITEM)
        row = self.mul(w["taps"], pixel)
        null = self("llvm.mlir.zero : !llvm.ptr")

        def line(o: str) -> None:
            # an incomplete tile begins earlier, so that all its rows exist
            begin = self.at_most(o, self.sub(w["outputs"], w["mr"]))
            rows = self.at_most(self.sub(high, begin), w["mr"])
            down, before = self.mul(begin, ITEM), self.sub(o, begin)
            to = self.at(w["dw"], self.add(self.mul(begin, row), self.mul(tap, pixel)))

            def one(c: str) -> None:
                columns = self.at_most(self.sub(w["inputs"], c), w["nr"])
                across = self.mul(c, self.item)
                arguments = (entries, null, down, count, self.at(to, self.mul(c, ITEM)), row, rows, columns, more,
                             null, null, before, c, across)  # fmt: skip
                self.call(w["tile"], ", ".join(arguments), TYPES)

            self.repeat(0, w["inputs"], w["nr"], one)

        used = self.at_least(count, self.sub(1, more))  # the first block writes zeros
        self.branch(self.compare("sgt", used, 0), lambda: self.repeat(low, high, w["mr"], line))
