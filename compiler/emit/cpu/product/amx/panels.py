"""Packing for tiles of bfloat16 products (Intel AMX): float32 values as sums of three bfloat16 values.

    x = x₁ + x₂ + x₃,    x₁ = bf16(x),  x₂ = bf16(x - x₁),  x₃ = x - x₁ - x₂

The sum is exact, since three times 8 bits hold the 24 bits of a float32. A panel has 32 lanes (rows of A or columns of
B) in two tiles of 16. For each 32 elements of K, tile and part there are 16 × 16 words; a word holds elements i and
i + 16 of K. Rows of A's words are lanes, rows of B's are the positions i:

    A    panel[K / 32][tile][part][lane][i]        B    panel[K / 32][tile][part][i][lane]

A panel ends with three integers: the least and the largest biased exponent of its values, zeros excepted, and whether
it is `raw`. A panel with an infinity, a NaN or a value whose parts are no normal numbers is raw: it holds float32
values, elements i in the words of part 1, elements i + 16 in those of part 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from gflow.compiler.kernel.blocks import AMX_LANES, PADDED, PARTS

from ...language.transpose import transposed
from ..function import ITEM, LANES, VECTOR, Function
from ..panels import ARGUMENTS, WINDOWS

WORDS = f"vector<{LANES}xi32>"

#: bytes of a row of a tile, of one part of a tile, of a tile, and of a panel for 32 elements of K
ROW = LANES * ITEM
PART = LANES * ROW
TILE = PARTS * PART
CHUNK = AMX_LANES // LANES * TILE

#: biased exponents: below the first, x₃ might be denormal; from the second on, x₁ might be infinite
_LEAST, _MOST = 19, 254

Pair = tuple[str, str]


class _Panel(Function):
    """The text of a packing function. `chunk` writes 32 elements of K."""

    def __init__(self) -> None:
        super().__init__()
        self.high = self.const(-65536, WORDS)  # the bits of a bfloat16 within a float32
        self.half = self.const(1 << 15, WORDS)
        self.sixteen = self.const(16, WORDS)
        self.one = self.const(1, WORDS)

    def made(self, name: str, chunks: Callable[[bool], Pair]) -> str:
        """The function's text. chunks: packs the panel, raw or not, and returns the ranges of its values."""
        low, high = chunks(False)
        least, most = (self._exponent(how, x) for how, x in (("minui", low), ("maxui", high)))
        ends = [self.compare("slt", least, _LEAST), self.compare("sge", most, _MOST)]
        bad = self(f"arith.ori {ends[0]}, {ends[1]} : i1")
        end = self.at("%to", self.mul(self.granules("%k_size", PADDED), CHUNK))
        raw = self(f"arith.extui {bad} : i1 to i64")
        for n, number in enumerate((least, most, raw)):
            self.line(f"llvm.store {number}, {self.at(end, 8 * n)} : i64, !llvm.ptr")
        self.branch(bad, lambda: (chunks(True), None)[1])
        return self.function(name, ARGUMENTS)

    def _exponent(self, how: str, x: str) -> str:
        found = self(f"vector.reduction <{how}>, {x} : {WORDS} into i32")
        wide = self(f"arith.extui {found} : i32 to i64")
        return self.binary("shrui", wide, 24)

    def chunks(self, raw: bool, body: Callable[[str, list[str]], list[str]]) -> Pair:
        """A loop over K, 32 elements at a time, which carries the range of values."""
        start = [self.const(-1, WORDS), self.const(0, WORDS)]
        found = self.loop(0, "%k_size", PADDED, [(x, WORDS) for x in start], body)
        return found[0], found[1]

    def put(self, raw: bool, pair: Pair, to: str, seen: list[str]) -> list[str]:
        """Write one row of words of each part. pair: elements i and i + 16. seen: the range of values so far."""
        if raw:
            for n, x in enumerate(pair):
                self.write(x, self.at(to, n * PART), WORDS, ROW, None)
            return seen
        low, high = seen
        for x in pair:
            doubled = self(f"arith.addi {x}, {x} : {WORDS}")  # without the sign
            high = self(f"arith.maxui {high}, {doubled} : {WORDS}")
            before = self(f"arith.subi {doubled}, {self.one} : {WORDS}")  # zeros become the largest
            low = self(f"arith.minui {low}, {before} : {WORDS}")
        rest = pair
        for part in range(PARTS):
            last = part == PARTS - 1
            tops = rest if last else (self._rounded(rest[0]), self._rounded(rest[1]))
            below = self(f"arith.shrui {tops[0]}, {self.sixteen} : {WORDS}")
            word = self(f"arith.ori {below}, {tops[1]} : {WORDS}")
            self.write(word, self.at(to, part * PART), WORDS, ROW, None)
            if not last:
                rest = self._less(rest[0], tops[0]), self._less(rest[1], tops[1])
        return [low, high]

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
        chunk = self.mul(self.binary("divui", k, PADDED), CHUNK)
        return self.at(
            "%to",
            self.add(chunk, self.mul(self.add(tile, 0), TILE), self.mul(self.add(row, 0), ROW)),
        )

    def some(
        self, low: str, high: str, seen: list[str], body: Callable[[str, list[str]], list[str]]
    ) -> list[str]:
        """A loop that carries the range of values."""
        return self.loop(low, high, 1, [(x, WORDS) for x in seen], body)

    def left(self, k: str) -> list[str]:
        """The masks of elements k … k + 15 and k + 16 … k + 31 of K."""
        found = []
        for first in (0, LANES):
            left = self.sub("%k_size", self.add(k, first))
            found.append(self.first_lanes(self.at_least(self.at_most(left, LANES), 0), LANES))
        return found


@cache
def pack(name: str, order: str, side: str) -> str:
    """The text of the function `name` that packs a panel of 32 lanes of an operand whose `order` is contiguous.

    The arguments are those of `panels.pack`. Lanes beyond the operand are zeros or repeat the last lane, and K is
    padded with zeros to a multiple of 32.

    Args:
        order: "k" or "lanes".
        side: "a" or "b".
    """
    e = _Panel()
    if order == "k":
        last = e.sub("%lanes", 1)

        def line(lane: str) -> str:
            return e.at("%from", e.mul(e.at_most(lane, last), "%lane"))

        def rows(k: str, tile: str) -> Callable[[str], Pair]:
            masks, offset = e.left(k), e.mul(k, ITEM)

            def load(i: str) -> Pair:
                at = e.at(line(e.add(e.mul(tile, LANES), i)), offset)
                e.prefetch(e.at(at, 4 * ROW))
                first, second = (
                    e.read(e.at(at, n * ROW), WORDS, ITEM, mask) for n, mask in enumerate(masks)
                )
                return first, second

            return load
    else:

        def rows(k: str, tile: str) -> Callable[[str], Pair]:
            here = e.sub("%lanes", e.mul(tile, LANES))
            mask = e.first_lanes(e.at_least(e.at_most(here, LANES), 0), LANES)

            def load(i: str) -> Pair:
                found = []
                for first in (0, LANES):
                    position = e.add(k, i, first)
                    inside = e.compare("slt", position, "%k_size")
                    every = e(f"vector.broadcast {inside} : i1 to vector<{LANES}xi1>")
                    both = e(f"arith.andi {mask}, {every} : vector<{LANES}xi1>")
                    at = e.at("%from", e.add(e.mul(position, "%k_stride"), e.mul(tile, ROW)))
                    e.prefetch(e.at(at, "%ahead"))
                    found.append(e.read(at, WORDS, ITEM, both))
                return found[0], found[1]

            return load

    turned = (order == "k") != (side == "a")
    return e.made(name, lambda raw: e.chunks(raw, _chunk(e, raw, rows, turned)))


def _chunk(
    e: _Panel, raw: bool, rows: Callable[[str, str], Callable[[str], Pair]], turned: bool
) -> Callable[[str, list[str]], list[str]]:
    """The body of the loop over K. rows: loads of 32 elements of K and a tile. turned: they are transposed."""

    def tile(k: str) -> Callable[[str, list[str]], list[str]]:
        def write(t: str, seen: list[str]) -> list[str]:
            load = rows(k, t)
            if not turned:

                def row(i: str, seen: list[str]) -> list[str]:
                    return e.put(raw, load(i), e.row(k, t, i), seen)

                return e.some(e.i64(0), e.i64(LANES), seen, row)
            given = [load(e.i64(i)) for i in range(LANES)]
            first, second = (transposed(e, [pair[n] for pair in given]) for n in (0, 1))
            for i, pair in enumerate(zip(first, second)):
                seen = e.put(raw, pair, e.row(k, t, i), seen)
            return seen

        return write

    return lambda k, seen: e.some(e.i64(0), e.i64(AMX_LANES // LANES), seen, tile(k))


@cache
def gather(name: str) -> str:
    """The text of the function `name` that packs a panel of 32 patches of a channels-last activation, as rows of A.

    The arguments are those of `panels.gather`.
    """
    e = _Panel()
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
        for number, x in enumerate((e.mul(row, w["c"], ITEM), top, left)):
            e.line(
                f"llvm.store {x}, {e.at(table, e.add(e.mul(i, 24), 8 * number))} : i64, !llvm.ptr"
            )

    e.repeat(0, e.i64(AMX_LANES), 1, origin)

    def rows(k: str, tile: str) -> Callable[[str], Pair]:
        tap, channel = e.split(e.add("%k_stride", k), w["c"])
        kh, kw = e.split(tap, w["kw"])
        down, right = e.mul(kh, w["dh"]), e.mul(kw, w["dw"])
        offset = e.mul(e.add(e.mul(e.add(e.mul(down, w["w"]), right), w["c"]), channel), ITEM)

        def load(i: str) -> Pair:
            lane = e.at(table, e.mul(e.add(e.mul(tile, LANES), i), 24))
            start, top, left = (
                e(f"llvm.load {e.at(lane, 8 * n)} : !llvm.ptr -> i64") for n in range(3)
            )
            inside = [e.within(e.add(top, down), w["h"]), e.within(e.add(left, right), w["w"])]
            both = e(f"arith.andi {inside[0]}, {inside[1]} : i1")
            mask = e(f"vector.broadcast {both} : i1 to vector<{LANES}xi1>")
            at = e.at("%from", e.add(start, offset))
            first, second = (e.read(e.at(at, n * ROW), WORDS, ITEM, mask) for n in (0, 1))
            return first, second

        return load

    return e.made(name, lambda raw: e.chunks(raw, _chunk(e, raw, rows, False)))
