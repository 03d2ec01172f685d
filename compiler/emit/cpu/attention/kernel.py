"""The base of the attention kernels: arguments by name, tasks, tiles, rows of scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gflow.compiler.kernel.blocks import HEAD, ITEM, LANES, PADDED
from gflow.dialects.records import record

from ..language import philox, vmath
from ..language.vmath import exponential
from ..language.vmath.arith import Arith
from ..product import panels, tile
from ..product.bfloat16 import words
from ..product.function import VECTOR, Function
from . import pairs

_MASK = f"vector<{LANES}xi1>"
_BYTES = f"vector<{LANES}xi8>"
_WORDS = f"vector<{LANES}xi32>"
_LONGS = f"vector<{LANES}xi64>"

#: external functions, besides those whose addresses are arguments
EXTERNALS = ("omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier")

#: arguments of both directions. Strides are in bytes: of batches, heads and positions (b, h, t), of the bias's keys
#: (j). terms: channels d, or pairs of them
COMMON = (
    *("q", "k", "v", "sums", "bias", "rng", "scratch"),
    *("batch", "heads", "group", "tq", "tk", "d", "dv", "terms", "scale", "drop", "stream"),
    *("qb", "qh", "qt", "kb", "kh", "kt", "vb", "vh", "vt"),
    *("sb", "sh", "st", "bb", "bh", "bt", "bj"),
    *("mr", "nr", "rows", "keys", "across", "each"),
)


@record
class Form:
    """The variant of a kernel: everything that its text depends on.

    Attributes:
        bias: the element type of the bias, "f32" or "i1"; "": there is none.
        causal, dropout: whether there is a causal mask, or dropout.
        formula: whether a row whose scores are all -inf gives NaN rather than 0.
        pairs: whether operands, and the result of the forward, are bfloat16 values, which are multiplied in pairs.
        packed: whether k is packed; otherwise it is read in place.
        panels: whether rows of q are packed.
    """

    bias: str = ""
    causal: bool = False
    dropout: bool = False
    packed: bool = True
    panels: bool = True
    formula: bool = False
    pairs: bool = False

    @property
    def name(self) -> str:
        """A name of the variant, as a part of the function's name."""
        parts = (
            f"bias_{self.bias}" if self.bias else "",
            "causal" if self.causal else "",
            "dropout" if self.dropout else "",
            "" if self.packed else "few" if self.panels else "rows",
            "formula" if self.formula else "",
            "pairs" if self.pairs else "",
        )
        return "".join(f"_{part}" for part in parts if part)


class Attention(Function):
    """A kernel over float32 tensors, or over bfloat16 tensors whose scores and sums are float32.

    names: its arguments. addresses: those that are addresses. functions: those that are addresses of functions.
    """

    def __init__(
        self, form: Form, names: Sequence[str], addresses: Sequence[str], functions: Sequence[str]
    ) -> None:
        super().__init__()
        absent = {
            "" if form.bias else "bias",
            "" if form.dropout else "rng",
        }  # arguments that are 0
        pointers = set(addresses) - absent
        self.form, self.m = form, Arith(self, VECTOR)
        self.item = ITEM // 2 if form.pairs else ITEM  #: bytes of an element of an operand
        self.one = Arith(self, "f32")
        self.w = {
            name: self.load_word(i, "!llvm.ptr" if name in pointers else "i64")
            for i, name in enumerate(names)
        }
        for name in functions:
            self.w[name] = self(f"llvm.inttoptr {self.w[name]} : i64 to !llvm.ptr")
        self.scale = self.wide(self._number("scale"))
        self.null = self("llvm.mlir.zero : !llvm.ptr")
        if form.dropout:
            self.seed = self(f"llvm.load {self.w['rng']} : !llvm.ptr -> i64")
            self.offset = self(f"llvm.load {self.at(self.w['rng'], 8)} : !llvm.ptr -> i64")
            drop = self._number("drop")
            keep = self.one.sub(self.one.c(1.0), drop)
            self.keep = self.wide(keep)
            self.kept = self.wide(self.one.div(self.one.c(1.0), keep))

    # -- numbers

    def _number(self, word: str) -> str:
        """The float32 whose bits are the argument `word`."""
        low = self(f"arith.trunci {self.w[word]} : i64 to i32")
        return self(f"arith.bitcast {low} : i32 to f32")

    def wide(self, x: str) -> str:
        """A float32 broadcast to every lane."""
        return self(f"vector.broadcast {x} : f32 to {VECTOR}")

    def number(self, at: str) -> str:
        """The float32 at an address."""
        return self(f"llvm.load {at} : !llvm.ptr -> f32")

    def put(self, x: str, at: str) -> None:
        """Store a float32 at an address."""
        self.line(f"llvm.store {x}, {at} : f32, !llvm.ptr")

    def elements(self, line: str, j: str, inside: str | None = None) -> str:
        """16 elements of a row of an operand from number `j` on, as float32. inside: the lanes to read."""
        at = self.at(line, self.mul(j, self.item))
        if not self.form.pairs:
            return self.load(at, inside)
        return words.widened(self, self.read(at, words.HALF, self.item, inside))

    def put_elements(self, x: str, line: str, j: str, inside: str | None = None) -> None:
        """Write 16 elements of a row of an operand's type. inside: the lanes to write."""
        at = self.at(line, self.mul(j, self.item))
        if self.form.pairs:
            self.put_halves(words.rounded(self, x), at, inside)
        else:
            self.store(x, at, inside)

    def put_halves(self, rounded: str, at: str, inside: str | None = None) -> None:
        """Write `rounded` values (`words.py`) to an address."""
        half = self(f"arith.trunci {rounded} : {words.WORDS} to {words.HALF}")
        self.write(half, at, words.HALF, ITEM // 2, inside)

    def exp(self, x: str, m: Arith | None = None) -> str:
        """The exponential of a number that is at most 0 (up to rounding). m: of its type; of a vector without it."""
        return exponential.exp_of_negative(m or self.m, x)

    def total(self, x: str) -> str:
        """The sum of a vector's lanes."""
        zero = self.const(0.0, "f32")
        return self(f"vector.reduction <add>, {x}, {zero} fastmath<reassoc> : {VECTOR} into f32")

    def greatest_lane(self, x: str) -> str:
        """The largest lane of a vector without NaN."""
        return self(f"vector.reduction <maxnumf>, {x} fastmath<nnan> : {VECTOR} into f32")

    def first(self, count: str) -> str:
        """A mask of the first `count` lanes."""
        return self.first_lanes(self.at_most(self.at_least(count, 0), LANES), LANES)

    def where(self, condition: str, x: str, y: str) -> str:
        """The float32 `x` if the condition holds, otherwise `y`."""
        return self(f"arith.select {condition}, {x}, {y} : f32")

    # -- tasks

    def tasks(self, count: str, body: Callable[[str], None]) -> None:
        """Run tasks 0 … count - 1. A free thread takes the next task, whose number is at the start of scratch."""
        counter = self.w["scratch"]
        me, team = self.thread("thread_num"), self.thread("num_threads")
        self.mine = self.at(counter, self.add(self.mul(me, self.w["each"]), HEAD))
        zero = self.i64(0)
        first = self.compare("eq", me, 0)
        self.branch(first, lambda: self.line(f"llvm.store {zero}, {counter} : i64, !llvm.ptr"))
        self.branch(self.compare("sgt", team, 1), self.barrier)

        def take() -> str:
            one = self.i64(1)
            return self(f"llvm.atomicrmw add {counter}, {one} monotonic : !llvm.ptr, i64")

        begin, t, took = take(), self.fresh("t"), self.fresh("t")
        self.line(f"scf.while ({t} = {begin}) : (i64) -> i64 {{")
        with self.indented():
            self.line(f"scf.condition({self.compare('slt', t, count)}) {t} : i64")
        self.line("} do {")
        self.line(f"^bb0({took}: i64):")
        with self.indented():
            body(took)
            self.line(f"scf.yield {take()} : i64")
        self.line("}")

    def line_of(self, tensor: str, b: str, h: str, t: str | int, letter: str = "") -> str:
        """The address of a batch element, head and position of a tensor. letter: the prefix of its strides' names."""
        letter = letter or tensor
        w = self.w
        return self.at(
            w[tensor],
            self.add(self.mul(b, w[f"{letter}b"]), self.mul(h, w[f"{letter}h"]), self.mul(t, w[f"{letter}t"])),
        )  # fmt: skip

    # -- numbers that are not finite

    def zeros_times(self, at: str, stride: str, rows: str, columns: str, start: str) -> str:
        """The vector `start` plus 0 times all elements of `rows` rows: NaN if one of them is not finite."""

        def row(i: str, sums: list[str]) -> list[str]:
            line = self.at(at, self.mul(i, stride))

            def part(j: str, found: list[str]) -> list[str]:
                x = self.elements(line, j, self.first(self.sub(columns, j)))
                return [self.m.fma(x, self.m.c(0.0), found[0])]

            return self.vectors(columns, sums, part)

        return self.loop(0, rows, 1, [(start, VECTOR)], row)[0]

    def is_nan(self, x: str) -> str:
        """Whether some lane is NaN."""
        total = self.total(x)
        return self(f"arith.cmpf uno, {total}, {total} : f32")

    # -- products

    def panel(self, terms: str, side: str) -> str:
        """The bytes of a panel."""
        return self.mul(self.granules(terms, PADDED), PADDED * ITEM, self.w[side])

    def pair(self, source: str, stride: str, to: str, line: str, count: str, channels: str) -> None:
        """Copy `count` rows in pairs. line: bytes between rows of the copy."""
        arguments = (source, to, stride, line, count, channels)
        self.call(self.w["pair_rows"], ", ".join(arguments), pairs.TYPES)

    def pack(
        self, function: str, side: str, source: str, stride: str, to: str, count: str, terms: str
    ) -> None:
        """Pack positions into panels. side: the argument that has the positions of a panel."""
        size, ahead = self.panel(terms, side), self.mul(self.w[side], ITEM)

        def one(p: str) -> None:
            i = self.mul(p, self.w[side])
            lanes = self.at_most(self.sub(count, i), self.w[side])
            arguments = (self.at(source, self.mul(i, stride)), self.at(to, self.mul(p, size)),
                         stride, self.i64(ITEM), lanes, terms, ahead)  # fmt: skip
            self.call(self.w[function], ", ".join(arguments), panels.TYPES)

        self.repeat(0, self.granules(count, self.w[side]), 1, one)

    def tile(
        self, function: str, a: str, b: str, k_stride: str, k_size: str, c: str, row: str,
        rows: str, columns: str, more: str | int = 0, side: str | int = 0,
    ) -> None:  # fmt: skip
        """Write a call that computes C = A B or C += A B for one tile; `product/tile.py` has the arguments."""
        more = self.i64(more) if isinstance(more, int) else more
        side = self.i64(side) if isinstance(side, int) else side
        nothing = (self.null, self.null, self.i64(0), self.i64(0))
        arguments = (a, b, k_stride, k_size, c, row, rows, columns, more, *nothing, side)
        self.call(self.w[function], ", ".join(arguments), tile.TYPES)

    # -- rows of scores

    def vectors(
        self, count: str, carried: Sequence[str], body: Callable[[str, list[str]], list[str]]
    ) -> list[str]:
        """A loop over 0 … count in steps of 16 lanes, with carried vectors of float32."""
        return self.loop(0, count, LANES, [(x, VECTOR) for x in carried], body)

    def scored(self, raw: str, j: str, bias_row: str, seen: str) -> tuple[str, str]:
        """The scores of 16 keys (scaled products plus bias; -inf for masked keys), and the mask of keys that take part.

        Args:
            raw: the products q kᵀ.
            j: the number of the first key in the block.
            bias_row: the address of the bias's row for this block.
            seen: the number of keys of the block that the row attends to.
        """
        inside = self.first(self.sub(seen, j))
        x = self.m.mul(raw, self.scale)
        if self.form.bias:
            at = self.at(bias_row, self.mul(j, self.w["bj"]))
            once = self.compare("eq", self.w["bj"], 0)
            found = self._bias(at, inside, once)
            if self.form.bias == "i1":
                inside = self.m.both(inside, found)
            else:
                x = self.m.add(x, found)
        return self.m.select(inside, x, self.m.c(float("-inf"))), inside

    def _bias(self, at: str, inside: str, once: str) -> str:
        """A vector of the bias, or one element broadcast to every lane where its stride is 0."""
        boolean = self.form.bias == "i1"
        element, ty = ("i8", _BYTES) if boolean else ("f32", VECTOR)
        result = self.fresh("r")
        self.line(f"{result} = scf.if {once} -> ({ty}) {{")
        with self.indented():
            one = self(f"llvm.load {at} : !llvm.ptr -> {element}")
            self.line(f"scf.yield {self(f'vector.broadcast {one} : {element} to {ty}')} : {ty}")
        self.line("} else {")
        with self.indented():
            self.line(f"scf.yield {self.read(at, ty, 1 if boolean else ITEM, inside)} : {ty}")
        self.line("}")
        if not boolean:
            return result
        return self(f"arith.cmpi ne, {result}, {self.const(0, _BYTES)} : {_BYTES}")

    def dropped(self, x: str, position: str) -> str:
        """A vector after dropout: elements are 0 or divided by 1 - p. position: the number of the first element."""
        wide = self(f"vector.broadcast {position} : i64 to {_LONGS}")
        index = self(f"arith.addi {wide}, {self.steps(LANES, 'i64')} : {_LONGS}")
        numbers = philox.emit(
            self, "uniform", self.w["stream"], [index, self.seed, self.offset], "f32", LANES
        )
        kept = self.m.cmp("olt", numbers, self.keep)
        return self.m.select(kept, self.m.mul(x, self.kept), self.m.c(0.0))

    def logarithm(self, x: str) -> str:
        """The logarithm of a float32."""
        return vmath.emit(self, "log", [x], "f32")
