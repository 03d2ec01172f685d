"""Products with weights of 8 or 4 bits, which are converted to float32 in registers.

    for strips of 64 outputs, shared among threads
        for rows of x                                   (1, 2 or 4 at a time)
            for vectors of outputs                      (4: the whole strip; with 4 rows, 2)
                for 32 positions of K                   (4 bits: a group, with a scale for each output)

Lanes are outputs, so there are no sums across lanes, and a thread reads its part of the weight sequentially. With few
rows of x the product takes as long as reading the weight. With many, the weight is converted again for every four rows.

A 4-bit number becomes a float32 without a shift. Its bits are placed into the mantissa of a power of two, whose
exponent depends on their position in the word. That power plus 8 is then subtracted, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from gflow.compiler.ir.ssa import Op
from gflow.compiler.targets.processors import ANY
from gflow.dialects.attributes import read
from gflow.dialects.ops import OPS
from gflow.dialects.ops.quantized import GROUP, STRIP, WORD
from gflow.dialects.program import KernelStep, Place

from ..program_builder import Builder
from .function import ITEM, LANES, VECTOR, Function

_WORDS = ("x", "weight", "scales", "out", "m", "n", "k")
_BYTES, _INTS = f"vector<{LANES}xi8>", f"vector<{LANES}xi32>"
#: by rows of x at a time: the number of independent partial sums of an output and row, and the most vectors of sums
_CHAINS, _MOST_SUMS = {1: 2, 2: 1, 4: 1}, 8
#: the bits of a float32's mantissa, and the exponent of 1.0
_MANTISSA, _ONE = 23, 127
#: the 4-bit numbers that fit into a mantissa
_WITHIN = 5


def product(b: Builder, o: Op) -> None:
    """Add the step of a `gflow.quantized_matmul`."""
    (r,) = o.results
    bits = read(OPS[o.name], o.op.attributes)["bits"]
    (m, k), n = b.body.types[o.operands[0]].shape, b.body.types[r].shape[1]
    tile = b.choice.tile
    sound = len(tile) == 3 and tile[0] in _CHAINS and tile[2] == GROUP
    b.choice.check(sound, "has a tile that code generation does not support")
    rows, vectors = tile[0], tile[1] // LANES
    fits = vectors > 0 and STRIP % tile[1] == 0 and rows * vectors * _CHAINS[rows] <= _MOST_SUMS
    b.choice.check(fits, "has a tile that code generation does not support")
    name = f"quantized_{bits}_{rows}x{tile[1]}"
    if name not in b.kernels:
        b.kernels[name] = function(name, bits, rows, vectors)
    b.externals |= {"omp_get_thread_num", "omp_get_num_threads"}
    places = [b.place(v) for v in (*o.operands[:3], r)]
    words: tuple[int | Place, ...] = (*places, m, n, k)
    parallel, from_size = b.choice.shared()
    b.steps.append(KernelStep(name, words, parallel, b.label(o), True, from_size=from_size))


@cache
def function(name: str, bits: int, rows: int, vectors: int) -> str:
    """The text of the function `name` for weights of `bits` bits; a tile has `rows` of x × `vectors` of 16 outputs."""
    return _Quantized(bits, rows, vectors).function(name)


class _Quantized(Function):
    def __init__(self, bits: int, rows: int, vectors: int) -> None:
        super().__init__()
        self.bits, self.rows, self.vectors = bits, rows, vectors
        self.chains = _CHAINS[rows]
        self.w = {
            name: self.load_word(i, "!llvm.ptr" if i < 4 else "i64")
            for i, name in enumerate(_WORDS)
        }
        w = self.w
        self.zero = self.const(0.0, VECTOR)
        self.strip_bytes = self.mul(w["k"], STRIP * bits // 8)
        groups = self.binary("divui", w["k"], GROUP) if bits == 4 else self.i64(1)
        self.scale_bytes = self.mul(groups, STRIP * ITEM)
        self.last_row = self.sub(w["m"], 1)
        low, high = self.share(self.granules(w["n"], STRIP))
        self.repeat(
            low, high, 1, lambda j: self.repeat(0, w["m"], rows, lambda i: self._strip(i, j))
        )

    def _strip(self, i: str, j: str) -> None:
        w = self.w
        self.at_rows = [
            self.at_most(self.add(i, r) if r else i, self.last_row) for r in range(self.rows)
        ]
        self.lines = [self.at(w["x"], self.mul(r, w["k"], ITEM)) for r in self.at_rows]
        weight = self.at(w["weight"], self.mul(j, self.strip_bytes))
        scales = self.at(w["scales"], self.mul(j, self.scale_bytes))
        beside = 1 if self.bits == 8 else ITEM  # bytes from one output to the next
        for first in range(0, STRIP // LANES, self.vectors):
            at, scale = first * LANES * beside, first * LANES * ITEM
            self._tile(j, self.at(weight, at), self.at(scales, scale), first)

    def _tile(self, j: str, weight: str, scales: str, first: int) -> None:
        """Compute a tile: vectors of 16 outputs, from output `first` of the strip on."""
        w, many = self.w, self.rows * self.vectors
        count = many * (self.chains if self.bits == 8 else 1)
        zeros = [(self.zero, VECTOR)] * count
        sums = self.loop(0, w["k"], GROUP, zeros, lambda k, s: self._group(k, s, weight, scales))
        sums = self._joined(sums, many)
        for v in range(self.vectors):
            column = self.add(self.mul(j, STRIP), (first + v) * LANES)
            left = self.at_least(self.sub(w["n"], column), 0)
            mask = self.first_lanes(self.at_most(left, LANES), LANES)
            scale = self.load(self.at(scales, v * LANES * ITEM)) if self.bits == 8 else ""
            for r, row in enumerate(self.at_rows):
                total = sums[v * self.rows + r]
                if scale:
                    total = self(f"arith.mulf {total}, {scale} : {VECTOR}")
                to = self.at(w["out"], self.mul(self.add(self.mul(row, w["n"]), column), ITEM))
                self.store(total, to, mask)

    def _joined(self, sums: list[str], many: int) -> list[str]:
        """The totals of independent partial sums."""
        joined = sums[:many]
        for chain in range(many, len(sums), many):
            joined = [self.plus(a, b) for a, b in zip(joined, sums[chain : chain + many])]
        return joined

    def _group(self, k: str, sums: list[str], weight: str, scales: str) -> list[str]:
        """The sums after 32 more positions of K."""
        many = self.rows * self.vectors
        at = self.at(weight, self.mul(k, STRIP * self.bits // 8))
        for ahead in range(ANY.ahead, ANY.ahead + GROUP * STRIP * self.bits // 8, ANY.line):
            self.prefetch(self.at(at, ahead))
        if self.bits == 8:
            return self._multiplied(
                k, sums, many, lambda p, v: self._signed(self.at(at, p * STRIP + v * LANES))
            )
        words: dict[tuple[int, int], tuple[str, str]] = {}

        def weights(p: int, v: int) -> str:
            key = (p // WORD, v)
            if key not in words:
                start = (p // WORD * STRIP + v * LANES) * ITEM
                low = self.read(self.at(at, start), _INTS, ITEM, None)
                shift = self.const(4 * _WITHIN, _INTS)
                words[key] = low, self(f"arith.shrui {low}, {shift} : {_INTS}")
            word, place = words[key][p % WORD // _WITHIN], p % WORD % _WITHIN
            return self._between(word, place)

        parts = self._multiplied(k, [""] * (many * self.chains), many, weights)
        parts = self._joined(parts, many)
        found = []
        line = self.at(scales, self.mul(self.binary("divui", k, GROUP), STRIP * ITEM))
        for v in range(self.vectors):
            scale = self.load(self.at(line, v * LANES * ITEM))
            for r in range(self.rows):
                n = v * self.rows + r
                found.append(self._fma(parts[n], scale, sums[n]))
        return found

    def _multiplied(
        self, k: str, sums: list[str], many: int, weights: Callable[[int, int], str]
    ) -> list[str]:
        """The sums after 32 more products each. weights: gives the weights of a position and a vector of outputs."""
        sums, offset = list(sums), self.mul(k, ITEM)
        lines = [self.at(line, offset) for line in self.lines]
        for p in range(GROUP):
            x = []
            for line in lines:
                number = self(f"llvm.load {self.at(line, p * ITEM)} : !llvm.ptr -> f32")
                x.append(self(f"vector.broadcast {number} : f32 to {VECTOR}"))
            for v in range(self.vectors):
                weight = weights(p, v)
                for r in range(self.rows):
                    n = p % self.chains * many + v * self.rows + r
                    if sums[n]:
                        sums[n] = self._fma(x[r], weight, sums[n])
                    else:
                        sums[n] = self(f"arith.mulf {x[r]}, {weight} : {VECTOR}")
        return sums

    def _fma(self, a: str, b: str, c: str) -> str:
        return self(f"math.fma {a}, {b}, {c} : {VECTOR}")

    def _signed(self, at: str) -> str:
        """16 weights of 8 bits as float32."""
        wide = self(f"arith.extsi {self.read(at, _BYTES, 1, None)} : {_BYTES} to {_INTS}")
        return self(f"arith.sitofp {wide} : {_INTS} to {VECTOR}")

    def _between(self, word: str, place: int) -> str:
        """The 4-bit numbers at position `place` of each word, minus 8, as float32."""
        exponent = _MANTISSA - 4 * place
        mask = self.const(15 << 4 * place, _INTS)
        power = self.const(_ONE + exponent << _MANTISSA, _INTS)
        bits = self(f"arith.andi {word}, {mask} : {_INTS}")
        bits = self(f"arith.ori {bits}, {power} : {_INTS}")
        number = self(f"arith.bitcast {bits} : {_INTS} to {VECTOR}")
        return self(
            f"arith.subf {number}, {self.const(float((1 << exponent) + 8), VECTOR)} : {VECTOR}"
        )
