"""The base of functions that product kernels call: their arguments are values, not an array of words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gflow.compiler.kernel.blocks import ITEM, LANES

from ..language.code import Code

#: on CPUs with narrower vectors, LLVM splits each into several
VECTOR = f"vector<{LANES}xf32>"


class Function(Code):
    """The MLIR text of a function over float32 data. Offsets are in bytes."""

    def at(self, base: str, offset: str | int) -> str:
        """The address `offset` bytes after `base`."""
        if isinstance(offset, int):
            if not offset:
                return base
            return self(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8")
        return self(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")

    def load(self, at: str, mask: str | None = None) -> str:
        """A vector of float32 from the address `at`. mask: lanes to read."""
        return self.read(at, VECTOR, ITEM, mask)

    def store(self, value: str, at: str, mask: str | None = None) -> None:
        """Write a vector of float32 to the address `at`. mask: lanes to write."""
        self.write(value, at, VECTOR, ITEM, mask)

    def prefetch(self, at: str, write: bool = False, near: bool = True) -> None:
        """Prefetch the cache line of an address, which may be invalid. near: to the L1 cache, otherwise to L2."""
        hints = f"cache = 1 : i32, hint = {3 if near else 2} : i32, rw = {int(write)} : i32"
        self.line(f'"llvm.intr.prefetch"({at}) <{{{hints}}}> : (!llvm.ptr) -> ()')

    def plus(self, a: str, b: str) -> str:
        """a + b, of vectors."""
        return self(f"arith.addf {a}, {b} : {VECTOR}")

    def compare(self, predicate: str, a: str, b: str | int) -> str:
        """`arith.cmpi` on i64."""
        b = self.i64(b) if isinstance(b, int) else b
        return self(f"arith.cmpi {predicate}, {a}, {b} : i64")

    def choose(self, condition: str, a: str | int, b: str | int) -> str:
        """The i64 `a` if the condition holds, otherwise `b`."""
        a, b = (self.i64(x) if isinstance(x, int) else x for x in (a, b))
        return self(f"arith.select {condition}, {a}, {b} : i64")

    def branch(
        self, condition: str, then: Callable[[], None], other: Callable[[], None] | None = None
    ) -> None:
        """Write a branch: `then` if the condition holds, otherwise `other`."""
        self.line(f"scf.if {condition} {{")
        with self.indented():
            then()
        if other is not None:
            self.line("} else {")
            with self.indented():
                other()
        self.line("}")

    def repeat(
        self, low: str | int, high: str, step: str | int, body: Callable[[str], None]
    ) -> None:
        """Write a loop without carried values."""

        def run(position: str, _: list[str]) -> list[str]:
            body(position)
            return []

        self.loop(low, high, step, [], run)

    def shares(
        self, counter: str, count: str, along: str, body: Callable[[str, str, str], None]
    ) -> str:
        """Write a loop over shares, which threads take from a common counter until none are left.

        Args:
            counter: the address of the number of the next share.
            count: the number of shares.
            along: the number of shares of a block.
            body: writes one share, given its block, its number in the block, and the block of this thread's previous
                share (-1 for its first one).

        Returns:
            The last number that this thread took, which is `count` or more.
        """
        result, number, had, took, before = (self.fresh("s") for _ in range(5))
        first, none = self._take(counter), self.i64(-1)
        self.line(
            f"{result}:2 = scf.while ({number} = {first}, {had} = {none}) : (i64, i64) -> (i64, i64) {{"
        )
        with self.indented():
            self.line(
                f"scf.condition({self.compare('slt', number, count)}) {number}, {had} : i64, i64"
            )
        self.line("} do {")
        self.line(f"^bb0({took}: i64, {before}: i64):")
        with self.indented():
            block, side = self.split(took, along)
            body(block, side, before)
            self.line(f"scf.yield {self._take(counter)}, {block} : i64, i64")
        self.line("}")
        return f"{result}#0"

    def words_by_name(
        self, names: Sequence[str], pointers: Collection[str], functions: Collection[str]
    ) -> dict[str, str]:
        """The function's arguments, which are an array of words, by name; without `next`, the counter of shares.

        pointers: names of those that are addresses. functions: names of those that are addresses of functions.
        """
        found = {
            name: self.load_word(i, "!llvm.ptr" if name in pointers else "i64")
            for i, name in enumerate(names)
            if name != "next"
        }
        for name in functions:
            found[name] = self(f"llvm.inttoptr {found[name]} : i64 to !llvm.ptr")
        return found

    def all_shares(
        self, counter: str, count: str, along: str, body: Callable[[str, str, str], None]
    ) -> None:
        """Write a loop over shares, as `shares`, whose counter the last thread that finds none left sets to 0."""
        taken = self.shares(counter, count, along, body)
        last = self.compare("eq", taken, self.sub(self.add(count, self.thread("num_threads")), 1))
        zero = self.i64(0)
        self.branch(last, lambda: self.line(f"llvm.store {zero}, {counter} : i64, !llvm.ptr"))

    def clear(self, at: str, size: str) -> None:
        """Set `size` bytes to zero."""
        arguments = f"{at}, {self.const(0, 'i8')}, {size}"
        self.line(
            f'"llvm.intr.memset"({arguments}) <{{isVolatile = false}}> : (!llvm.ptr, i8, i64) -> ()'
        )

    def _take(self, counter: str) -> str:
        """Take the number of the next share (an atomic increment)."""
        return self(f"llvm.atomicrmw add {counter}, {self.i64(1)} monotonic : !llvm.ptr, i64")

    def call(self, function: str, arguments: str, types: str) -> None:
        """Call a function by its address."""
        self.line(f"llvm.call {function}({arguments}) : !llvm.ptr, ({types}) -> ()")

    def function(self, name: str, arguments: str = "%w: !llvm.ptr") -> str:
        """The text as an `llvm.func`. arguments: its parameters as MLIR text."""
        return f"  llvm.func @{name}({arguments}) {{\n{self.text()}\n    llvm.return\n  }}"
