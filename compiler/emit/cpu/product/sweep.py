"""Products of one to four rows with a matrix whose columns lie side by side: B is read row by row, where it lies.

    for groups of rows of B                              (8 of them: what they add up to is one chain)
        for columns of the strip, vectors at a time      (sums in the first cache)

Such a product takes as long as B takes to be read. The processor fetches ahead along rows; down a strip of few columns
it would wait for each line. The sums of a strip stand in pieces, each a tile for what follows the product.
"""

from __future__ import annotations

from functools import cache

from gflow.compiler.kernel.selection.cpu.blocking import PIECE, SWEPT

from .function import ITEM, LANES, VECTOR, Function
from .tile import ARGUMENTS, FINISH_TYPES

#: rows of B that are added up in one chain
_GROUP = 8
#: vectors that are read of each at a time
_VECTORS = 4

_MASK = f"vector<{LANES}xi1>"


@cache
def sweep(name: str, rows: int) -> str:
    """The function `name` of a strip of at most `SWEPT` columns, whose arguments are those of a register tile."""
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
        """Add the products of some rows of B."""
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
        """Where the sums of a row are from a column on: pieces of all rows lie one behind the other."""
        at = self.at(self.held, self.mul(j, ITEM))
        if self.rows > 1:
            before = self.binary("divui", j, PIECE)
            at = self.at(at, self.mul(before, (self.rows - 1) * PIECE * ITEM))
        return self.at(at, row * PIECE * ITEM)

    def _inside(self, count: str) -> str:
        """The first lanes, as many as there are."""
        return self.first_lanes(self.at_most(count, LANES), LANES)

    def _piece(self, j: str) -> None:
        """Hand a piece on, or store it."""
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
