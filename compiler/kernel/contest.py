"""What two ways to make a product are compared by: its sizes, and how its operands lie."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .blocks import Problem

#: products of one run of a race: some milliseconds
_MOST = 1 << 27
#: products of which there are fewer are not raced: a comparison takes 50 to 100 ms with LLVM, and gains 0.1 ms a call
_LEAST = 1 << 24


@dataclass(frozen=True)
class Contest:
    """A product of float32 that our own kernel and the library's can make.

    a, b: the contiguous dimension of A and of B: "k", or "lanes", which are rows of A, columns of B.
    """

    product: Problem
    a: str
    b: str

    @property
    def worth_while(self) -> bool:
        """Whether the product takes long enough for a race to tell who is faster."""
        return self.size >= _LEAST

    @property
    def size(self) -> int:
        """How many multiplications it takes."""
        return _count(self.product)

    def shorter(self) -> Contest:
        """The same at a size that takes milliseconds: large products go on as they begin."""
        found = self.product
        while _count(found) > _MOST:
            sizes = vars(found)
            longest = max(sizes, key=lambda name: sizes[name])
            found = replace(found, **{longest: -(-sizes[longest] // 2)})
        return replace(self, product=found)

    def __str__(self) -> str:
        p = self.product
        batch = f"{p.batch} of " if p.batch > 1 else ""
        return f"{batch}{p.rows}x{p.k} {self.a}, {p.k}x{p.columns} {self.b}"


def _count(p: Problem) -> int:
    return p.rows * p.columns * p.k * p.batch
