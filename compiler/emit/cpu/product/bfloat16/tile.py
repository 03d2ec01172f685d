"""The register tile of products by Intel AMX: 32 × 32 sums of float32 products, each made from six of bfloat16 values.

    x y ≈ x₁y₁ + (x₁y₂ + x₂y₁) + (x₁y₃ + x₂y₂ + x₃y₁)

The parts of x and y are those of `panels.py`. The terms left out are at most 2⁻²³ of the product, as much as the
rounding of one multiply-add, and far less on average. AMX adds float32 sums of 32 products to an accumulator, so a
block of K rounds less often than a chain of multiply-adds. AMX takes denormal numbers for zeros, so the ranges of both
panels are looked at first: where a product might be denormal or overflow, or a panel is raw, the tile is computed by
float32 multiply-adds, from values that are put together again from their parts. So it is, too, on processors without
AMX that run a program which was made for one with it. Products of one part (of bfloat16 values) are sums of AVX-512's
dot products where there is no AMX (`dots.py`). (Henry, Tang, Heinecke: Leveraging the bfloat16 artificial intelligence
datatype for higher-precision computations, ARITH 2019.)
"""

from __future__ import annotations

from functools import cache

from gflow.compiler.kernel.blocks import AMX_LANES, PADDED
from gflow.dialects.program.processor import AMX_LINE, BF16_LINE

from ..function import ITEM, LANES, VECTOR, Function
from ..tile import ARGUMENTS, Tile
from . import dots
from .panels import BESIDE, PART, ROW
from .words import WORDS, values

#: bounds of the sum of both panels' biased exponents. From the first on, products and their parts are normal numbers;
#: up to the second, sums over 2²² of K are finite
_LEAST, _MOST = 155, 355

#: AMX's tile registers: four accumulators, two tiles of A, two of B
_SUMS, _A, _B = (0, 1, 2, 3), (4, 5), (6, 7)

#: by the number of parts, the terms (part of A, part of B). Loads of a part that is loaded already are left out; small
#: terms come first
_TERMS = {1: ((0, 0),), 3: ((0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0))}

#: the configuration of the tile registers, which have 16 rows of 64 bytes: palette 1, bytes of rows, rows
_CONFIGURATION = [1, 0, 0, 0, *[64 << 16 | 64] * 4, 0, 0, 0, 0, *[16 * 0x01010101] * 2, 0, 0]

#: rows of C that are prefetched with each 32 elements of K
_FETCHED = 4

#: rows whose sums are in registers at a time, without AMX
_ROWS = 4


@cache
def tile(name: str, parts: int) -> str:
    """The text of the function `name` that computes a tile; its arguments are those of `product/tile.py`.

    parts: of a value, three or one (bfloat16).
    """
    return _AmxTile(parts).function(name, ARGUMENTS)


@cache
def enter(name: str) -> str:
    """The text of the function `name` that configures the tile registers of a thread."""
    e = Function()
    at = e(f"llvm.alloca {e.i64(64)} x i8 {{alignment = 64 : i64}} : (i64) -> !llvm.ptr")
    e.write(e(f"arith.constant dense<{_CONFIGURATION}> : {WORDS}"), at, WORDS, 64, None)
    _amx(e, "ldtilecfg", at)
    return e.function(name, "")


@cache
def leave(name: str) -> str:
    """The text of the function `name` that releases the tile registers of a thread."""
    e = Function()
    _amx(e, "tilerelease")
    return e.function(name, "")


def _amx(e: Function, name: str, *arguments: str | int) -> None:
    """Write an intrinsic. Numbers are tile registers. Of other arguments the first is an address, then a row stride."""
    values = [e.const(x, "i8") if isinstance(x, int) else x for x in arguments]
    others = iter(("!llvm.ptr", "i64"))
    types = ["i8" if isinstance(x, int) else next(others) for x in arguments]
    call = f'"llvm.x86.{name}"({", ".join(values)}) : ({", ".join(types)}) -> ()'
    e.line(f"llvm.call_intrinsic {call} {AMX_LINE}")


class _AmxTile(Tile):
    def __init__(self, parts: int) -> None:
        super().__init__(AMX_LANES, AMX_LANES // LANES)
        self.parts = parts
        self.beside, self.whole = parts * PART, BESIDE * parts * PART
        self.raw: dict[str, str] = {}
        conditions = [self(f"arith.constant true {AMX_LINE}")]
        if parts > 1:
            end = self.mul(self.granules("%k_size", PADDED), self.whole)
            a, b = (self._range(self.at(panel, end)) for panel in ("%a", "%b"))
            self.raw = {"%a": a[2], "%b": b[2]}
            conditions += [
                self.compare("sge", self.add(a[0], b[0]), _LEAST),
                self.compare("sle", self.add(a[1], b[1]), _MOST),
                self.compare("eq", self.add(a[2], b[2]), 0),
            ]
        self.branch(self.all(*conditions), self._by_tiles, self._without_tiles)

    def _range(self, at: str) -> list[str]:
        """The least and the largest exponent of a panel, and whether it is raw."""
        return [self(f"llvm.load {self.at(at, 8 * n)} : !llvm.ptr -> i64") for n in range(3)]

    # -- AMX

    def _by_tiles(self) -> None:
        """Sum the tile by AMX. A complete tile that nothing follows is stored or added from here."""
        for accumulator in _SUMS:
            _amx(self, "tilezero", accumulator)

        def chunk(k: str) -> None:
            number = self.binary("divui", k, PADDED)
            offset = self.mul(number, self.whole)
            for ahead in range(_FETCHED):
                row = self.at("%c", self.mul("%row", self.add(self.mul(number, _FETCHED), ahead)))
                for n in range(self.vectors):
                    self.prefetch(self.at(row, n * ROW), write=True)
            panels = {"a": (self.at("%a", offset), _A), "b": (self.at("%b", offset), _B)}
            held = {"a": -1, "b": -1}
            for parts in _TERMS[self.parts]:
                for side, part in zip("ab", parts):
                    if held[side] != part:
                        panel, registers = panels[side]
                        for n, register in enumerate(registers):
                            at = self.at(panel, n * self.beside + part * PART)
                            _amx(self, "tileloadd64", register, at, self.i64(ROW))
                        held[side] = part
                for accumulator in _SUMS:
                    _amx(self, "tdpbf16ps", accumulator, _A[accumulator // 2], _B[accumulator % 2])

        self.repeat(0, "%k_size", PADDED, chunk)
        whole = self.all(
            self.compare("sge", "%rows", AMX_LANES),
            self.compare("sge", "%columns", AMX_LANES),
            self(f"arith.xori {self.follows}, {self.const(True, 'i1')} : i1"),
        )
        new = self.all(whole, self.compare("eq", "%more", 0))
        self.branch(new, lambda: self._stored("%c", "%row"), lambda: self._kept(whole))

    def _stored(self, to: str, row: str) -> None:
        """Store the accumulators. row: bytes between rows."""
        for accumulator in _SUMS:
            down = self.mul(row, accumulator // 2 * LANES)
            at = self.at(to, self.add(down, accumulator % 2 * ROW))
            _amx(self, "tilestored64", accumulator, at, row)

    def _kept(self, whole: str) -> None:
        """Keep the accumulators on the stack, then add them to C or finish the tile."""
        row = AMX_LANES * ITEM
        self._stored(self.held, self.i64(row))

        def add(i: str) -> None:
            held, c = self.at(self.held, self.mul(i, row)), self.at("%c", self.mul("%row", i))
            for offset in (0, ROW):
                at = self.at(c, offset)
                self.store(self.plus(self.load(self.at(held, offset)), self.load(at)), at)

        self.branch(whole, lambda: self.repeat(0, self.i64(AMX_LANES), 1, add), self.finish_held)

    # -- AVX-512

    def _without_tiles(self) -> None:
        """Sum the tile on the stack, and finish it."""
        if self.parts == 1:
            usable = self(f"arith.constant true {BF16_LINE}")
            self.branch(usable, lambda: dots.sums(self, self.held), self._by_multiply_adds)
        else:
            self._by_multiply_adds()
        self.finish_held()

    # -- float32

    def _by_multiply_adds(self) -> None:
        """Sum the tile on the stack by multiply-adds of float32, 32 elements of K at a time."""
        count = self.i64(AMX_LANES * PADDED)
        a, b = (
            self(f"llvm.alloca {count} x f32 {{alignment = 64 : i64}} : (i64) -> !llvm.ptr")
            for _ in "ab"
        )
        row = AMX_LANES * ITEM
        held = self.i64(self.rows * self.vectors)
        self.repeat(
            0, held, 1, lambda n: self.store(self.zero, self.at(self.held, self.mul(n, ROW)))
        )

        def chunk(k: str) -> None:
            offset = self.mul(self.binary("divui", k, PADDED), self.whole)
            self._values("%a", self.at("%a", offset), a, True)
            self._values("%b", self.at("%b", offset), b, False)

            def rows(i: str) -> None:
                sums = [
                    self.at(self.held, self.add(self.mul(i, row), n * ROW))
                    for n in range(2 * _ROWS)
                ]
                lines = [self.at(a, self.mul(self.add(i, n), row)) for n in range(_ROWS)]

                def step(k: str, held: list[str]) -> list[str]:
                    columns = [
                        self.load(self.at(b, self.add(self.mul(k, row), n * ROW))) for n in (0, 1)
                    ]
                    made: list[str] = []
                    for line in lines:
                        x = self(f"llvm.load {self.at(line, self.mul(k, ITEM))} : !llvm.ptr -> f32")
                        wide = self(f"vector.broadcast {x} : f32 to {VECTOR}")
                        for y in columns:
                            made.append(self(f"math.fma {wide}, {y}, {held[len(made)]} : {VECTOR}"))
                    return made

                start = [(self.load(at), VECTOR) for at in sums]
                for at, total in zip(sums, self.loop(0, self.i64(PADDED), 1, start, step)):
                    self.store(total, at)

            self.repeat(0, self.i64(AMX_LANES), _ROWS, rows)

        self.repeat(0, "%k_size", PADDED, chunk)

    def _values(self, panel: str, source: str, to: str, rows_are_lanes: bool) -> None:
        """Write 32 elements of K of a panel's 32 lanes as float32 values, put together from their parts.

        rows_are_lanes: as A, whose rows are lanes; otherwise rows are positions of K.
        """
        raw = self.compare("ne", self.raw[panel], 0) if self.raw else ""

        def row(n: str) -> None:
            tile, i = self.split(n, self.i64(LANES))
            at = self.at(source, self.add(self.mul(tile, self.beside), self.mul(i, ROW)))
            parts = [self.read(self.at(at, p * PART), WORDS, ROW, None) for p in range(self.parts)]
            made = []
            for part, found in enumerate(zip(*(values(self, x) for x in parts))):
                total = found[-1]
                for x in reversed(found[:-1]):
                    total = self.plus(total, x)
                if raw:
                    given = self._float(parts[part])
                    total = self(f"arith.select {raw}, {given}, {total} : {VECTOR}")
                made.append(total)
            line = AMX_LANES * ITEM
            if rows_are_lanes:
                first = self.at(to, self.mul(n, line))
                targets = first, self.at(first, ROW)
            else:
                first = self.at(to, self.add(self.mul(i, line), self.mul(tile, ROW)))
                targets = first, self.at(first, LANES * line)
            for x, target in zip(made, targets):
                self.store(x, target)

        self.repeat(0, self.i64(AMX_LANES), 1, row)

    def _float(self, words: str) -> str:
        return self(f"vector.bitcast {words} : {WORDS} to {VECTOR}")
