"""The gradient of a convolution's weight by Winograd's algorithm: that of F(2×2, 3×3) with respect to its weight.

    for shares                                          (tiles × rows of the 4×4 × output channels; a thread takes one)
        for blocks of tiles, for rows of the 4×4
            v[4][tiles][depth × inputs] = transformed input     d[4][tiles][outputs] = transformed gradient
            m[4][outputs][depth × inputs] += dᵀ v       (register tiles; sums of 16 products at a time)
    dw = transformed m                                  (all threads, after the last share)

Tiles are in two halves, each with sums of its own, and its blocks follow each other in one order: results do not depend
on the number of threads. Where results have an infinity or a NaN, they are computed again by multiply-adds, as in
`kernel.py`.
"""

from __future__ import annotations

from functools import cache

from ..function import ITEM, LANES, VECTOR
from ..packed.windows import WORD
from ..tile import TYPES as TILE_TYPES
from . import transforms
from .base import WinogradFunction

#: the function's arguments, as those of `kernel.py`. outputs, inputs: channels; half: tiles of a half; rows: rows of
#: the 4×4 of a share; beside: output channels of a share; parts: shares of such rows and a half; d_row: bytes between
#: tiles of d; m_row: bytes between output channels of m; m: bytes of a half's sums; zeros: bytes of a position of both
#: operands
WORDS = (
    *("x", "dy", "dw", "scratch", "tile", "next"),
    *("outputs", "inputs", "images", "d", "h", "w_", "di", "hi", "wi", "depth", "fd", "fh", "fw"),
    *("tiles_h", "tiles_w", "block", "half", "rows", "beside", "parts", "mr", "nr"),
    *("v_row", "d_row", "m_row", "v_size", "d_size", "m_size", "m", "zeros", "each"),
)  # fmt: skip
_POINTERS = WORDS[:4]

#: by row of the 4×4: the rows of the input's tile that it is made from, and the sign of the second
_INPUT = ((0, 2, -1.0), (1, 2, 1.0), (2, 1, -1.0), (1, 3, -1.0))
#: the same of the gradient's tile; row 2 is zeros
_GRADIENT = ((0, 2, 1.0), (0, 1, 1.0), (0, 1, -1.0), (2, 1, -1.0))


@cache
def function(name: str) -> str:
    """The text of the function `name`."""
    return _Gradient().function(name)


class _Gradient(WinogradFunction):
    def __init__(self) -> None:
        super().__init__()
        w = self.w = self.words_by_name(WORDS, _POINTERS, ("tile",))
        self.next = self.at("%w", WORD * WORDS.index("next"))
        self.null = self("llvm.mlir.zero : !llvm.ptr")
        self.me, self.team = self.thread("thread_num"), self.thread("num_threads")
        self.m = w["scratch"]
        self.zeros = self.at(self.at(self.m, self.mul(w["m"], 2)), self.mul(self.me, w["each"]))
        self.v = self.at(self.zeros, w["zeros"])
        self.d = self.at(self.v, self.mul(w["v_size"], 4))
        self.tiles = self.mul(w["images"], w["d"], w["tiles_h"], w["tiles_w"])
        self.columns = self.mul(w["depth"], w["inputs"])
        self.clear(self.zeros, w["zeros"])
        self.groups = self.binary("divui", self.i64(4), w["rows"])
        count = self.mul(w["parts"], self.groups, 2)
        self.all_shares(self.next, count, w["parts"], lambda rows, part, _: self._share(rows, part))
        self.branch(self.compare("sgt", self.team, 1), self.barrier)
        self.repeat(self.me, w["outputs"], self.team, self._results)

    # -- shares

    def _share(self, number: str, part: str) -> None:
        w = self.w
        half, group = self.split(number, self.groups)
        begin = self.mul(half, w["half"])
        end = self.at_most(self.add(begin, w["half"]), self.tiles)
        first_row = self.mul(group, w["rows"])
        sums = self.at(self.m, self.mul(half, w["m"]))
        low = self.mul(part, w["beside"])
        high = self.at_most(self.add(low, w["beside"]), w["outputs"])

        def block(first: str) -> None:
            count = self.at_most(self.sub(end, first), w["block"])
            more = self.choose(self.compare("sgt", first, begin), 1, 0)

            def one(row: str) -> None:
                self.repeat(
                    0, count, 1, lambda t: self._transform(row, self.add(first, t), t, low, high)
                )

                def products(n: str) -> None:
                    m = self.at(sums, self.mul(self.add(self.mul(row, 4), n), w["m_size"]))
                    self._products(n, m, low, high, count, more)

                self.repeat(0, self.i64(4), 1, products)

            self.repeat(first_row, self.add(first_row, w["rows"]), 1, one)

        self.repeat(begin, end, w["block"], block)

    def _chosen(self, row: str, of: tuple[tuple[int, int, float], ...]) -> tuple[str, str, str]:
        """The numbers of two rows and the sign of the second, by the row of the 4×4."""
        first, second, sign = (self.i64(of[0][0]), self.i64(of[0][1]), self.const(of[0][2], VECTOR))
        for n, (a, b, s) in enumerate(of[1:], 1):
            here = self.compare("eq", row, n)
            first, second = self.choose(here, a, first), self.choose(here, b, second)
            sign = self(f"arith.select {here}, {self.const(s, VECTOR)}, {sign} : {VECTOR}")
        return first, second, sign

    def _transform(self, row: str, t: str, to: str, low: str, high: str) -> None:
        """Transform a row of the 4×4 of one tile, of the input and of the gradient."""
        w = self.w
        image, d, th, tw = self.place(t)
        top, left = self.mul(th, 2), self.mul(tw, 2)
        first, second, sign = self._chosen(row, _INPUT)
        sizes = (w["di"], w["hi"], w["wi"])
        target = self.at(self.v, self.mul(to, w["v_row"]))

        def slices(z: str) -> None:
            lines = [
                [
                    self._position("x", image, (self.add(d, w["fd"], z), self.add(top, w["fh"], r),
                                                self.add(left, w["fw"], j)), sizes, w["inputs"])
                    for j in range(4)
                ]
                for r in (first, second)
            ]  # fmt: skip
            here = self.at(target, self.mul(z, w["inputs"], ITEM))

            def channels(c: str) -> None:
                at, inside = self.mul(c, ITEM), self._inside(c, w["inputs"])
                columns = [self._two(a, b, sign, at, inside) for a, b in zip(*lines)]
                for n, x in enumerate(transforms.along_input(self, columns)):
                    self.store(x, self.at(self.at(here, self.mul(w["v_size"], n)), at))

            self.repeat(0, w["inputs"], LANES, channels)

        self.repeat(0, w["depth"], 1, slices)
        first, second, sign = self._chosen(row, _GRADIENT)
        own = (w["d"], w["h"], w["w_"])
        lines = [
            [self._position("dy", image, (d, self._of_gradient(top, r), self.add(left, j)), own, w["outputs"])
             for j in range(2)]
            for r in (first, second)
        ]  # fmt: skip
        target = self.at(self.d, self.mul(to, w["d_row"]))

        def channels(c: str) -> None:
            at, inside = self.mul(c, ITEM), self._inside(c, w["outputs"])
            a, b = (self._two(one, two, sign, at, inside) for one, two in zip(*lines))
            for n, x in enumerate(transforms.along_gradient(self, (a, b))):
                self.store(x, self.at(self.at(target, self.mul(w["d_size"], n)), at))

        self.repeat(low, high, LANES, channels)

    def _of_gradient(self, top: str, r: str) -> str:
        """The position of row r of a gradient's tile; outside for row 2, which is zeros."""
        return self.choose(self.compare("eq", r, 2), -1, self.add(top, r))

    def _inside(self, c: str, count: str) -> str:
        """The lanes of a vector of channels that exist. c: the first one."""
        return self.first_lanes(self.at_most(self.sub(count, c), LANES), LANES)

    def _two(self, a: str, b: str, sign: str, at: str, inside: str) -> str:
        x, y = (self.load(self.at(line, at), inside) for line in (a, b))
        return self(f"math.fma {y}, {sign}, {x} : {VECTOR}")

    def _position(
        self, tensor: str, image: str, at: tuple[str, str, str], sizes: tuple[str, str, str], channels: str
    ) -> str:  # fmt: skip
        """The address of a position of an operand; zeros if it is outside."""
        there, place = "", image
        for x, size in zip(at, sizes):
            inside = self.within(x, size)
            there = self(f"arith.andi {there}, {inside} : i1") if there else inside
            place = self.add(self.mul(place, size), x)
        found = self.at(self.w[tensor], self.mul(place, channels, ITEM))
        return self(f"arith.select {there}, {found}, {self.zeros} : !llvm.ptr")

    def _products(self, n: str, m: str, low: str, high: str, count: str, more: str) -> None:
        w = self.w
        v, d = self.at(self.v, self.mul(n, w["v_size"])), self.at(self.d, self.mul(n, w["d_size"]))
        none = self.i64(0)

        def columns(j: str) -> None:
            offset = self.mul(j, ITEM)
            wide = self.at_most(self.sub(self.columns, j), w["nr"])
            b = self.at(v, offset)

            def rows(i: str) -> None:
                left = self.at_most(self.sub(high, i), w["mr"])
                c = self.at(self.at(m, self.mul(i, w["m_row"])), offset)
                arguments = (self.at(d, self.mul(i, ITEM)), b, w["v_row"], count, c, w["m_row"], left, wide, more,
                             self.null, self.null, none, none, w["d_row"])  # fmt: skip
                self.call(w["tile"], ", ".join(arguments), TILE_TYPES)

            self.repeat(low, high, w["mr"], rows)

        self.repeat(0, self.columns, w["nr"], columns)

    # -- results

    def _results(self, o: str) -> None:
        """Transform and store the gradient of an output channel's weights."""
        w = self.w
        halves = [
            self.at(self.at(self.m, self.mul(o, w["m_row"])), self.mul(w["m"], n)) for n in (0, 1)
        ]

        def slices(z: str) -> None:
            base = self.mul(self.add(self.mul(o, w["depth"]), z), 9)
            to = self.at(w["dw"], self.mul(base, w["inputs"], ITEM))

            def channels(c: str) -> None:
                at, inside = self.mul(c, ITEM), self._inside(c, w["inputs"])
                here = self.add(self.mul(z, w["inputs"], ITEM), at)
                given = []
                for n in range(16):
                    own = self.add(self.mul(w["m_size"], n), here)
                    given.append(
                        self.plus(*(self.load(self.at(half, own), inside) for half in halves))
                    )
                rows = [given[4 * i : 4 * i + 4] for i in range(4)]
                bad = self.const(0.0, VECTOR)
                for n, x in enumerate(x for row in transforms.of_gradient(self, rows) for x in row):
                    self.store(x, self.at(self.at(to, self.mul(w["inputs"], n * ITEM)), at), inside)
                    bad = self.plus_zero_times(x, bad)
                self.branch(self.is_nan(bad), lambda: self._again(o, z, at, to, inside))

            self.repeat(0, w["inputs"], LANES, channels)

        self.repeat(0, w["depth"], 1, slices)

    def _again(self, o: str, z: str, at: str, to: str, inside: str) -> None:
        """Sum the gradients of nine taps over all positions. Outside of the input, a gradient is multiplied by zero."""
        w = self.w
        sizes = (w["di"], w["hi"], w["wi"])
        positions = self.mul(w["images"], w["d"], w["h"], w["w_"])
        zeros = [(self.const(0.0, VECTOR), VECTOR)] * 9

        def add(p: str, sums: list[str]) -> list[str]:
            rest, x = self.split(p, w["w_"])
            rest, h = self.split(rest, w["h"])
            image, d = self.split(rest, w["d"])
            offset = self.mul(self.add(self.mul(p, w["outputs"]), o), ITEM)
            dy = self(f"llvm.load {self.at(w['dy'], offset)} : !llvm.ptr -> f32")
            wide = self(f"vector.broadcast {dy} : f32 to {VECTOR}")
            made = []
            for n, total in enumerate(sums):
                place = (
                    self.add(d, w["fd"], z),
                    self.add(h, w["fh"], n // 3),
                    self.add(x, w["fw"], n % 3),
                )
                line = self._position("x", image, place, sizes, w["inputs"])
                made.append(
                    self(
                        f"math.fma {wide}, {self.load(self.at(line, at), inside)}, {total} : {VECTOR}"
                    )
                )
            return made

        for n, total in enumerate(self.loop(0, positions, 1, zeros, add)):
            self.store(total, self.at(self.at(to, self.mul(w["inputs"], n * ITEM)), at), inside)
