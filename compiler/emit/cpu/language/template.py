"""Hand-written kernels: arguments by name, vectors of float32.

The convolution kernels use it, since their loops are not those of a fused region.
"""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.kernel.blocks import LANES

from .code import Body, Code

F32 = f"vector<{LANES}xf32>"
_MASK = f"vector<{LANES}xi1>"


class Template(Code):
    """A kernel over float32 data whose arguments have names.

    `t["h"]` is the value of argument `h`. pointers: the arguments that are addresses.
    """

    def __init__(self, words: Sequence[str], pointers: Sequence[str]) -> None:
        super().__init__()
        self.word_names = tuple(words)
        self.values = {
            name: self.load_word(i, "!llvm.ptr" if name in pointers else "i64")
            for i, name in enumerate(words)
        }

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def pointer(self, base: str, index: str) -> str:
        """The address of the float32 at `base[index]`."""
        return self(f"llvm.getelementptr {base}[{index}] : (!llvm.ptr, i64) -> !llvm.ptr, f32")

    def zero(self) -> str:
        """A vector of zeros."""
        return self.const(0.0, F32)

    def mask(self, count: str) -> str:
        """The first `count` lanes (all of them if `count` is larger)."""
        return self.first_lanes(self.at_most(count, LANES), LANES)

    def both(self, mask: str, condition: str) -> str:
        """The mask if the scalar condition holds; otherwise a mask without lanes."""
        wide = self(f"vector.broadcast {condition} : i1 to {_MASK}")
        return self(f"arith.andi {mask}, {wide} : {_MASK}")

    def load(
        self, base: str, index: str, mask: str | None = None, stride: str | None = None
    ) -> str:
        """A vector of float32 from `base[index]`. stride: between its elements, in elements (None: 1). mask:
        lanes to read."""
        at = self.pointer(base, index)
        if stride is not None:
            return self.gather(at, stride, F32, 4, mask)
        return self.read(at, F32, 4, mask)

    def store(
        self, value: str, base: str, index: str, mask: str | None = None, stride: str | None = None
    ) -> None:
        """Write a vector of float32 to `base[index]`. stride: between its elements, in elements (None: 1).
        mask: lanes to write."""
        at = self.pointer(base, index)
        if stride is not None:
            self.scatter(value, at, stride, F32, 4, mask)
        else:
            self.write(value, at, F32, 4, mask)

    def accumulate(self, low: str | int, high: str, sums: Sequence[str], body: Body) -> list[str]:
        """A loop over low … high with carried vectors; returns their final values."""
        return self.loop(low, high, 1, [(s, F32) for s in sums], body)

    def fma(self, a: str, b: str, c: str) -> str:
        """a · b + c, rounded once."""
        return self(f"math.fma {a}, {b}, {c} : {F32}")

    def plus(self, a: str, b: str) -> str:
        """a + b."""
        return self(f"arith.addf {a}, {b} : {F32}")

    def function(self, name: str) -> str:
        """The text as an `llvm.func` that takes the address of its arguments."""
        return f"  llvm.func @{name}(%w: !llvm.ptr) {{\n{self.text()}\n    llvm.return\n  }}"
