"""The blocking of gflow's own float32 matrix products C = A B on a processor (after BLIS).

tile     rows × columns of C whose sums stay in registers while a block of K is multiplied
block    the rows of A that one thread packs (`rows`), or the columns of B that all threads pack together (`columns`)
share    the part of C that a thread computes before it asks for more: the rows of a block by `across` columns
"""

from __future__ import annotations

from gflow.compiler.targets.processors import ANY
from gflow.dialects.extents import at_most, typical, varies
from gflow.dialects.records import record

from .convolution import Geometry, Walk

#: bytes of a float32; elements of a vector; packed panels are padded to a multiple of `PADDED` elements along K
ITEM, LANES, PADDED = 4, ANY.lanes, 2 * ANY.lanes

#: products by tiles of bfloat16 (Intel AMX, AVX-512), by the name of their precision: the bfloat16 values that a value
#: is the sum of
BF16X6, BF16 = "bf16x6", "bf16"
PARTS = {BF16X6: 3, BF16: 1}
#: rows and columns of such a tile, and bytes after a panel of several parts, for the range of its values, and after a
#: strip
AMX_LANES, TAIL = 2 * ANY.lanes, 64

#: cache lines from which on rows that begin in few cache sets are moved apart by one line
_APART = 4

#: bytes at the start of scratch that hold the number of the next share, alone on its cache line
HEAD = 64


@record
class Blocks:
    """The blocking of a product; sizes are in elements.

    Attributes:
        tile: rows and columns of a tile, and kc, the length of a block of K.
        rows, columns: rows of a block of A and columns of a block of B, multiples of the tile's.
        across: columns of a share, a multiple of the tile's.
        apart: each thread computes whole products of a batch; otherwise all threads share each product.
        packed: blocks of B are packed. Otherwise B is read in place; where K is B's contiguous dimension, so is A.
        precision: how float32 values are multiplied: "" (multiply-adds of float32), or "bf16x6" (each value is the sum
            of three bfloat16 values; the six largest products of those are added in float32 by Intel AMX). "bf16": the
            values are bfloat16 values, and Intel AMX or AVX-512 adds their products in float32.
    """

    tile: tuple[int, int, int]
    rows: int
    columns: int
    across: int
    apart: bool = False
    packed: bool = True
    precision: str = ""

    @property
    def item(self) -> int:
        """Bytes of an element of a panel."""
        return item_of(self.precision)

    @property
    def tail(self) -> int:
        """Bytes after each panel."""
        return TAIL if self.precision == BF16X6 else 0

    @property
    def a_bytes(self) -> int:
        """Bytes of a packed block of A; each thread has one."""
        panels = self.tail * self.rows // self.tile[0]
        return _whole(self.item * (self.rows * self._padded_kc + PADDED) + panels)

    @property
    def b_bytes(self) -> int:
        """Bytes of a packed block of B, which threads share unless they work `apart`; 0 where B is not packed."""
        panels = self.tail * self.columns // self.tile[1]
        return _whole(self.item * self.columns * self._padded_kc + panels) if self.packed else 0

    @property
    def _padded_kc(self) -> int:
        return -(-self.tile[2] // PADDED) * PADDED

    @property
    def each(self) -> int:
        """Bytes of scratch of one thread that works apart."""
        return HEAD + self.a_bytes + self.b_bytes

    def scratch(self, threads: int) -> int:
        """Bytes of scratch of the product on so many threads."""
        if self.apart:
            return threads * self.each
        return HEAD + self.b_bytes + threads * self.a_bytes


@record
class Strips:
    """The blocking of a product whose A is read in place, and whose B is packed in strips of columns.

    Attributes:
        tile: rows of a tile, its columns (those of a strip), and all of K.
        rows, across: rows and columns of a share, multiples of the tile's.
        columns: columns that are packed at a time, a multiple of the tile's; 0: B was packed beforehand
            (`gflow-pack-weights`).
        by_position: whether rows of a convolution are ordered by position, with all images side by side. Otherwise they
            are ordered by image, as in memory.
        precision: "bf16": the values are bfloat16 values, of which two are a word; K and channels count words. "": they
            are float32 values.
    """

    tile: tuple[int, int, int]
    rows: int
    across: int
    columns: int = 0
    by_position: bool = False
    precision: str = ""

    def words(self, channels: int) -> int:
        """The words of an activation's channels at one position."""
        return words_of(channels, self.precision)

    def scratch(self, taps: int, channels: int) -> tuple[int, int]:
        """Bytes of scratch of a thread: zeros that padding reads, and the table of a share's rows.

        Args:
            taps: positions of the convolution's kernel; 1 for a product of matrices.
            channels: of the activation.
        """
        height = self.tile[0]
        return _whole(ITEM * self.words(channels)), _whole(
            8 * (self.rows // height) * (height + 1) * (taps + 1)
        )

    @property
    def strip_bytes(self) -> int:
        """Bytes of a strip; one that is packed for one use ends with a mark."""
        return ITEM * self.tile[1] * self.tile[2] + (TAIL if self.columns else 0)

    @property
    def b_bytes(self) -> int:
        """Bytes of a block of B that is packed for one use."""
        return self.columns // self.tile[1] * self.strip_bytes


#: the most tiles of results beside each other whose epilogue runs at once (Winograd's algorithm)
WINOGRAD_RUN = 8


@record
class Winograd:
    """The blocking of a convolution by Winograd's algorithm F(2×2, 3×3).

    Attributes:
        tile: rows and columns of a register tile; rows are tiles of 2×2 results.
        tiles: tiles of results that a thread transforms at a time, a multiple of the register tile's rows.
    """

    tile: tuple[int, int]
    tiles: int

    @property
    def m_row(self) -> int:
        """Bytes of the products of a tile and a strip of columns, one of 16."""
        return ITEM * self.tile[1]

    def v_row(self, walk: Walk) -> int:
        """Bytes of a transformed tile of the input, one of 16. Rows are in different cache sets."""
        return _whole(ITEM * walk.kernel[0] * walk.channels) + 64

    def u_strip(self, walk: Walk) -> int:
        """Bytes of a transformed strip of the weight, one of 16."""
        return ITEM * self.tile[1] * walk.kernel[0] * walk.channels

    def strip(self, walk: Walk) -> int:
        """Bytes of a packed strip of the weight."""
        return 9 * self.u_strip(walk) + TAIL

    def per_tile(self, walk: Walk) -> int:
        """Bytes of a thread for each tile of a block."""
        return 16 * (self.v_row(walk) + self.m_row)

    def each(self, walk: Walk) -> int:
        """Bytes of scratch of a thread: zeros, transformed tiles, products, and results of a run of tiles."""
        held = 4 * WINOGRAD_RUN * self.m_row
        return _whole(ITEM * walk.channels) + self.tiles * self.per_tile(walk) + held

    def scratch(self, walk: Walk) -> tuple[int, int, int, int]:
        """Bytes of packed weights, of transformed weights, of a position's zeros, and of a thread."""
        strips = -(-walk.columns // self.tile[1])
        packed, u = strips * self.strip(walk), 16 * strips * self.u_strip(walk)
        return _whole(packed), _whole(u), _whole(ITEM * walk.channels), self.each(walk)


@record
class WinogradGradient:
    """The blocking of the gradient of a convolution's weight by Winograd's algorithm.

    Attributes:
        tile: rows (output channels) and columns (input channels) of a register tile.
        tiles: tiles of results that are transformed at a time.
        rows: rows of the 4×4 of a share, 1 or 4.
        beside: output channels of a share, a multiple of the register tile's rows and of a vector.
    """

    tile: tuple[int, int]
    tiles: int
    rows: int
    beside: int

    def v_row(self, g: Geometry) -> int:
        """Bytes of a transformed tile of the input, one of 4. Rows are in different cache sets."""
        return _whole(ITEM * g.walk.kernel[0] * g.c) + 64

    def d_row(self, g: Geometry) -> int:
        """Bytes of a transformed tile of the gradient, one of 4, with whole register tiles."""
        return _whole(ITEM * (g.o + self.tile[0])) + 64

    def m_size(self, g: Geometry) -> int:
        """Bytes of the products, one of 16."""
        return g.o * self.v_row(g)

    def scratch(self, g: Geometry) -> tuple[int, int, int]:
        """Bytes of the sums of half of the tiles, of a position's zeros, and of a thread."""
        zeros = _whole(ITEM * max(g.c, g.o)) + 64
        return (
            _whole(16 * self.m_size(g)),
            zeros,
            zeros + 4 * self.tiles * (self.v_row(g) + self.d_row(g)),
        )


@record
class GradientBlocks:
    """The blocking of the gradient of a convolution's weight, whose operands are read in place.

    Attributes:
        tile: output channels and input channels of a tile, and the output positions of a block.
        beside: output channels of a share, a multiple of the tile's.
        precision: "bf16": the operands are bfloat16 values, otherwise float32 values.
    """

    tile: tuple[int, int, int]
    beside: int
    precision: str = ""

    @property
    def item(self) -> int:
        """Bytes of an element of the operands."""
        return 2 if self.precision == BF16 else ITEM

    @property
    def positions(self) -> int:
        """Positions of an entry of the table."""
        return 2 if self.precision == BF16 else 1

    @property
    def each(self) -> int:
        """Bytes of the table's entries for a tap, and space to write those of eight positions at once.

        An entry has an address for its gradients of outputs, and one for each position's inputs.
        """
        entry = 8 * (1 + self.positions)
        return entry * (-(-self.tile[2] // self.positions) + 8)

    @staticmethod
    def line(outputs: int) -> int:
        """Bytes between the words of an entry and those of the next one. Long lines are in different cache sets."""
        size = ITEM * outputs
        return size + (ANY.line if at_most(size) >= _APART * ANY.line else 0)

    def scratch(self, taps: int, inputs: int, outputs: int) -> tuple[int, int, int, int]:
        """Bytes of the numbers of entries, of all entries of the table, of zeros, and of words of a block.

        Words are the gradients of outputs at two positions ("bf16").

        Args:
            taps: positions of the convolution's kernel.
            inputs, outputs: channels.
        """
        words = 0 if self.positions == 1 else self.line(outputs) * -(-self.tile[2] // 2)
        return _whole(8 * taps), _whole(taps * self.each), _whole(self.item * inputs), _whole(words)


@record
class Problem:
    """A product, or a batch of such: rows and columns of each result, and K, the size of the reduction dimension.

    Sizes may be dynamic dimensions; decisions use their greatest values.

    Attributes:
        usual_rows: the rows in the middle of a dynamic dimension's range; 0: rows are not dynamic.
    """

    rows: int
    columns: int
    k: int
    batch: int = 1
    usual_rows: int = 0

    def most(self) -> Problem:
        """The problem at the greatest values of dynamic dimensions."""
        usual = typical(self.rows) if varies(self.rows) else 0
        rows, columns, k, batch = map(at_most, self.sizes)
        return Problem(rows, columns, k, batch, usual)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Rows, columns, K and the number of products."""
        return self.rows, self.columns, self.k, self.batch


def words_of(channels: int, precision: str) -> int:
    """The 32-bit words of channels that a direct convolution reads: float32 values, or pairs of bfloat16 values."""
    return channels // 2 if precision == BF16 else channels


def item_of(precision: str) -> int:
    """Bytes of an element of a panel."""
    return 2 * PARTS[precision] if precision else ITEM


def _whole(size: int) -> int:
    return -(-size // 64) * 64
