"""The loops of a product with a packed weight.

    for shares                                          (rows × strips of columns; a free thread takes the next one)
        compute the addresses of the rows               (once for consecutive shares of the same rows)
        for strips of the share
            for tiles of rows                           (accumulators in registers, then the epilogue)

One function serves all sizes, for matrix products and for convolutions of up to three spatial dimensions. Nothing is
packed at run time, so threads do not wait for each other. The number of the next share is stored in one of the kernel
arguments; the last thread that finds no share left resets it to 0.
"""

from __future__ import annotations

from functools import cache

from ..function import ITEM, Function
from .tile import ADDRESS, TYPES

_DIMENSIONS = ("d", "h", "w")
#: arguments that exist for each spatial dimension
_SPATIAL = ("input", "output", "kernel", "stride", "padding", "dilation")
#: the function's arguments. taps: positions of the convolution's kernel. zeros, addresses: bytes of a thread's scratch.
#: strip: bytes of a strip. plain: row i of y reads only row i of x. padded: some patches reach beyond x.
WORDS = (
    *("x", "w", "y", "scratch", "tile", "finish", "next"),
    *("m", "n", "channels", "taps", "rows", "across", "mr", "nr", "strip", "row", "zeros", "addresses"),
    *("plain", "padded"),
    *(f"{name}_{d}" for name in _SPATIAL for d in _DIMENSIONS),
)  # fmt: skip
_POINTERS, _FUNCTIONS = WORDS[:4], WORDS[4:6]
#: external functions, besides those whose addresses are arguments
EXTERNALS = ("omp_get_thread_num", "omp_get_num_threads")


@cache
def function(name: str) -> str:
    """The text of the function `name` that computes products with packed weights."""
    return _Packed().function(name)


class _Packed(Function):
    def __init__(self) -> None:
        super().__init__()
        self.w = {
            name: self.load_word(i, "!llvm.ptr" if name in _POINTERS else "i64")
            for i, name in enumerate(WORDS)
            if name != "next"
        }
        for name in _FUNCTIONS:
            self.w[name] = self(f"llvm.inttoptr {self.w[name]} : i64 to !llvm.ptr")
        w = self.w
        self.next = self.at("%w", 8 * WORDS.index("next"))
        self.words = self.at("%w", 8 * len(WORDS))
        me, team = self.thread("thread_num"), self.thread("num_threads")
        own = self.mul(me, self.add(w["zeros"], w["addresses"]))
        self.zeros = self.at(w["scratch"], own)
        self.table = self.at(self.zeros, w["zeros"])
        self.pixel = self.mul(w["channels"], ITEM)
        self.is_plain, self.is_padded = (self.compare("ne", w[n], 0) for n in ("plain", "padded"))
        nothing = self.const(0, "i8")

        def clear() -> None:
            self.line(
                f'"llvm.intr.memset"({self.zeros}, {nothing}, {w["zeros"]}) <{{isVolatile = false}}> : '
                "(!llvm.ptr, i8, i64) -> ()"
            )

        self.branch(self.is_padded, clear)
        self.strips = self.granules(w["across"], w["nr"])
        along = self.granules(w["n"], w["across"])
        count = self.mul(self.granules(w["m"], w["rows"]), along)
        self._shares(count, along, team)

    def _shares(self, count: str, along: str, team: str) -> None:
        w = self.w

        def share(block: str, side: str, before: str) -> None:
            row = self.mul(block, w["rows"])
            rows = self.at_most(self.sub(w["m"], row), w["rows"])
            self.branch(self.compare("ne", block, before), lambda: self._addresses(row, rows))
            self._tiles(row, rows, self.mul(side, w["across"]))

        taken = self.shares(self.next, count, along, share)
        last = self.compare("eq", taken, self.sub(self.add(count, team), 1))
        self.branch(
            last, lambda: self.line(f"llvm.store {self.i64(0)}, {self.next} : i64, !llvm.ptr")
        )

    # -- addresses

    def _addresses(self, row: str, rows: str) -> None:
        """Write the table of a share's rows: for each tile and tap, the address of each of its rows.

        An incomplete tile repeats the address of its last row.
        """
        self.branch(self.is_plain, lambda: self._lines(row, rows), lambda: self._windows(row, rows))

    def _lines(self, row: str, rows: str) -> None:
        first = self.at(self.w["x"], self.mul(row, self.pixel))
        last = self.sub(rows, 1)

        def one(r: str) -> None:
            line = self.at(first, self.mul(self.at_most(r, last), self.pixel))
            self.line(
                f"llvm.store {line}, {self.at(self.table, self.mul(r, ADDRESS))} : !llvm.ptr, !llvm.ptr"
            )

        self.repeat(0, self.mul(self.granules(rows, self.w["mr"]), self.w["mr"]), 1, one)

    def _windows(self, row: str, rows: str) -> None:
        w = self.w
        tile = self.mul(w["mr"], w["taps"], ADDRESS)
        line = self.pixel
        self.apart: list[str] = []  # bytes between taps along each dimension
        for d in reversed(_DIMENSIONS):
            self.apart.insert(0, self.mul(line, w[f"dilation_{d}"]))
            line = self.mul(line, w[f"input_{d}"])

        def some(p: str) -> None:
            table, first = self.at(self.table, self.mul(p, tile)), self.mul(p, w["mr"])
            state: list[str] = []
            flat = self.add(row, first)
            for d in reversed(_DIMENSIONS):
                flat, x = self.split(flat, w[f"output_{d}"])
                state.insert(0, x)
            state.insert(0, flat)

            def one(i: str, state: list[str]) -> list[str]:
                self._window(state, self.at(table, self.mul(i, ADDRESS)))
                more = self.compare("slt", self.add(first, i, 1), rows)
                return [self.choose(more, a, b) for a, b in zip(self._after(state), state)]

            def each() -> None:
                self.loop(0, w["mr"], 1, [(s, "i64") for s in state], one)

            whole = self.compare("sle", self.add(first, w["mr"]), rows)
            starts = self._starts(state)
            self.branch(
                self._is_inside(state, starts, whole), lambda: self._run(state, starts, table), each
            )

        self.repeat(0, self.granules(rows, w["mr"]), 1, some)

    def _after(self, state: list[str]) -> list[str]:
        """The image and position that follow the given ones in row-major order."""
        found, carry = [], self.const(True, "i1")
        for d, x in zip(reversed(_DIMENSIONS), reversed(state)):
            ahead = self.choose(carry, self.add(x, 1), x)
            carry = self.compare("eq", ahead, self.w[f"output_{d}"])
            found.append(self.choose(carry, 0, ahead))
        found.append(self.choose(carry, self.add(state[0], 1), state[0]))
        return found[::-1]

    def _starts(self, state: list[str]) -> list[str]:
        """The first position of a patch in x, by dimension; it may be negative."""
        return [
            self.sub(self.mul(x, self.w[f"stride_{d}"]), self.w[f"padding_{d}"])
            for x, d in zip(state[1:], _DIMENSIONS)
        ]

    def _is_inside(self, state: list[str], starts: list[str], whole: str) -> str:
        """Whether a tile's positions are consecutive along one line of y, and their patches are inside x.

        whole: whether the tile is complete.
        """
        w = self.w
        more = self.sub(w["mr"], 1)
        in_line = self.compare("slt", self.add(state[-1], more), w["output_w"])
        inside = self(f"arith.andi {whole}, {in_line} : i1")
        for start, d in zip(starts, _DIMENSIONS):
            end = self.add(start, self.mul(self.sub(w[f"kernel_{d}"], 1), w[f"dilation_{d}"]))
            if d == "w":
                end = self.add(end, self.mul(more, w["stride_w"]))
            for x in (start, end):
                inside = self(f"arith.andi {inside}, {self.within(x, w[f'input_{d}'])} : i1")
        return inside

    def _run(self, state: list[str], starts: list[str], table: str) -> None:
        """Store all addresses of a tile whose positions are consecutive and whose patches are inside x."""
        w, lanes, flat = self.w, 8, state[0]
        ty = f"vector<{lanes}xi64>"
        for start, d in zip(starts, _DIMENSIONS):
            flat = self.add(self.mul(flat, w[f"input_{d}"]), start)
        row, step = self.mul(w["mr"], ADDRESS), self.mul(w["stride_w"], self.pixel)
        first = self.at(w["x"], self.mul(flat, self.pixel))
        first = self(f"llvm.ptrtoint {first} : !llvm.ptr to i64")
        beside = self.lane_offsets(step, lanes)

        def some(i: str) -> None:
            mask = self.first_lanes(self.at_most(self.sub(w["mr"], i), lanes), lanes)
            base = self.add(first, self.mul(i, step))

            def over(n: int, base: str, to: str) -> str:
                """Loop over the taps along dimension `n` and further ones; returns the end of the stored addresses."""

                def tap(k: str, carried: list[str]) -> list[str]:
                    there = self.add(base, self.mul(k, self.apart[n]))
                    if n < len(_DIMENSIONS) - 1:
                        return [over(n + 1, there, carried[0])]
                    wide = self(f"vector.broadcast {there} : i64 to {ty}")
                    value = self(f"arith.addi {beside}, {wide} : {ty}")
                    self.write(value, carried[0], ty, ADDRESS, mask)
                    return [self.at(carried[0], row)]

                return self.loop(0, w[f"kernel_{_DIMENSIONS[n]}"], 1, [(to, "!llvm.ptr")], tap)[0]

            over(0, base, self.at(table, self.mul(i, ADDRESS)))

        self.repeat(0, w["mr"], lanes, some)

    def _window(self, state: list[str], to: str) -> None:
        """Store the addresses of one patch from `to` on, `mr` apart; taps beyond x get the address of zeros."""
        w, starts = self.w, self._starts(state)

        def over(n: int, before: str, inside: str, at: str) -> str:
            """Loop over the taps along dimension `n` and further ones; returns the address after the last store."""
            d = _DIMENSIONS[n]

            def tap(k: str, carried: list[str]) -> list[str]:
                x = self.add(starts[n], self.mul(k, w[f"dilation_{d}"]))
                flat = self.add(self.mul(before, w[f"input_{d}"]), x)
                within = self(f"arith.andi {inside}, {self.within(x, w[f'input_{d}'])} : i1")
                if n < len(_DIMENSIONS) - 1:
                    return [over(n + 1, flat, within, carried[0])]
                there = self.at(w["x"], self.mul(flat, self.pixel))
                there = self(f"arith.select {within}, {there}, {self.zeros} : !llvm.ptr")
                self.line(f"llvm.store {there}, {carried[0]} : !llvm.ptr, !llvm.ptr")
                return [self.at(carried[0], self.mul(w["mr"], ADDRESS))]

            return self.loop(0, w[f"kernel_{d}"], 1, [(at, "!llvm.ptr")], tap)[0]

        over(0, state[0], self.const(True, "i1"), to)

    # -- tiles

    def _tiles(self, row: str, rows: str, first: str) -> None:
        w = self.w
        high = self.at_most(self.add(first, w["across"]), w["n"])

        def strip(j: str) -> None:
            b = self.at(w["w"], self.mul(self.binary("divui", j, w["nr"]), w["strip"]))
            columns = self.at_most(self.sub(high, j), w["nr"])
            to = self.at(w["y"], self.mul(j, ITEM))
            # each tile of this strip prefetches a part of the next strip
            count = self.granules(rows, w["mr"])
            each = self.granules(self.mul(w["nr"], ITEM), count)
            ahead = self.at(b, w["strip"])
            part = self.binary("divui", w["strip"], count)

            def one(i: str) -> None:
                a = self.at(self.table, self.mul(i, w["taps"], ADDRESS))
                position = self.add(row, i)
                c = self.at(to, self.mul(position, w["row"]))
                left = self.at_most(self.sub(rows, i), w["mr"])
                none = self.i64(0)
                later = self.at(ahead, self.mul(self.binary("divui", i, w["mr"]), part))
                arguments = (a, b, each, w["channels"], c, w["row"], left, columns, none, w["finish"], self.words,
                             position, j, w["taps"], later)  # fmt: skip
                self.call(w["tile"], ", ".join(arguments), TYPES)

            self.repeat(0, rows, w["mr"], one)

        self.repeat(first, high, w["nr"], strip)
