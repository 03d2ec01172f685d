"""Writing a fixed kernel by hand: named words, integer arithmetic, loops, masked vectors.

Used by the convolution kernels, whose loops are not those of a fused region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .ssa_text import Emitter

LANES = 16
_F32 = f"vector<{LANES}xf32>"
_MASK = f"vector<{LANES}xi1>"
_POINTERS = f"vector<{LANES}x!llvm.ptr>"

Body = Callable[[str, list[str]], list[str]]


class Template(Emitter):
    """A kernel over f32 data whose arguments are words with names.

    `t["h"]` is the value of word `h`. pointers: which words are addresses.
    """

    def __init__(self, words: Sequence[str], pointers: Sequence[str]) -> None:
        super().__init__()
        self.word_names = tuple(words)
        self.values: dict[str, str] = {}
        for i, name in enumerate(words):
            at = self(f"llvm.getelementptr %w[{i}] : (!llvm.ptr) -> !llvm.ptr, i64")
            ty = "!llvm.ptr" if name in pointers else "i64"
            self.values[name] = self(f"llvm.load {at} : !llvm.ptr -> {ty}")

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def i64(self, value: int) -> str:
        return self.const(value, "i64")

    def binary(self, op: str, a: str | int, b: str | int) -> str:
        a, b = (self.i64(x) if isinstance(x, int) else x for x in (a, b))
        return self(f"arith.{op} {a}, {b} : i64")

    def add(self, *terms: str | int) -> str:
        total = terms[0]
        for t in terms[1:]:
            total = self.binary("addi", total, t)
        return total if isinstance(total, str) else self.i64(total)

    def sub(self, a: str | int, b: str | int) -> str:
        return self.binary("subi", a, b)

    def mul(self, *factors: str | int) -> str:
        total = factors[0]
        for f in factors[1:]:
            total = self.binary("muli", total, f)
        return total if isinstance(total, str) else self.i64(total)

    def split(self, flat: str, size: str) -> tuple[str, str]:
        """Quotient and remainder of a non-negative index."""
        return self.binary("divui", flat, size), self.binary("remui", flat, size)

    def at_least(self, a: str | int, b: str | int) -> str:
        return self.binary("maxsi", a, b)

    def at_most(self, a: str | int, b: str | int) -> str:
        return self.binary("minsi", a, b)

    def within(self, x: str, size: str) -> str:
        """0 <= x < size, as one unsigned comparison."""
        return self(f"arith.cmpi ult, {x}, {size} : i64")

    def loop(
        self,
        low: str | int,
        high: str,
        step: str | int,
        inits: Sequence[str],
        body: Body,
        ty: str = _F32,
    ) -> list[str]:
        """A loop that carries values of type `ty`."""
        low, step = (self.i64(x) if isinstance(x, int) else x for x in (low, step))
        iv = self.fresh("i")
        if not inits:
            self.line(f"scf.for {iv} = {low} to {high} step {step} : i64 {{")
            with self.indented():
                body(iv, [])
            self.line("}")
            return []
        names = [self.fresh("a") for _ in inits]
        result, types = self.fresh("r"), ", ".join([ty] * len(inits))
        args = ", ".join(f"{n} = {i}" for n, i in zip(names, inits))
        head = f"{result}:{len(inits)} = scf.for {iv} = {low} to {high} step {step}"
        self.line(f"{head} iter_args({args}) -> ({types}) : i64 {{")
        with self.indented():
            self.line(f"scf.yield {', '.join(body(iv, names))} : {types}")
        self.line("}")
        return [f"{result}#{n}" for n in range(len(inits))]

    def thread_number(self, which: str) -> str:
        """`thread_num` or `num_threads`."""
        self.externals.add(f"omp_get_{which}")
        return self(f"arith.extsi {self(f'llvm.call @omp_get_{which}() : () -> i32')} : i32 to i64")

    def share(self, total: str) -> tuple[str, str]:
        """This thread's part of 0…total."""
        tid, count = self.thread_number("thread_num"), self.thread_number("num_threads")
        part = self.binary("ceildivsi", total, count)
        low = self.at_most(self.mul(part, tid), total)
        return low, self.at_most(self.add(low, part), total)

    def barrier(self) -> None:
        self.externals.add("GOMP_barrier")
        self.line("llvm.call @GOMP_barrier() : () -> ()")

    # -- vectors

    def pointer(self, base: str, index: str) -> str:
        return self(f"llvm.getelementptr {base}[{index}] : (!llvm.ptr, i64) -> !llvm.ptr, f32")

    def zero(self) -> str:
        return self.const(0.0, _F32)

    def mask(self, count: str) -> str:
        """The first `count` lanes (all of them if `count` is larger)."""
        small = self(f"arith.trunci {self.at_most(count, LANES)} : i64 to i32")
        wide = self(f"vector.broadcast {small} : i32 to vector<{LANES}xi32>")
        return self(f"arith.cmpi slt, {self.steps(LANES, 'i32')}, {wide} : vector<{LANES}xi32>")

    def both(self, mask: str, condition: str) -> str:
        """The mask, or no lane where the scalar condition is false."""
        wide = self(f"vector.broadcast {condition} : i1 to {_MASK}")
        return self(f"arith.andi {mask}, {wide} : {_MASK}")

    def lanes(self, base: str, index: str, stride: str | None) -> str:
        """Pointers of lanes that are `stride` elements apart."""
        start = self.pointer(base, index)
        i64 = f"vector<{LANES}xi64>"
        wide = self(f"vector.broadcast {stride} : i64 to {i64}")
        offsets = self(f"arith.muli {self.steps(LANES, 'i64')}, {wide} : {i64}")
        types = f"(!llvm.ptr, {i64}) -> {_POINTERS}, f32"
        return self(f"llvm.getelementptr {start}[{offsets}] : {types}")

    def load(
        self, base: str, index: str, mask: str | None = None, stride: str | None = None
    ) -> str:
        if stride is not None:
            at = self.lanes(base, index, stride)
            return self(
                f"llvm.intr.masked.gather {at}, {mask}, {self.zero()} {{alignment = 4 : i32}}"
                f" : ({_POINTERS}, {_MASK}, {_F32}) -> {_F32}"
            )
        at = self.pointer(base, index)
        if mask is None:
            return self(f"llvm.load {at} {{alignment = 4 : i64}} : !llvm.ptr -> {_F32}")
        return self(
            f"llvm.intr.masked.load {at}, {mask}, {self.zero()} {{alignment = 4 : i32}} : "
            f"(!llvm.ptr, {_MASK}, {_F32}) -> {_F32}"
        )

    def store(
        self, value: str, base: str, index: str, mask: str | None = None, stride: str | None = None
    ) -> None:
        if stride is not None:
            at = self.lanes(base, index, stride)
            self.line(
                f"llvm.intr.masked.scatter {value}, {at}, {mask} {{alignment = 4 : i32}} : "
                f"{_F32}, {_MASK} into vector<{LANES}x!llvm.ptr>"
            )
            return
        at = self.pointer(base, index)
        if mask is None:
            self.line(f"llvm.store {value}, {at} {{alignment = 4 : i64}} : {_F32}, !llvm.ptr")
        else:
            self.line(
                f"llvm.intr.masked.store {value}, {at}, {mask} {{alignment = 4 : i32}}"
                f" : {_F32}, {_MASK} into !llvm.ptr"
            )

    def fma(self, a: str, b: str, c: str) -> str:
        return self(f"math.fma {a}, {b}, {c} : {_F32}")

    def plus(self, a: str, b: str) -> str:
        return self(f"arith.addf {a}, {b} : {_F32}")

    def function(self, name: str) -> str:
        return f"  llvm.func @{name}(%w: !llvm.ptr) {{\n{self.text()}\n    llvm.return\n  }}"
