"""Products of one to four rows with a matrix B whose columns are contiguous. B is read row by row, without packing.

    for groups of 8 rows of B                            (their products are one chain of additions)
        for vectors of columns of the strip              (sums in the first-level cache)

Such a product takes as long as reading B. The hardware prefetcher follows rows; in a narrow strip, each row would be a
cache miss. The sums of a strip are stored in pieces, each of which is a tile for the epilogue.
"""

from __future__ import annotations

from functools import cache

from gflow.compiler.kernel.selection.cpu.blocking import PIECE, SWEPT

from .function import ITEM, LANES, VECTOR, Function
from .tile import ARGUMENTS, FINISH_TYPES

#: the rows of B in one chain of additions
_GROUP = 8
#: the vectors of a row that are read at a time
_VECTORS = 4

_MASK = f"vector<{LANES}xi1>"


@cache
def sweep(name: str, rows: int) -> str:
    """The text of the function `name` that computes a strip of at most `SWEPT` columns.

    It has the arguments of a register tile (`tile.py`).
    """
    return _Sweep(rows).function(name, ARGUMENTS)


class _Sweep(Function):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        count = self.i64(rows * SWEPT)
        self.held = self(f"llvm.alloca {count} x f32 {{alignment = 64 : i64}} : (i64) -> !llvm.ptr")
        every = self.granules("%columns", PIECE)
        zero = self.const(0.0, VECTOR)
        self.repeat(
            0,
            self.mul(every, rows * PIECE),
            LANES,
            lambda j: self.store(zero, self.at(self.held, self.mul(j, ITEM))),
        )
        rest = self.binary("remsi", "%k_size", _GROUP)
        whole = self.sub("%k_size", rest)
        self.repeat(0, whole, _GROUP, lambda k: self._group(k, _GROUP))
        self.repeat(whole, "%k_size", 1, lambda k: self._group(k, 1))
        self.repeat(0, "%columns", PIECE, self._piece)

    def _group(self, k: str, size: int) -> None:
        """Add the products with `size` rows of B, from row `k` on."""
        a = self.at("%a", self.mul(k, self.rows * ITEM))
        b = self.at("%b", self.mul(k, "%k_stride"))
        lines = [self.at(b, self.mul("%k_stride", g)) for g in range(size)]
        factors = []
        for n in range(size * self.rows):
            x = self(f"llvm.load {self.at(a, n * ITEM)} : !llvm.ptr -> f32")
            factors.append(self(f"vector.broadcast {x} : f32 to {VECTOR}"))

        def add(j: str, mask: str | None) -> None:
            offset = self.mul(j, ITEM)
            read = [self.load(self.at(line, offset), mask) for line in lines]
            for r in range(self.rows):
                total = self(f"arith.mulf {factors[r]}, {read[0]} : {VECTOR}")
                for g in range(1, size):
                    x = factors[g * self.rows + r]
                    total = self(f"math.fma {x}, {read[g]}, {total} : {VECTOR}")
                at = self._at(j, r)
                self.store(self.plus(self.load(at), total), at)

        def several(j: str) -> None:
            for v in range(_VECTORS):
                add(self.add(j, v * LANES), None)

        step = _VECTORS * LANES
        left = self.sub("%columns", self.binary("remsi", "%columns", step))
        self.repeat(0, left, step, several)
        self.repeat(
            left, "%columns", LANES, lambda j: add(j, self._inside(self.sub("%columns", j)))
        )

    def _at(self, j: str, row: int) -> str:
        """The address of the sums of a row from column `j` on. The strip is stored in pieces, each with all rows."""
        at = self.at(self.held, self.mul(j, ITEM))
        if self.rows > 1:
            before = self.binary("divui", j, PIECE)
            at = self.at(at, self.mul(before, (self.rows - 1) * PIECE * ITEM))
        return self.at(at, row * PIECE * ITEM)

    def _inside(self, count: str) -> str:
        """A mask of the first `count` lanes."""
        return self.first_lanes(self.at_most(count, LANES), LANES)

    def _piece(self, j: str) -> None:
        """Call the epilogue on a piece, or store it."""
        columns = self.at_most(self.sub("%columns", j), PIECE)
        tile, c = self._at(j, 0), self.at("%c", self.mul(j, ITEM))
        null = self("llvm.mlir.zero : !llvm.ptr")
        follows = self(f'llvm.icmp "ne" %finish, {null} : !llvm.ptr')
        adds = self.compare("ne", "%more", 0)
        every = self(f"vector.broadcast {adds} : i1 to {_MASK}")

        def row(i: str) -> None:
            held = self.at(tile, self.mul(i, PIECE * ITEM))
            line = self.at(c, self.mul("%row", i))

            def part(at: str) -> None:
                offset = self.mul(at, ITEM)
                inside = self._inside(self.sub(columns, at))
                before = self.load(
                    self.at(line, offset), self(f"arith.andi {inside}, {every} : {_MASK}")
                )
                total = self.plus(self.load(self.at(held, offset)), before)
                self.branch(
                    follows,
                    lambda: self.store(total, self.at(held, offset)),
                    lambda: self.store(total, self.at(line, offset), inside),
                )

            self.repeat(0, columns, LANES, part)

        waits = self(f"arith.xori {follows}, {self.const(True, 'i1')} : i1")
        self.branch(
            self(f"arith.ori {waits}, {adds} : i1"), lambda: self.repeat(0, "%rows", 1, row)
        )
        first = self.add("%j", j)
        arguments = f"%words, {tile}, %i, {first}, %rows, {columns}"
        self.branch(follows, lambda: self.call("%finish", arguments, FINISH_TYPES))
