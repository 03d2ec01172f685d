"""The key of a timed comparison of two kernels for a product: its sizes, and the contiguous dimensions of A and B."""

from __future__ import annotations

from dataclasses import replace

from gflow.dialects.records import record

from .blocks import Problem

#: the most multiplications of one run of a comparison: a few milliseconds
_MOST = 1 << 27
#: the fewest multiplications of a product that is compared. A comparison takes 50 to 100 ms with LLVM, and gains
#: about 0.1 ms a call at this size
_LEAST = 1 << 24


@record
class Contest:
    """A float32 product that gflow's own kernel and the BLAS can both compute.

    Attributes:
        product: its sizes.
        a, b: the contiguous dimension of A and of B: "k", or "lanes" (rows of A, columns of B).
    """

    product: Problem
    a: str
    b: str

    @property
    def worth_while(self) -> bool:
        """Whether the product takes long enough for a comparison to pay."""
        return self.size >= _LEAST

    @property
    def size(self) -> int:
        """Multiplications of the product."""
        return _count(self.product)

    def shorter(self) -> Contest:
        """The product with its longest dimensions halved until one run takes milliseconds.

        The ratio of the two kernels' times hardly depends on the length of long dimensions.
        """
        found = self.product
        while _count(found) > _MOST:
            sizes = dict(zip(("rows", "columns", "k", "batch"), found.sizes))
            longest = max(sizes, key=lambda name: sizes[name])
            found = replace(found, **{longest: -(-sizes[longest] // 2)})
        return replace(self, product=found)

    def __str__(self) -> str:
        p = self.product
        batch = f"{p.batch} of " if p.batch > 1 else ""
        usual = f" (mostly {p.usual_rows})" if p.usual_rows else ""
        return f"{batch}{p.rows}x{p.k} {self.a}{usual}, {p.k}x{p.columns} {self.b}"


def _count(p: Problem) -> int:
    return p.rows * p.columns * p.k * p.batch
