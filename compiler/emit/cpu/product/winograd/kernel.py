"""The loops of a convolution by Winograd's algorithm F(2×2, 3×3), for any depth of the kernel in front of 3×3.

    pack and transform the weight: u[16][strips of columns][K]  (K = depth × channels; all threads together)
    for blocks of tiles                                 (2×2 results; a free thread takes the next block)
        v[16][tiles of the block][K] = transformed input
        for strips of columns
            m[16][tiles][columns of the strip] = v u    (register tiles; sums of 16 products at a time, or of 32 in all)
            for runs of tiles in a row of the image
                transform m, then store, or run the epilogue on two rows of results

Short sums keep the errors of a convolution summed in blocks, as PyTorch's are: the transforms add rounding of their
own. Where a tile of results has an infinity or a NaN, the tile is computed again by multiply-adds:
the transforms mix infinities of different windows, and may overflow where the convolution does not.
"""

from __future__ import annotations

from functools import cache

from gflow.compiler.kernel.blocks import WINOGRAD_RUN

from ..function import ITEM, LANES, VECTOR
from ..packed import weights
from ..packed.windows import WORD
from ..tile import FINISH_TYPES
from ..tile import TYPES as TILE_TYPES
from . import transforms
from .base import WinogradFunction

#: the function's arguments. images, d, h, w_: sizes of the result; di, hi, wi: of the input; depth: of the kernel;
#: fd, fh, fw: position 0 of the result reads from there on; flipped: it is the gradient of an input, so the kernel is
#: read backwards, and nothing outside of the input is multiplied; tiles_h, tiles_w: tiles of an image; block: tiles of
#: a block. lane, channel, pack: as in `packed/kernel.py`; tap: bytes between taps that are packed one by one, 0: all at
#: once. v_row, m_row: bytes between tiles; v_size, m_size: bytes of one of the 16; strip: bytes of packed taps of a
#: strip; u_strip: bytes of a transformed strip, one of 16; packed, u: bytes of all strips; zeros: bytes of a position;
#: each: bytes of a thread
WORDS = (
    *("x", "w", "y", "scratch", "tile", "finish", "pack", "next"),
    *("n", "channels", "images", "d", "h", "w_", "di", "hi", "wi", "depth", "fd", "fh", "fw", "flipped"),
    *("tiles_h", "tiles_w", "block", "mr", "nr", "row", "lane", "channel", "tap"),
    *("v_row", "m_row", "v_size", "m_size", "strip", "u_strip", "packed", "u", "zeros", "each"),
)  # fmt: skip
_POINTERS, _FUNCTIONS = WORDS[:4], WORDS[4:7]


#: positions of a tile of the input and of results along a dimension
_IN, _OUT = range(4), range(2)


@cache
def function(name: str, vectors: int) -> str:
    """The text of the function `name`. vectors: of columns in a strip."""
    return _Winograd(vectors).function(name)


class _Winograd(WinogradFunction):
    def __init__(self, vectors: int) -> None:
        super().__init__()
        self.vectors = vectors
        w = self.w = self.words_by_name(WORDS, _POINTERS, _FUNCTIONS)
        self.next = self.at("%w", WORD * WORDS.index("next"))
        self.words = self.at("%w", WORD * len(WORDS))
        self.null = self("llvm.mlir.zero : !llvm.ptr")
        self.finishes = self(f'llvm.icmp "ne" {w["finish"]}, {self.null} : !llvm.ptr')
        self.me, self.team = self.thread("thread_num"), self.thread("num_threads")
        self.strips = self.granules(w["n"], w["nr"])
        self.k = self.mul(w["depth"], w["channels"])
        self.u = self.at(w["scratch"], w["packed"])
        own = self.at(self.at(self.u, w["u"]), self.mul(self.me, w["each"]))
        self.zeros = own
        self.v = self.at(own, w["zeros"])
        self.m = self.at(self.v, self.mul(w["v_size"], 16))
        self.held = self.at(self.m, self.mul(w["m_size"], 16))
        self.clear(self.zeros, w["zeros"])
        self.repeat(self.me, self.strips, self.team, self._weights)
        self.branch(self.compare("sgt", self.team, 1), self.barrier)
        self.tiles = self.mul(w["images"], w["d"], w["tiles_h"], w["tiles_w"])
        count = self.granules(self.tiles, w["block"])
        one = self.i64(1)
        self.all_shares(self.next, count, one, lambda block, _side, _before: self._block(block))

    # -- weights

    def _weights(self, s: str) -> None:
        """Pack and transform a strip of columns."""
        w = self.w
        j = self.mul(s, w["nr"])
        lanes = self.at_most(self.sub(w["n"], j), w["nr"])
        packed = self.at(w["scratch"], self.mul(s, w["strip"]))
        source = self.at(w["w"], self.mul(j, w["lane"]))
        taps, tap = self.mul(w["depth"], 9), self.mul(w["channels"], w["nr"], ITEM)

        def pack(at: str, to: str, channels: str, taps: str) -> None:
            arguments = (at, to, w["lane"], w["channel"], lanes, channels, taps)
            self.call(w["pack"], ", ".join(arguments), weights.TYPES)

        def one(t: str) -> None:
            at, to = self.at(source, self.mul(t, w["tap"])), self.at(packed, self.mul(t, tap))
            channels = w["channels"]
            pack(at, to, self.choose(flipped, channels, 1), self.choose(flipped, 1, channels))

        flipped = self.compare("ne", w["flipped"], 0)
        self.branch(
            self.compare("ne", w["tap"], 0),
            lambda: self.repeat(0, taps, 1, one),
            lambda: pack(source, packed, w["channels"], taps),
        )
        target = self.at(self.u, self.mul(s, w["u_strip"]))
        between = self.mul(w["u_strip"], self.strips)

        def slices(z: str) -> None:
            from_z = self.choose(flipped, self.sub(self.sub(w["depth"], 1), z), z)
            first = self.at(packed, self.mul(from_z, tap, 9))
            lines = []
            for t in range(9):
                lines.append(self.at(first, self.mul(self.choose(flipped, 8 - t, t), tap)))
            to = self.at(target, self.mul(z, tap))

            def columns(at: str) -> None:
                g = [self.load(self.at(line, at)) for line in lines]
                made = transforms.of_weight(self, [g[3 * i : 3 * i + 3] for i in range(3)])
                for n, x in enumerate(x for row in made for x in row):
                    self.store(x, self.at(self.at(to, self.mul(between, n)), at))

            self.repeat(0, tap, LANES * ITEM, columns)

        self.repeat(0, w["depth"], 1, slices)

    # -- tiles

    def _block(self, block: str) -> None:
        w = self.w
        first = self.mul(block, w["block"])
        count = self.at_most(self.sub(self.tiles, first), w["block"])
        self.repeat(0, count, 1, lambda t: self._input(self.add(first, t), t))
        self.repeat(0, self.strips, 1, lambda s: self._strip(s, first, count))

    def _input(self, t: str, to: str) -> None:
        """Transform the input of a tile. to: its number in the block."""
        w = self.w
        image, d, th, tw = self.place(t)
        top, left = self.add(self.mul(th, 2), w["fh"]), self.add(self.mul(tw, 2), w["fw"])
        target = self.at(self.v, self.mul(to, w["v_row"]))

        def slices(z: str) -> None:
            lines = self._positions(image, self.add(d, w["fd"], z), top, left)
            here = self.at(target, self.mul(z, w["channels"], ITEM))

            def channels(c: str) -> None:
                at = self.mul(c, ITEM)
                inside = self.first_lanes(self.at_most(self.sub(w["channels"], c), LANES), LANES)
                given = [[self.load(self.at(line, at), inside) for line in row] for row in lines]
                made = transforms.of_input(self, given)
                for n, x in enumerate(x for row in made for x in row):
                    self.store(x, self.at(self.at(here, self.mul(w["v_size"], n)), at))

            self.repeat(0, w["channels"], LANES, channels)  # beyond the channels are zeros

        self.repeat(0, w["depth"], 1, slices)

    def _positions(self, image: str, depth: str, top: str, left: str) -> list[list[str]]:
        """The addresses of a 4×4 tile of the input; those outside of it are zeros."""
        w = self.w
        deep = self.within(depth, w["di"])
        plane = self.mul(self.add(self.mul(image, w["di"]), depth), w["hi"])
        found = []
        for i in _IN:
            h = self.add(top, i)
            row_there = self.both(deep, self.within(h, w["hi"]))
            line = self.mul(self.add(plane, h), w["wi"])
            row = []
            for j in _IN:
                x = self.add(left, j)
                there = self.both(row_there, self.within(x, w["wi"]))
                at = self.at(w["x"], self.mul(self.add(line, x), w["channels"], ITEM))
                row.append(self(f"arith.select {there}, {at}, {self.zeros} : !llvm.ptr"))
            found.append(row)
        return found

    # -- products

    def _strip(self, s: str, first: str, count: str) -> None:
        w = self.w
        between = self.mul(w["u_strip"], self.strips)
        b = self.at(self.u, self.mul(s, w["u_strip"]))
        none, line = self.i64(0), self.mul(w["nr"], ITEM)

        def one(n: str) -> None:
            v, m = (
                self.at(self.v, self.mul(n, w["v_size"])),
                self.at(self.m, self.mul(n, w["m_size"])),
            )
            u = self.at(b, self.mul(n, between))

            def rows(i: str) -> None:
                left = self.at_most(self.sub(count, i), w["mr"])
                a, c = self.at(v, self.mul(i, w["v_row"])), self.at(m, self.mul(i, w["m_row"]))
                arguments = (a, u, line, self.k, c, w["m_row"], left, w["nr"], none, self.null, self.null, none, none,
                             w["v_row"])  # fmt: skip
                self.call(w["tile"], ", ".join(arguments), TILE_TYPES)

            self.repeat(0, count, w["mr"], rows)

        self.repeat(0, self.i64(16), 1, one)
        self._results(s, first, count)

    # -- results

    def _results(self, s: str, first: str, count: str) -> None:
        """Transform and store the results of a strip, a run of tiles beside each other at a time."""
        w = self.w
        begin, t = self.fresh("t"), self.fresh("t")
        zero = self.i64(0)
        self.line(f"{begin} = scf.while ({t} = {zero}) : (i64) -> i64 {{")
        with self.indented():
            self.line(f"scf.condition({self.compare('slt', t, count)}) {t} : i64")
        self.line("} do {")
        now = self.fresh("t")
        self.line(f"^bb0({now}: i64):")
        with self.indented():
            tile = self.add(first, now)
            image, d, th, tw = self.place(tile)
            run = self.at_most(
                self.at_most(self.sub(w["tiles_w"], tw), self.sub(count, now)), WINOGRAD_RUN
            )
            self._run(s, now, run, (image, d, th, tw))
            self.line(f"scf.yield {self.add(now, run)} : i64")
        self.line("}")

    def _run(self, s: str, t: str, run: str, place: tuple[str, str, str, str]) -> None:
        w = self.w
        image, d, th, tw = place
        line, rest = (
            self.mul(w["nr"], ITEM),
            self.at_most(self.sub(w["n"], self.mul(s, w["nr"])), w["nr"]),
        )
        half = self.mul(line, 2 * WINOGRAD_RUN)

        def tile(n: str) -> None:
            m = self.at(self.m, self.mul(self.add(t, n), w["m_row"]))
            held = self.at(self.held, self.mul(n, line, 2))
            bad = self.const(0.0, VECTOR)
            for v in range(self.vectors):
                at = v * LANES * ITEM
                given = [
                    [
                        self.load(self.at(self.at(m, self.mul(w["m_size"], 4 * i + j)), at))
                        for j in _IN
                    ]
                    for i in _IN
                ]
                for i, row in enumerate(transforms.of_result(self, given)):
                    for j, x in enumerate(row):
                        to = self.at(self.at(held, self.mul(line, j)), self.mul(half, i))
                        self.store(x, self.at(to, at))
                        bad = self.plus_zero_times(x, bad)
            where = (image, d, th, self.add(tw, n))
            self.branch(self.is_nan(bad), lambda: self._again(s, held, half, where))

        self.repeat(0, run, 1, tile)
        column = self.mul(s, w["nr"])
        left = self.mul(tw, 2)
        count = self.at_most(self.mul(run, 2), self.sub(w["w_"], left))
        for i in _OUT:
            top = self.add(self.mul(th, 2), i)
            rows = self.add(self.mul(self.add(self.mul(image, w["d"]), d), w["h"]), top)
            position = self.add(self.mul(rows, w["w_"]), left)
            held = self.at(self.held, self.mul(half, i))

            def finish(held: str = held, position: str = position) -> None:
                arguments = f"{self.words}, {held}, {position}, {column}, {count}, {rest}"
                self.call(w["finish"], arguments, FINISH_TYPES)

            def store(held: str = held, position: str = position) -> None:
                y = self.at(w["y"], self.add(self.mul(position, w["row"]), self.mul(column, ITEM)))
                self.repeat(0, count, 1, lambda r: self._copy(
                    self.at(held, self.mul(r, line)), self.at(y, self.mul(r, w["row"])), rest
                ))  # fmt: skip

            self.branch(
                self.compare("slt", top, w["h"]),
                lambda finish=finish, store=store: self.branch(self.finishes, finish, store),  # type: ignore[misc]
            )

    def _copy(self, source: str, to: str, columns: str) -> None:
        for v in range(self.vectors):
            mask = self.first_lanes(
                self.at_most(self.at_least(self.sub(columns, v * LANES), 0), LANES), LANES
            )
            at = v * LANES * ITEM
            self.store(self.load(self.at(source, at)), self.at(to, at), mask)

    # -- numbers that are not finite

    def _again(self, s: str, held: str, half: str, place: tuple[str, str, str, str]) -> None:
        """Compute a tile of results by multiply-adds. Outside of the input a weight is multiplied by zero, unless the
        convolution is a gradient."""
        w = self.w
        image, d, th, tw = place
        line, tap = self.mul(w["nr"], ITEM), self.mul(w["channels"], w["nr"], ITEM)
        packed = self.at(w["scratch"], self.mul(s, w["strip"]))
        flipped = self.compare("ne", w["flipped"], 0)
        kept = self.compare("eq", w["flipped"], 0)
        zeros = [(self.const(0.0, VECTOR), VECTOR)] * self.vectors

        def result(n: str) -> None:
            i, j = self.split(n, self.i64(2))
            top = self.add(self.mul(th, 2), i, w["fh"])
            left = self.add(self.mul(tw, 2), j, w["fw"])

            def taps(t: str, sums: list[str]) -> list[str]:
                z, rest = self.split(t, self.i64(9))
                kh, kw = self.split(rest, self.i64(3))
                depth, h, x = self.add(d, w["fd"], z), self.add(top, kh), self.add(left, kw)
                inside = self.both(self.within(depth, w["di"]), self.within(h, w["hi"]))
                inside = self.both(inside, self.within(x, w["wi"]))
                plane = self.add(self.mul(image, w["di"]), depth)
                pixel = self.add(self.mul(self.add(self.mul(plane, w["hi"]), h), w["wi"]), x)
                at = self.at(w["x"], self.mul(pixel, w["channels"], ITEM))
                at = self(f"arith.select {inside}, {at}, {self.zeros} : !llvm.ptr")
                last = self.sub(self.mul(w["depth"], 9), 1)
                own = self.choose(flipped, self.sub(last, t), t)
                row = self.at(packed, self.mul(own, tap))
                some = self(f"arith.ori {inside}, {kept} : i1")

                def add(c: str, sums: list[str]) -> list[str]:
                    x = self(f"llvm.load {self.at(at, self.mul(c, ITEM))} : !llvm.ptr -> f32")
                    wide = self(f"vector.broadcast {x} : f32 to {VECTOR}")
                    b = self.at(row, self.mul(c, line))
                    return [
                        self(f"math.fma {wide}, {self.load(self.at(b, v * LANES * ITEM))}, {total} : {VECTOR}")
                        for v, total in enumerate(sums)
                    ]  # fmt: skip

                high = self.choose(some, w["channels"], 0)
                return self.loop(0, high, 1, [(x, VECTOR) for x in sums], add)

            found = self.loop(0, self.mul(w["depth"], 9), 1, zeros, taps)
            to = self.at(self.at(held, self.mul(line, j)), self.mul(half, i))
            for v, x in enumerate(found):
                self.store(x, self.at(to, v * LANES * ITEM))

        self.repeat(0, self.i64(4), 1, result)
