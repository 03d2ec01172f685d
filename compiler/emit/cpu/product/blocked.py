"""gflow's own float32 matrix product: the loops over blocks, around packing and register tiles (after BLIS).

    for blocks of columns of B, blocks of K              (all threads pack the block of B together)
        for blocks of rows                               (a free thread takes the next one, and packs its rows of A)
            for tiles of the block                       (accumulators in registers, then the epilogue)

One function serves all sizes: sizes, strides, blocks and the addresses of the functions that pack and multiply are
kernel arguments. Threads take blocks of rows dynamically, so a thread that the system delays does not hold up the
others. If a batch has at least as many products as there are threads, each thread computes whole products (`alone`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from gflow.compiler.kernel.blocks import HEAD, PADDED

from . import panels, tile
from .function import ITEM, Function

#: the function's arguments. Strides of a, b, c and of the batch are in bytes. first: the number of C's first row, for
#: the epilogue. enter, leave: functions around the tiles of a block, or 0. item, tail: bytes of an element of a panel,
#: and after each panel. gathers: rows of A are patches of a convolution's input, which `pack_a` gathers.
WORDS = (
    *("a", "b", "c", "scratch", "pack_a", "pack_b", "tile", "finish", "enter", "leave"),
    *("m", "n", "k", "am", "ak", "bk", "bn", "cm", "batch", "sa", "sb", "sc", "add"),
    *(
        "mr",
        "nr",
        "kc",
        "mc",
        "nc",
        "cols",
        "alone",
        "direct",
        "a_bytes",
        "b_bytes",
        "each",
        "first",
        "item",
        "tail",
    ),
    *("gathers", *(f"window_{name}" for name in panels.WINDOWS)),
)
#: values of `direct`: B is packed; B is read in place, with contiguous columns; neither A nor B is packed, and both are
#: contiguous along K
PACKED, COLUMNS, DOTS = 0, 1, 2

_POINTERS, _FUNCTIONS = WORDS[:4], WORDS[4:10]


@cache
def function(name: str) -> str:
    """The text of the function `name` that computes blocked products."""
    return _Blocked().function(name)


#: external functions, besides those whose addresses are arguments
EXTERNALS = ("omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier")


class _Blocked(Function):
    def __init__(self) -> None:
        super().__init__()
        self.w = {
            name: self.load_word(i, "!llvm.ptr" if name in _POINTERS else "i64")
            for i, name in enumerate(WORDS)
        }
        for name in _FUNCTIONS:
            self.w[name] = self(f"llvm.inttoptr {self.w[name]} : i64 to !llvm.ptr")
        w = self.w
        thread, threads = self.thread("thread_num"), self.thread("num_threads")
        self.alone = self.compare("ne", w["alone"], 0)
        self.me = self.choose(self.alone, 0, thread)
        self.team = self.choose(self.alone, 1, threads)
        self.together = self.compare("sgt", self.team, 1)
        self.packs = self.compare("eq", w["direct"], PACKED)
        self.dots = self.compare("eq", w["direct"], DOTS)
        unpacked = self(f"arith.select {self.dots}, {w['bn']}, {w['bk']} : i64")
        panel = self.mul(w["nr"], ITEM)
        self.far = self(f"arith.select {self.packs}, {panel}, {unpacked} : i64")
        self.next = self.at(w["scratch"], self.choose(self.alone, self.mul(thread, w["each"]), 0))
        self.b_block = self.at(self.next, HEAD)
        after = self.add(w["b_bytes"], self.mul(self.me, w["a_bytes"]))
        self.a_block = self.at(self.b_block, after)
        self.words = self.at("%w", 8 * len(WORDS))

        def product(i: str) -> None:
            self.a = self.at(w["a"], self.mul(i, w["sa"]))
            self.b = self.at(w["b"], self.mul(i, w["sb"]))
            self.c = self.at(w["c"], self.mul(i, w["sc"]))
            self.last_product = self.compare("sge", self.add(i, 1), w["batch"])
            self.repeat(0, w["n"], w["nc"], self._columns)

        self.repeat(
            self.choose(self.alone, thread, 0),
            w["batch"],
            self.choose(self.alone, threads, 1),
            product,
        )

    def _columns(self, jc: str) -> None:
        self.jc, self.across = jc, self.at_most(self.w["nc"], self.sub(self.w["n"], jc))
        self.repeat(0, self.w["k"], self.w["kc"], self._block_of_k)

    def _block_of_k(self, pc: str) -> None:
        w = self.w
        self.pc, self.deep = pc, self.at_most(w["kc"], self.sub(w["k"], pc))
        lane = self.mul(
            self.granules(self.deep, PADDED), PADDED, w["item"]
        )  # bytes of a lane of a panel
        self.a_panel, self.b_panel = (
            self.add(self.mul(lane, w[lanes]), w["tail"]) for lanes in ("mr", "nr")
        )
        last = self.compare("sge", self.add(pc, self.deep), w["k"])
        before = self.compare("sgt", pc, 0)
        self.more = self.choose(before, 1, w["add"])
        null = self("llvm.mlir.zero : !llvm.ptr")
        self.finish = self(f"arith.select {last}, {w['finish']}, {null} : !llvm.ptr")
        first = self.compare("eq", self.me, 0)
        self.branch(
            first, lambda: self.line(f"llvm.store {self.i64(0)}, {self.next} : i64, !llvm.ptr")
        )
        self.branch(self.packs, self._pack_columns)
        self.branch(self.together, self.barrier)
        self._blocks()
        # the packed blocks are overwritten in the next iteration
        ends = self(f"arith.andi {last}, {self.last_product} : i1")
        end = self.compare("sge", self.add(self.jc, self.across), w["n"])
        ends = self(f"arith.andi {ends}, {end} : i1")
        goes_on = self(f"arith.xori {ends}, {self.const(True, 'i1')} : i1")
        meet = self(f"arith.andi {goes_on}, {self.together} : i1")
        self.branch(meet, self.barrier)

    def _pack_columns(self) -> None:
        """Pack this thread's panels of the block of B."""
        w = self.w
        source = self.at(self.b, self.add(self.mul(self.jc, w["bn"]), self.mul(self.pc, w["bk"])))
        ahead = self.mul(self.team, w["nr"], ITEM)

        def panel(p: str) -> None:
            j = self.mul(p, w["nr"])
            lanes = self.at_most(self.sub(self.across, j), w["nr"])
            at, to = (
                self.at(source, self.mul(j, w["bn"])),
                self.at(self.b_block, self.mul(p, self.b_panel)),
            )
            arguments = f"{at}, {to}, {w['bn']}, {w['bk']}, {lanes}, {self.deep}, {ahead}"
            self.call(w["pack_b"], arguments, panels.TYPES)

        self.repeat(self.me, self.granules(self.across, w["nr"]), self.team, panel)

    def _blocks(self) -> None:
        """Compute shares (blocks of rows, or of rows and columns if there are few rows) until none are left."""
        w = self.w
        along = self.granules(self.across, w["cols"])
        count = self.mul(self.granules(w["m"], w["mc"]), along)

        def share(block: str, side: str, before: str) -> None:
            row = self.mul(block, w["mc"])
            rows = self.at_most(self.sub(w["m"], row), w["mc"])
            new = self.compare("ne", block, before)
            new = self(f"arith.andi {new}, {self.compare('ne', w['direct'], DOTS)} : i1")
            self.branch(new, lambda: self._pack_rows(row, rows))
            low = self.mul(side, w["cols"])
            self._tiles(row, rows, low, self.at_most(self.add(low, w["cols"]), self.across))

        null = self("llvm.mlir.zero : !llvm.ptr")
        around = self(f'llvm.icmp "ne" {w["enter"]}, {null} : !llvm.ptr')
        self.branch(around, lambda: self.call(w["enter"], "", ""))
        self.shares(self.next, count, along, share)
        self.branch(around, lambda: self.call(w["leave"], "", ""))

    def _pack_rows(self, row: str, rows: str) -> None:
        w = self.w
        source = self.at(self.a, self.add(self.mul(row, w["am"]), self.mul(self.pc, w["ak"])))
        windows = self.at("%w", 8 * (WORDS.index("gathers") + 1))
        windows = self(f"llvm.ptrtoint {windows} : !llvm.ptr to i64")
        gathers = self.compare("ne", w["gathers"], 0)
        ahead = self.choose(gathers, windows, self.mul(w["mr"], ITEM))
        along = self.choose(gathers, self.pc, w["ak"])

        def panel(p: str) -> None:
            i = self.mul(p, w["mr"])
            lanes = self.at_most(self.sub(rows, i), w["mr"])
            at, to = (
                self.at(source, self.mul(i, w["am"])),
                self.at(self.a_block, self.mul(p, self.a_panel)),
            )
            at = self(f"arith.select {gathers}, {self.a}, {at} : !llvm.ptr")
            lane = self.choose(gathers, self.add(w["first"], row, i), w["am"])
            arguments = f"{at}, {to}, {lane}, {along}, {lanes}, {self.deep}, {ahead}"
            self.call(w["pack_a"], arguments, panels.TYPES)

        self.repeat(0, self.granules(rows, w["mr"]), 1, panel)

    def _tiles(self, row: str, rows: str, low: str, high: str) -> None:
        w = self.w
        there = self.at(self.b, self.add(self.mul(self.jc, w["bn"]), self.mul(self.pc, w["bk"])))
        lines = self.at(self.a, self.mul(self.pc, w["ak"]))

        def over(j: str) -> Callable[[str], None]:
            packed = self.at(self.b_block, self.mul(self.binary("divui", j, w["nr"]), self.b_panel))
            unpacked = self.at(there, self.mul(j, w["bn"]))
            b = self(f"arith.select {self.packs}, {packed}, {unpacked} : !llvm.ptr")
            column = self.add(self.jc, j)
            columns = self.at_most(self.sub(high, j), w["nr"])
            at = self.at(self.c, self.mul(column, ITEM))

            def one(p: str) -> None:
                i = self.mul(p, w["mr"])
                position = self.add(row, i)
                c = self.at(at, self.mul(position, w["cm"]))
                ours = self.at(self.a_block, self.mul(p, self.a_panel))
                theirs = self.at(lines, self.mul(position, w["am"]))
                a = self(f"arith.select {self.dots}, {theirs}, {ours} : !llvm.ptr")
                number = self.add(position, w["first"])
                arguments = (a, b, self.far, self.deep, c, w["cm"], self.at_most(self.sub(rows, i), w["mr"]), columns,
                             self.more, self.finish, self.words, number, column, w["am"])  # fmt: skip
                self.call(w["tile"], ", ".join(arguments), tile.TYPES)

            return one

        self.repeat(
            low, high, w["nr"], lambda j: self.repeat(0, self.granules(rows, w["mr"]), 1, over(j))
        )
