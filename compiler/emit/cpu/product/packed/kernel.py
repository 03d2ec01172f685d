"""The loops of a product whose B is packed in strips of columns, and whose A is read in place.

    for blocks of columns                               (where B isn't packed yet, all threads pack the block together)
        for shares                                      (rows × strips of columns; a free thread takes the next one)
            compute the addresses of the rows           (once for consecutive shares of the same rows)
            for strips of the share
                for tiles of rows                       (accumulators in registers, then the epilogue)

Elements of the kernel outside of the input are left out for a tile of rows. They are not if that might change a result:
of a weight that was packed beforehand, or if a block of it has an infinity or a NaN, whose products with zeros are NaN.
In a gradient nothing outside is ever multiplied (`excludes`), so each row of such a block is computed alone.

One function serves all sizes, for matrix products, and for convolutions and gradients of their inputs in up to three
spatial dimensions. Frozen weights are packed beforehand, so threads do not wait for each other. The number of the next
share is stored in one of the kernel arguments; the last thread that finds no share left resets it to 0.
"""

from __future__ import annotations

from functools import cache

from gflow.compiler.kernel.blocks import TAIL

from ..function import ITEM, Function
from . import weights
from .tile import TYPES
from .windows import DIMENSIONS, SPATIAL, WORD, Windows

#: the function's arguments. images: of a convolution. taps: positions of its kernel. columns: of a block. zeros,
#: addresses: bytes of a thread's scratch. strip: bytes of a strip. by_position: rows are ordered by position. padded:
#: some windows reach beyond x. excludes: nothing outside of x is ever multiplied. pack: the function that packs a
#: strip, or 0; lane, channel: bytes between columns and between rows of w's taps; deep, wide: the channels and taps
#: that it packs. b_bytes: bytes of a packed block.
WORDS = (
    *("x", "w", "y", "scratch", "tile", "finish", "pack", "next"),
    *("m", "n", "images", "channels", "taps", "rows", "across", "columns", "mr", "nr", "strip", "row"),
    *("zeros", "addresses", "by_position", "padded", "excludes", "lane", "channel", "deep", "wide", "b_bytes"),
    *(f"{name}_{d}" for name in SPATIAL for d in DIMENSIONS),
)  # fmt: skip
_POINTERS, _FUNCTIONS = WORDS[:4], WORDS[4:7]
#: external functions, besides those whose addresses are arguments
EXTERNALS = ("omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier")


@cache
def function(name: str, lanes: int, divides: bool) -> str:
    """The text of the function `name` that computes products with packed strips.

    Args:
        name: the function's name.
        lanes: at least the rows of a tile.
        divides: whether positions of the input are quotients (the gradient of a strided convolution's input).
    """
    return _Packed(lanes, divides).function(name)


class _Packed(Function):
    def __init__(self, lanes: int, divides: bool) -> None:
        super().__init__()
        w = self.w = self.words_by_name(WORDS, _POINTERS, _FUNCTIONS)
        self.next = self.at("%w", WORD * WORDS.index("next"))
        self.words = self.at("%w", WORD * len(WORDS))
        self.me, self.team = self.thread("thread_num"), self.thread("num_threads")
        null = self("llvm.mlir.zero : !llvm.ptr")
        self.packs = self(f'llvm.icmp "ne" {w["pack"]}, {null} : !llvm.ptr')
        self.together = self.compare("sgt", self.team, 1)
        self.b = self(f"arith.select {self.packs}, {w['scratch']}, {w['w']} : !llvm.ptr")
        own = self.mul(self.me, self.add(w["zeros"], w["addresses"]))
        zeros = self.at(self.at(w["scratch"], w["b_bytes"]), own)
        self.table = self.at(zeros, w["zeros"])
        w["pixel"] = self.mul(w["channels"], ITEM)
        padded = self.compare("ne", w["padded"], 0)
        self.branch(padded, lambda: self.clear(zeros, w["zeros"]))
        self.windows = Windows(self, w, zeros, lanes, divides)
        self.repeat(0, w["n"], w["columns"], self._block)

    def _block(self, jc: str) -> None:
        w = self.w
        width = self.at_most(w["columns"], self.sub(w["n"], jc))
        self.branch(self.packs, lambda: self._pack(jc, width))
        marked = self.compare("ne", self._marks(width), 0)
        beforehand = self(f"arith.xori {self.packs}, {self.const(True, 'i1')} : i1")
        self.windows.every = self(f"arith.ori {beforehand}, {marked} : i1")
        excludes = self.compare("ne", w["excludes"], 0)
        alone = self(f"arith.andi {marked}, {excludes} : i1")
        along = self.granules(width, w["across"])
        count = self.mul(self.granules(w["m"], w["rows"]), along)

        def share(block: str, side: str, before: str) -> None:
            row = self.mul(block, w["rows"])
            rows = self.at_most(self.sub(w["m"], row), w["rows"])
            first = self.mul(side, w["across"])

            def one(i: str) -> None:
                self.windows.write(self.table, self.add(row, i), self.i64(1), True)
                self._tiles(jc, self.i64(1), first, width)

            def together() -> None:
                new = self.compare("ne", block, before)
                self.branch(new, lambda: self.windows.write(self.table, row, rows))
                self._tiles(jc, rows, first, width)

            self.branch(alone, lambda: self.repeat(0, rows, 1, one), together)

        self.all_shares(self.next, count, along, share)

    def _pack(self, jc: str, width: str) -> None:
        """Pack this thread's strips of a block of columns."""
        w = self.w
        later = self.compare("sgt", jc, 0)
        self.branch(self(f"arith.andi {later}, {self.together} : i1"), self.barrier)

        def strip(s: str) -> None:
            j = self.mul(s, w["nr"])
            source = self.at(w["w"], self.mul(self.add(jc, j), w["lane"]))
            lanes = self.at_most(self.sub(width, j), w["nr"])
            to = self.at(self.b, self.mul(s, w["strip"]))
            arguments = (
                f"{source}, {to}, {w['lane']}, {w['channel']}, {lanes}, {w['deep']}, {w['wide']}"
            )
            self.call(w["pack"], arguments, weights.TYPES)

        self.repeat(self.me, self.granules(width, w["nr"]), self.team, strip)
        self.branch(self.together, self.barrier)

    def _marks(self, width: str) -> str:
        """Whether some strip of a block that was packed here has an infinity or a NaN: not 0."""
        strips = self(
            f"arith.select {self.packs}, {self.granules(width, self.w['nr'])}, {self.i64(0)} : i64"
        )
        mark = self.at(self.b, self.sub(self.w["strip"], TAIL))

        def strip(s: str, found: list[str]) -> list[str]:
            at = self.at(mark, self.mul(s, self.w["strip"]))
            return [self.binary("ori", found[0], self(f"llvm.load {at} : !llvm.ptr -> i64"))]

        return self.loop(0, strips, 1, [(self.i64(0), "i64")], strip)[0]

    def _tiles(self, jc: str, rows: str, first: str, width: str) -> None:
        w = self.w
        high = self.at_most(self.add(first, w["across"]), width)

        def strip(j: str) -> None:
            b = self.at(self.b, self.mul(self.binary("divui", j, w["nr"]), w["strip"]))
            columns = self.at_most(self.sub(high, j), w["nr"])
            column = self.add(jc, j)
            c = self.at(w["y"], self.mul(column, ITEM))
            # each tile of this strip prefetches a part of the next strip
            count = self.granules(rows, w["mr"])
            each = self.granules(self.mul(w["nr"], ITEM), count)
            ahead = self.at(b, w["strip"])
            part = self.binary("divui", w["strip"], count)

            def one(p: str) -> None:
                a = self.at(self.table, self.mul(p, self.windows.size))
                taps = self(f"llvm.load {a} : !llvm.ptr -> i64")
                left = self.at_most(self.sub(rows, self.mul(p, w["mr"])), w["mr"])
                none = self.i64(0)
                later = self.at(ahead, self.mul(p, part))
                arguments = (a, b, each, w["channels"], c, w["row"], left, columns, none, w["finish"], self.words,
                             none, column, taps, later)  # fmt: skip
                self.call(w["tile"], ", ".join(arguments), TYPES)

            self.repeat(0, count, 1, one)

        self.repeat(first, high, w["nr"], strip)
