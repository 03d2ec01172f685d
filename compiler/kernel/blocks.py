"""How a product of matrices of our own is cut on a processor: tiles in registers, blocks in caches, shares of threads.

a tile      rows × columns of the result, summed in registers over a block of K
a block     rows of A that one thread packs (`rows`), columns of B that all pack together (`columns`)
a share     what a thread takes at a time: the rows of a block, by `across` of its columns
"""

from __future__ import annotations

from dataclasses import dataclass

from gflow.compiler.targets.processors import ANY
from gflow.dialects.extents import at_most

#: bytes of a float32, and how many make a vector; packed panels have a multiple of `PADDED` along K
ITEM, LANES, PADDED = 4, ANY.lanes, 2 * ANY.lanes

#: bytes at the start of scratch: the number of the next share
HEAD = 64


@dataclass(frozen=True)
class Blocks:
    """The numbers of a blocked product.

    Attributes:
        tile: rows, columns and kc (BLIS: how much of K) of a tile.
        rows, columns: of a block of A, and of B.
        across: columns of a share.
        packed: columns of B are packed; else B is read where it lies, and where its K is contiguous, A, too.
        apart: threads make whole products of a batch each, rather than one after the other together.
    """

    tile: tuple[int, int, int]
    rows: int
    columns: int
    across: int
    apart: bool = False
    packed: bool = True

    @property
    def a_bytes(self) -> int:
        """Of a packed block of A: one a thread."""
        return _whole(ITEM * (self.rows * self._padded_kc + PADDED))

    @property
    def b_bytes(self) -> int:
        """Of a packed block of B, which threads share unless they work apart."""
        return _whole(ITEM * self.columns * self._padded_kc) if self.packed else 0

    @property
    def _padded_kc(self) -> int:
        return -(-self.tile[2] // PADDED) * PADDED

    @property
    def each(self) -> int:
        """Bytes of scratch of one thread that works apart."""
        return HEAD + self.a_bytes + self.b_bytes

    def scratch(self, threads: int) -> int:
        """Bytes of scratch."""
        if self.apart:
            return threads * self.each
        return HEAD + self.b_bytes + threads * self.a_bytes


@dataclass(frozen=True)
class Strips:
    """The numbers of a product whose B was packed beforehand, in strips of columns.

    Attributes:
        tile: rows, columns (those of a strip) and K (all of it) of what is summed in registers.
        rows, across: of a share: what a thread takes at a time.
    """

    tile: tuple[int, int, int]
    rows: int
    across: int

    def scratch(self, taps: int, channels: int) -> tuple[int, int]:
        """Bytes of scratch of a thread: of zeros that stand for what lies outside of an activation, and of the
        addresses of a share's rows."""
        return _whole(ITEM * channels), _whole(8 * self.rows * taps)


@dataclass(frozen=True)
class Problem:
    """A product, or a batch of such: rows and columns of each result, and K, the size of the reduction dimension.

    Numbers may vary from call to call; decisions go by their greatest values.
    """

    rows: int
    columns: int
    k: int
    batch: int = 1

    def most(self) -> Problem:
        """The problem at the greatest values of dynamic dimensions."""
        return Problem(*(at_most(n) for n in (self.rows, self.columns, self.k, self.batch)))


def _whole(size: int) -> int:
    return -(-size // 64) * 64
