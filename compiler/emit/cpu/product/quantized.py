"""Products with weights in 8 or 4 bits: weights become float32 in registers, where they are multiplied.

    for rows of the weight, shared among threads        (8 or 4 at a time, each a stream of its own)
        for rows of x                                   (1, 2 or 4 at a time)
            for 32 of K                                 (a group of 4 bits has its scale)

With few rows of x such a product takes as long as reading the weight. With many, the weight is widened again for each
four rows.
"""

from __future__ import annotations

from functools import cache

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.selection.cpu.sharing import of_quantized, shared_from
from gflow.dialects.attributes import read
from gflow.dialects.extents import at_most
from gflow.dialects.ops import OPS
from gflow.dialects.ops.quantized import GROUP
from gflow.dialects.program import KernelStep, Place

from ..program_builder import Builder
from .function import ITEM, LANES, VECTOR, Function

_WORDS = ("x", "weight", "scales", "out", "m", "n", "k")
_BYTES, _INTS = f"vector<{LANES}xi8>", f"vector<{LANES}xi32>"
#: rows of x at a time, and rows of the weight with them
_TILES = ((1, 8), (2, 4), (4, 4))


def product(b: Builder, o: Op) -> None:
    """Add the step of a `gflow.quantized_matmul`."""
    (r,) = o.results
    bits = read(OPS[o.name], o.op.attributes)["bits"]
    (m, k), n = b.body.types[o.operands[0]].shape, b.body.types[r].shape[1]
    rows, columns = next((t for t in _TILES if t[0] >= at_most(m)), _TILES[-1])
    name = f"quantized_{bits}_{rows}x{columns}"
    if name not in b.kernels:
        b.kernels[name] = function(name, bits, rows, columns)
    b.externals |= {"omp_get_thread_num", "omp_get_num_threads"}
    parallel, from_size = shared_from(of_quantized(m, n, k, bits))
    places = [b.place(v) for v in (*o.operands[:3], r)]
    words: tuple[int | Place, ...] = (*places, m, n, k)
    b.steps.append(KernelStep(name, words, parallel, b.label(o), True, from_size=from_size))


@cache
def function(name: str, bits: int, rows: int, columns: int) -> str:
    """The function `name` for weights of so many bits, by tiles of `rows` of x and `columns` rows of the weight."""
    return _Quantized(bits, rows, columns).function(name)


class _Quantized(Function):
    def __init__(self, bits: int, rows: int, columns: int) -> None:
        super().__init__()
        self.bits, self.rows, self.columns = bits, rows, columns
        self.w = {
            name: self.load_word(i, "!llvm.ptr" if i < 4 else "i64")
            for i, name in enumerate(_WORDS)
        }
        w = self.w
        self.zero = self.const(0.0, VECTOR)
        self.across = self.binary("divui", self.mul(w["k"], bits), 8)  # bytes of a row
        self.groups = self.binary("divui", w["k"], GROUP) if bits == 4 else self.i64(1)
        self.last_row, self.last_column = self.sub(w["m"], 1), self.sub(w["n"], 1)
        low, high = self.share(w["n"], columns)
        self.repeat(
            low,
            high,
            columns,
            lambda j: self.repeat(0, w["m"], rows, lambda i: self._tile(i, j)),
        )

    def _tile(self, i: str, j: str) -> None:
        w = self.w
        self.at_columns = [
            self.at_most(self.add(j, c) if c else j, self.last_column) for c in range(self.columns)
        ]
        self.at_rows = [
            self.at_most(self.add(i, r) if r else i, self.last_row) for r in range(self.rows)
        ]
        self.weights = [self.at(w["weight"], self.mul(c, self.across)) for c in self.at_columns]
        self.scales = [
            self.at(w["scales"], self.mul(c, self.groups, ITEM)) for c in self.at_columns
        ]
        self.lines = [self.at(w["x"], self.mul(r, w["k"], ITEM)) for r in self.at_rows]
        zeros = [(self.zero, VECTOR)] * (self.rows * self.columns)
        sums = self.loop(0, w["k"], GROUP, zeros, self._group)
        for c, column in enumerate(self.at_columns):
            scale = self(f"llvm.load {self.scales[c]} : !llvm.ptr -> f32") if self.bits == 8 else ""
            for r, row in enumerate(self.at_rows):
                total = self(
                    f"vector.reduction <add>, {sums[c * self.rows + r]} fastmath<reassoc> : {VECTOR} into f32"
                )
                if scale:
                    total = self(f"arith.mulf {total}, {scale} : f32")
                to = self.at(w["out"], self.mul(self.add(self.mul(row, w["n"]), column), ITEM))
                self.line(f"llvm.store {total}, {to} : f32, !llvm.ptr")

    def _group(self, k: str, sums: list[str]) -> list[str]:
        offset = self.mul(k, ITEM)
        x = [
            [self.load(self.at(line, self.add(offset, h * LANES * ITEM))) for h in (0, 1)]
            for line in self.lines
        ]
        found = []
        for c in range(self.columns):
            first, second = self._signed(c, k) if self.bits == 8 else self._halves(c, k)
            scale = ""
            if self.bits == 4:
                at = self.at(self.scales[c], self.binary("divui", k, GROUP // ITEM))
                number = self(f"llvm.load {at} : !llvm.ptr -> f32")
                scale = self(f"vector.broadcast {number} : f32 to {VECTOR}")
            for r in range(self.rows):
                total = sums[c * self.rows + r]
                if scale:
                    part = self(f"arith.mulf {x[r][0]}, {first} : {VECTOR}")
                    part = self._fma(x[r][1], second, part)
                    found.append(self._fma(part, scale, total))
                else:
                    found.append(self._fma(x[r][1], second, self._fma(x[r][0], first, total)))
        return found

    def _fma(self, a: str, b: str, c: str) -> str:
        return self(f"math.fma {a}, {b}, {c} : {VECTOR}")

    def _float(self, value: str) -> str:
        return self(f"arith.sitofp {value} : {_INTS} to {VECTOR}")

    def _signed(self, c: int, k: str) -> tuple[str, str]:
        """32 elements of 8 bits."""
        at = self.at(self.weights[c], k)
        halves = [self.read(self.at(at, h * LANES), _BYTES, 1, None) for h in (0, 1)]
        first, second = (self(f"arith.extsi {v} : {_BYTES} to {_INTS}") for v in halves)
        return self._float(first), self._float(second)

    def _halves(self, c: int, k: str) -> tuple[str, str]:
        """32 elements of 4 bits: the lower halves of 16 bytes, then the upper ones; 8 stands for 0."""
        at = self.at(self.weights[c], self.binary("divui", k, 2))
        packed = self(f"arith.extui {self.read(at, _BYTES, 1, None)} : {_BYTES} to {_INTS}")
        low = self(f"arith.andi {packed}, {self.const(15, _INTS)} : {_INTS}")
        high = self(f"arith.shrui {packed}, {self.const(4, _INTS)} : {_INTS}")
        eight = self.const(8, _INTS)
        first, second = (self(f"arith.subi {v}, {eight} : {_INTS}") for v in (low, high))
        return self._float(first), self._float(second)
