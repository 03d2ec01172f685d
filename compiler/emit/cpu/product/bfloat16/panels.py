"""Packing for tiles of bfloat16 products (Intel AMX): float32 values as sums of three bfloat16 values.

    x = x₁ + x₂ + x₃,    x₁ = bf16(x),  x₂ = bf16(x - x₁),  x₃ = x - x₁ - x₂

The sum is exact, since three times 8 bits hold the 24 bits of a float32. A panel has 32 lanes (rows of A or columns of
B) in two tiles of 16. For each 32 elements of K, tile and part there are 16 × 16 words; a word holds elements i and
i + 16 of K. Rows of A's words are lanes, rows of B's are the positions i:

    A    panel[K / 32][tile][part][lane][i]        B    panel[K / 32][tile][part][i][lane]

Products in mixed precision have one part. Their operands are bfloat16 values in memory (a word then holds elements 2 i
and 2 i + 1), or float32 values that were widened from bfloat16.

A panel of three parts ends with three integers: the least and the largest biased exponent of its values, zeros
excepted, and whether it is `raw`. A panel with an infinity, a NaN or a value whose parts are no normal numbers is raw:
it holds float32 values, elements i in the words of part 1, elements i + 16 in those of part 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from gflow.compiler.kernel.blocks import AMX_LANES, PADDED

from ...language.transpose import transposed
from ..function import ITEM, LANES, VECTOR, Function
from ..panels import ARGUMENTS, WINDOWS
from .words import HALF, HALVES, WORDS, joined

#: bytes of a row of a tile and of one part of a tile; tiles side by side
ROW = LANES * ITEM
PART = LANES * ROW
BESIDE = AMX_LANES // LANES

#: biased exponents: below the first, x₃ might be denormal; from the second on, x₁ might be infinite
_LEAST, _MOST = 19, 254

#: what goes into one row of words: elements i and i + 16 as float32, or the words as they are
Elements = tuple[str, ...]
#: the body of a loop that carries the range of values
Body = Callable[[str, list[str]], list[str]]


class _Panel(Function):
    """The text of a packing function. parts: of a value. item: bytes of an element in memory."""

    def __init__(self, parts: int, item: int = ITEM) -> None:
        super().__init__()
        self.parts, self.item = parts, item
        self.raw = ""  # of three parts: whether the panel is packed raw
        self.tile, self.whole = parts * PART, BESIDE * parts * PART
        self.high = self.const(-65536, WORDS)  # the bits of a bfloat16 within a float32
        self.half = self.const(1 << 15, WORDS)
        self.sixteen = self.const(16, WORDS)
        self.one = self.const(1, WORDS)

    def made(self, name: str, body: Body) -> str:
        """The function's text. body: packs 32 elements of K.

        A panel of three parts is packed again, raw, if its range says so.
        """
        if self.parts == 1:
            self.repeat(0, "%k_size", PADDED, lambda k: (body(k, []), None)[1])
            return self.function(name, ARGUMENTS)
        end = self.at("%to", self.mul(self.granules("%k_size", PADDED), self.whole))
        self.line(f"llvm.store {self.i64(1)}, {self.at(end, 16)} : i64, !llvm.ptr")

        def turn(again: str) -> None:
            self.raw = self.compare("ne", again, 0)
            needed = self.compare("ne", self(f"llvm.load {self.at(end, 16)} : !llvm.ptr -> i64"), 0)
            self.branch(needed, lambda: self._turn(end, body))

        self.repeat(0, self.i64(2), 1, turn)
        return self.function(name, ARGUMENTS)

    def _turn(self, end: str, body: Body) -> None:
        """Pack all of K, and write the end of the panel the first time."""
        start = [(self.const(-1, WORDS), WORDS), (self.const(0, WORDS), WORDS)]
        low, high = self.loop(0, "%k_size", PADDED, start, body)
        least, most = (self._exponent(how, x) for how, x in (("minui", low), ("maxui", high)))
        ends = [self.compare("slt", least, _LEAST), self.compare("sge", most, _MOST)]
        raw = self(f"arith.extui {self(f'arith.ori {ends[0]}, {ends[1]} : i1')} : i1 to i64")

        def write() -> None:
            for n, number in enumerate((least, most, raw)):
                self.line(f"llvm.store {number}, {self.at(end, 8 * n)} : i64, !llvm.ptr")

        self.branch(self.raw, lambda: None, write)

    def _exponent(self, how: str, x: str) -> str:
        found = self(f"vector.reduction <{how}>, {x} : {WORDS} into i32")
        wide = self(f"arith.extui {found} : i32 to i64")
        return self.binary("shrui", wide, 24)

    def put(self, given: Elements, to: str, seen: list[str]) -> list[str]:
        """Write one row of words of each part. seen: the range of values so far."""
        if seen:
            low, high = seen
            for x in given:
                doubled = self(f"arith.addi {x}, {x} : {WORDS}")  # without the sign
                high = self(f"arith.maxui {high}, {doubled} : {WORDS}")
                before = self(f"arith.subi {doubled}, {self.one} : {WORDS}")  # zeros: the largest
                low = self(f"arith.minui {low}, {before} : {WORDS}")
            seen = [low, high]
            self.branch(self.raw, lambda: self._write(given, to), lambda: self._split(given, to))
        elif len(given) == 1:
            self._write(given, to)
        else:
            self._split(given, to)
        return seen

    def _write(self, given: Elements, to: str) -> None:
        for n, x in enumerate(given):
            self.write(x, self.at(to, n * PART), WORDS, ROW, None)

    def _split(self, rest: Elements, to: str) -> None:
        """Write the parts of float32 elements."""
        for part in range(self.parts):
            last = part == self.parts - 1
            tops = rest if last else (self._rounded(rest[0]), self._rounded(rest[1]))
            below = self(f"arith.shrui {tops[0]}, {self.sixteen} : {WORDS}")
            above = self(f"arith.andi {tops[1]}, {self.high} : {WORDS}")
            word = self(f"arith.ori {below}, {above} : {WORDS}")
            self.write(word, self.at(to, part * PART), WORDS, ROW, None)
            if not last:
                rest = self._less(rest[0], tops[0]), self._less(rest[1], tops[1])

    def _rounded(self, x: str) -> str:
        """The nearest bfloat16, as bits of a float32."""
        return self(
            f"arith.andi {self(f'arith.addi {x}, {self.half} : {WORDS}')}, {self.high} : {WORDS}"
        )

    def _less(self, x: str, y: str) -> str:
        """x - y, of bits of float32 values."""
        x, y = (self(f"vector.bitcast {v} : {WORDS} to {VECTOR}") for v in (x, y))
        return self(
            f"vector.bitcast {self(f'arith.subf {x}, {y} : {VECTOR}')} : {VECTOR} to {WORDS}"
        )

    def row(self, k: str, tile: str | int, row: str | int) -> str:
        """The address of a row of words of the first part."""
        chunk = self.mul(self.binary("divui", k, PADDED), self.whole)
        beside = self.mul(self.add(tile, 0), self.tile)
        return self.at("%to", self.add(chunk, beside, self.mul(self.add(row, 0), ROW)))

    def some(self, low: str, high: str, seen: list[str], body: Body) -> list[str]:
        """A loop that carries the range of values."""
        return self.loop(low, high, 1, [(x, WORDS) for x in seen], body)

    def along_k(self, at: str, k: str) -> Elements:
        """32 elements of a lane from position k on, at an address."""
        left = self.sub("%k_size", k)
        if self.item == ITEM:
            masks = [self._first(self.sub(left, n * LANES), LANES) for n in (0, 1)]
            found = [self.read(self.at(at, n * ROW), WORDS, ITEM, m) for n, m in enumerate(masks)]
            return tuple(found)
        halves = self.read(at, HALVES, self.item, self._first(left, 2 * LANES))
        return (self(f"vector.bitcast {halves} : {HALVES} to {WORDS}"),)

    def across(self, at: str, k: str, i: str, lanes: str) -> Elements:
        """The elements of K that row i of a tile has, of 16 lanes. at: the first lane's address. lanes: a mask."""
        whole = self.item == ITEM
        first = self.add(k, i) if whole else self.add(k, self.mul(i, 2))
        found = []
        for position in (first, self.add(first, LANES if whole else 1)):
            inside = self.compare("slt", position, "%k_size")
            every = self(f"vector.broadcast {inside} : i1 to vector<{LANES}xi1>")
            both = self(f"arith.andi {lanes}, {every} : vector<{LANES}xi1>")
            here = self.at(at, self.mul(position, "%k_stride"))
            self.prefetch(self.at(here, "%ahead"))
            ty = WORDS if whole else HALF
            found.append(self.read(here, ty, self.item, both))
        if whole:
            return tuple(found)
        return (joined(self, *found),)

    def _first(self, count: str, lanes: int) -> str:
        """A mask of so many lanes, of none or all at most."""
        return self.first_lanes(self.at_least(self.at_most(count, lanes), 0), lanes)


@cache
def pack(name: str, order: str, side: str, parts: int, item: int) -> str:
    """The text of the function `name` that packs a panel of 32 lanes of an operand whose `order` is contiguous.

    The arguments are those of `panels.pack`. Lanes beyond the operand are zeros or repeat the last lane, and K is
    padded with zeros to a multiple of 32.

    Args:
        order: "k" or "lanes".
        side: "a" or "b".
        parts: 3, or 1 if the values are bfloat16 values.
        item: bytes of an element in memory: 4, or 2 for bfloat16.
    """
    e = _Panel(parts, item)
    last = e.sub("%lanes", 1)

    def along_k(k: str, tile: str) -> Callable[[str], Elements]:
        def load(i: str) -> Elements:
            lane = e.at_most(e.add(e.mul(tile, LANES), i), last)
            at = e.at("%from", e.add(e.mul(lane, "%lane"), e.mul(k, item)))
            e.prefetch(e.at(at, 4 * ROW))
            return e.along_k(at, k)

        return load

    def across(k: str, tile: str) -> Callable[[str], Elements]:
        mask = e._first(e.sub("%lanes", e.mul(tile, LANES)), LANES)
        at = e.at("%from", e.mul(tile, LANES * item))
        return lambda i: e.across(at, k, i, mask)

    rows = along_k if order == "k" else across
    turned = (order == "k") != (side == "a")
    return e.made(name, _chunk(e, rows, turned))


def _chunk(e: _Panel, rows: Callable[[str, str], Callable[[str], Elements]], turned: bool) -> Body:
    """The body of the loop over K. rows: loads of 32 elements of K and a tile. turned: they are transposed."""
    kept = ""
    if turned:  # on the stack: the text is a third of that with unrolled rows, and takes less time to compile
        size = e.i64(2 * PART)
        kept = e(f"llvm.alloca {size} x i8 {{alignment = 64 : i64}} : (i64) -> !llvm.ptr")

    def tile(k: str) -> Body:
        def write(t: str, seen: list[str]) -> list[str]:
            load = rows(k, t)
            if not turned:

                def row(i: str, seen: list[str]) -> list[str]:
                    return e.put(load(i), e.row(k, t, i), seen)

                return e.some(e.i64(0), e.i64(LANES), seen, row)
            given = [load(e.i64(i)) for i in range(LANES)]
            for n, block in enumerate(zip(*given)):
                for i, column in enumerate(transposed(e, list(block))):
                    e.write(column, e.at(kept, n * PART + i * ROW), WORDS, ROW, None)

            def row_of_columns(i: str, seen: list[str]) -> list[str]:
                at = e.at(kept, e.mul(i, ROW))
                found = [e.read(e.at(at, n * PART), WORDS, ROW, None) for n in range(len(given[0]))]
                return e.put(tuple(found), e.row(k, t, i), seen)

            return e.some(e.i64(0), e.i64(LANES), seen, row_of_columns)

        return write

    return lambda k, seen: e.some(e.i64(0), e.i64(BESIDE), seen, tile(k))


@cache
def gather(name: str, parts: int, item: int) -> str:
    """The text of the function `name` that packs a panel of 32 patches of a channels-last activation, as rows of A.

    The arguments are those of `panels.gather`, others those of `pack`.
    """
    e = _Panel(parts, item)
    words = e("llvm.inttoptr %ahead : i64 to !llvm.ptr")
    w = {n: e(f"llvm.load {e.at(words, 8 * i)} : !llvm.ptr -> i64") for i, n in enumerate(WINDOWS)}
    count = e.i64(3 * AMX_LANES)
    table = e(f"llvm.alloca {count} x i64 {{alignment = 64 : i64}} : (i64) -> !llvm.ptr")
    last = e.sub("%lanes", 1)

    def origin(i: str) -> None:
        """Keep the first element of a lane's patch, and the patch's first row and column."""
        rest, wo = e.split(e.add("%lane", e.at_most(i, last)), w["wo"])
        n, ho = e.split(rest, w["ho"])
        top, left = e.sub(e.mul(ho, w["sh"]), w["ph"]), e.sub(e.mul(wo, w["sw"]), w["pw"])
        row = e.add(e.mul(e.add(e.mul(n, w["h"]), top), w["w"]), left)
        for number, x in enumerate((e.mul(row, w["c"], item), top, left)):
            e.line(
                f"llvm.store {x}, {e.at(table, e.add(e.mul(i, 24), 8 * number))} : i64, !llvm.ptr"
            )

    e.repeat(0, e.i64(AMX_LANES), 1, origin)

    def rows(k: str, tile: str) -> Callable[[str], Elements]:
        tap, channel = e.split(e.add("%k_stride", k), w["c"])
        kh, kw = e.split(tap, w["kw"])
        down, right = e.mul(kh, w["dh"]), e.mul(kw, w["dw"])
        offset = e.mul(e.add(e.mul(e.add(e.mul(down, w["w"]), right), w["c"]), channel), item)

        def load(i: str) -> Elements:
            lane = e.at(table, e.mul(e.add(e.mul(tile, LANES), i), 24))
            start, top, left = (
                e(f"llvm.load {e.at(lane, 8 * n)} : !llvm.ptr -> i64") for n in range(3)
            )
            inside = [e.within(e.add(top, down), w["h"]), e.within(e.add(left, right), w["w"])]
            both = e(f"arith.andi {inside[0]}, {inside[1]} : i1")
            mask = e(f"vector.broadcast {both} : i1 to vector<{LANES}xi1>")
            at = e.at("%from", e.add(start, offset))
            if item == ITEM:
                return tuple(e.read(e.at(at, n * ROW), WORDS, ITEM, mask) for n in (0, 1))
            return (e.read(at, WORDS, item, mask),)

        return load

    return e.made(name, _chunk(e, rows, False))
