"""The base of all CPU kernel writers: integers, arguments, loops, threads, vectors in memory.

Kernels of fused regions (`writer`) and hand-written kernels (`template`) use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .ssa_text import Emitter

#: (initial value, type) of each loop-carried value
Carried = Sequence[tuple[str, str]]

#: the body of a loop: takes its position and the carried values, and returns their new values
Body = Callable[[str, list[str]], list[str]]

#: loops are already unrolled as far as they should be; further unrolling by LLVM would cost compile time
_KEEP_ROLLED = " {loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}"


class Code(Emitter):
    """The MLIR text of a function that takes one pointer to its arguments, 64-bit words."""

    def load_word(self, i: int, ty: str) -> str:
        """Argument number `i`, of type "i64", "f64" or "!llvm.ptr"."""
        at = self(f"llvm.getelementptr %w[{i}] : (!llvm.ptr) -> !llvm.ptr, i64") if i else "%w"
        return self(f"llvm.load {at} : !llvm.ptr -> {ty}")

    # -- 64-bit integers

    def i64(self, value: int) -> str:
        """An i64 constant."""
        return self.const(value, "i64")

    def binary(self, op: str, a: str | int, b: str | int) -> str:
        """An op of `arith` on two i64; ints become constants."""
        a, b = (self.i64(x) if isinstance(x, int) else x for x in (a, b))
        return self(f"arith.{op} {a}, {b} : i64")

    def _chain(self, op: str, values: Sequence[str | int]) -> str:
        total = values[0]
        for v in values[1:]:
            total = self.binary(op, total, v)
        return total if isinstance(total, str) else self.i64(total)

    def add(self, *terms: str | int) -> str:
        """The sum of i64 values and ints, by `arith.addi`."""
        return self._chain("addi", terms)

    def sub(self, a: str | int, b: str | int) -> str:
        """a − b, by `arith.subi`."""
        return self.binary("subi", a, b)

    def mul(self, *factors: str | int) -> str:
        """The product of i64 values and ints, by `arith.muli`."""
        return self._chain("muli", factors)

    def split(self, flat: str, size: str) -> tuple[str, str]:
        """Quotient and remainder of a non-negative index."""
        return self.binary("divui", flat, size), self.binary("remui", flat, size)

    def granules(self, x: str, granule: str | int) -> str:
        """`x` / `granule`, rounded up."""
        return self.binary("ceildivsi", x, granule)

    def at_least(self, a: str | int, b: str | int) -> str:
        """The larger one, by `arith.maxsi`."""
        return self.binary("maxsi", a, b)

    def at_most(self, a: str | int, b: str | int) -> str:
        """The smaller one, by `arith.minsi`."""
        return self.binary("minsi", a, b)

    def within(self, x: str, size: str) -> str:
        """0 <= x < size, as one unsigned comparison."""
        return self(f"arith.cmpi ult, {x}, {size} : i64")

    # -- loops

    def loop(
        self,
        low: str | int,
        high: str,
        step: str | int,
        inits: Carried,
        body: Body,
    ) -> list[str]:
        """A loop with carried values, which LLVM does not unroll. Returns their final values."""
        low, step = (self.i64(x) if isinstance(x, int) else x for x in (low, step))
        iv, names = self.fresh("i"), [self.fresh("a") for _ in inits]
        types = ", ".join(ty for _, ty in inits)
        result, head, carry = "", "", ""
        if inits:
            result = self.fresh("r")
            args = ", ".join(f"{n} = {init}" for n, (init, _) in zip(names, inits))
            head, carry = f"{result}:{len(inits)} = ", f" iter_args({args}) -> ({types})"
        self.line(f"{head}scf.for {iv} = {low} to {high} step {step}{carry} : i64 {{")
        with self.indented():
            values = body(iv, names)
            if inits:
                self.line(f"scf.yield {', '.join(values)} : {types}")
        self.line("}" + _KEEP_ROLLED)
        return [f"{result}#{n}" for n in range(len(inits))]

    # -- threads

    def thread(self, which: str) -> str:
        """ "thread_num" or "num_threads" of the OpenMP team."""
        self.externals.add(f"omp_get_{which}")
        return self(f"arith.extsi {self(f'llvm.call @omp_get_{which}() : () -> i32')} : i32 to i64")

    def barrier(self) -> None:
        """A barrier of all OpenMP threads."""
        self.externals.add("GOMP_barrier")
        self.line("llvm.call @GOMP_barrier() : () -> ()")

    def share(self, total: str, granule: int = 1) -> tuple[str, str]:
        """This thread's part (low, high) of 0 … total, in multiples of `granule`."""
        tid, count = self.thread("thread_num"), self.thread("num_threads")
        part = self.granules(total, count)
        if granule > 1:
            part = self.mul(self.granules(part, granule), granule)
        start = self.mul(part, tid)
        return self.at_most(start, total), self.at_most(self.add(start, part), total)

    # -- vectors

    def first_lanes(self, count: str, lanes: int) -> str:
        """A mask of the first `count` of `lanes` lanes."""
        small = self(f"arith.trunci {count} : i64 to i32")
        wide = self(f"vector.broadcast {small} : i32 to vector<{lanes}xi32>")
        return self(f"arith.cmpi slt, {self.steps(lanes, 'i32')}, {wide} : vector<{lanes}xi32>")

    def read(self, at: str, ty: str, align: int, mask: str | None) -> str:
        """Load a `ty` from address `at`; masked-off lanes are 0."""
        if mask is None:
            return self(f"llvm.load {at} {{alignment = {align} : i64}} : !llvm.ptr -> {ty}")
        return self(
            f"llvm.intr.masked.load {at}, {mask}, {self.const(0, ty)} {{alignment = {align} : i32}} : "
            f"(!llvm.ptr, {_lanes(ty)}xi1>, {ty}) -> {ty}"
        )

    def write(self, value: str, at: str, ty: str, align: int, mask: str | None) -> None:
        """Store `value` to address `at`, except masked-off lanes."""
        if mask is None:
            self.line(f"llvm.store {value}, {at} {{alignment = {align} : i64}} : {ty}, !llvm.ptr")
            return
        self.line(
            f"llvm.intr.masked.store {value}, {at}, {mask} {{alignment = {align} : i32}} : "
            f"{ty}, {_lanes(ty)}xi1> into !llvm.ptr"
        )

    def lane_offsets(self, stride: str, lanes: int) -> str:
        """A vector of i64: 0, stride, 2 · stride, …"""
        i64 = f"vector<{lanes}xi64>"
        wide = self(f"vector.broadcast {stride} : i64 to {i64}")
        return self(f"arith.muli {self.steps(lanes, 'i64')}, {wide} : {i64}")

    def _lane_pointers(self, at: str, stride: str, ty: str) -> str:
        lanes = _lanes(ty)
        offsets = self.lane_offsets(stride, int(lanes.removeprefix("vector<")))
        element = ty[ty.rindex("x") + 1 : -1]
        types = f"(!llvm.ptr, {lanes}xi64>) -> {lanes}x!llvm.ptr>"
        return self(f"llvm.getelementptr {at}[{offsets}] : {types}, {element}")

    def gather(self, at: str, stride: str, ty: str, align: int, mask: str | None) -> str:
        """Load a `ty` from elements `stride` apart, the first at address `at`; masked-off lanes are 0."""
        lanes = _lanes(ty)
        pointers = self._lane_pointers(at, stride, ty)
        mask = mask or self.const(True, f"{lanes}xi1>")
        return self(
            f"llvm.intr.masked.gather {pointers}, {mask}, {self.const(0, ty)} {{alignment = {align} : i32}} : "
            f"({lanes}x!llvm.ptr>, {lanes}xi1>, {ty}) -> {ty}"
        )

    def scatter(
        self, value: str, at: str, stride: str, ty: str, align: int, mask: str | None
    ) -> None:
        """Store `value` to elements `stride` apart, the first at address `at`, except masked-off lanes."""
        lanes = _lanes(ty)
        pointers = self._lane_pointers(at, stride, ty)
        mask = mask or self.const(True, f"{lanes}xi1>")
        self.line(
            f"llvm.intr.masked.scatter {value}, {pointers}, {mask} {{alignment = {align} : i32}} : "
            f"{ty}, {lanes}xi1> into {lanes}x!llvm.ptr>"
        )


def _lanes(ty: str) -> str:
    """`vector<16` of `vector<16xf32>`."""
    return ty[: ty.rindex("x")]
