"""The blocking of gflow's own attention kernels on a CPU.

tile     rows × columns of a product whose sums stay in registers, as in matrix products
block    positions of k. The kernel computes their scores, applies softmax, and multiplies by v before the next block
task     rows of one head and one batch element, which one thread computes block by block
"""

from __future__ import annotations

from gflow.dialects.records import record

from .blocks import HEAD, ITEM, LANES, PADDED

#: register tiles (rows, keys) for few rows. The first three vectorize along keys; the last two along rows
FEW = ((1, 64), (2, 64), (4, 64), (LANES, 8), (LANES, 4))

#: by rows of a tile: the most vectors of columns, where B is read in place
_WIDE = {1: 8, 2: 8, 4: 6, 8: 3}


@record
class AttentionBlocks:
    """The block sizes of an attention kernel, in elements.

    Attributes:
        tile: rows and columns of a register tile.
        rows: rows of a task. In the forward, each position of q counts once for each query head that shares its keys
            (grouped-query attention). In the backward, rows of the blocks that a task iterates over.
        keys: positions of k in a block.
        packed: k is packed. Otherwise it is read in place (for few rows).
        pairs: the operands are bfloat16 values, of which two are multiplied at a time: pairs of channels of q and k, of
            keys for v, of rows for gradients. Otherwise they are float32 values.
    """

    tile: tuple[int, int]
    rows: int
    keys: int
    packed: bool = True
    pairs: bool = False

    @property
    def panels(self) -> bool:
        """Whether rows are packed."""
        return self.packed or self.tile[0] == LANES

    @property
    def across(self) -> int:
        """The row stride of scores, in bytes. One extra vector keeps rows in different cache sets."""
        return ITEM * (-(-self.keys // LANES) * LANES + LANES)

    @property
    def strip(self) -> int:
        """Bytes of the scores of one tile's rows over a block of keys."""
        return self.tile[0] * self.across

    def weighing(self, values: int) -> tuple[int, int]:
        """Rows and columns of the register tile of a product of scores and a matrix of so many channels, `values`."""
        if self.packed:
            return self.tile[0], min(self.tile[1], -(-values // LANES) * LANES)
        height, vectors = min(self.tile[0], 8), -(-values // LANES)
        times = -(-vectors // _WIDE[height])
        return height, -(-vectors // times) * LANES

    def terms(self, channels: int) -> int:
        """The terms of a sum over channels: pairs, or channels."""
        return channels // 2 if self.pairs else channels

    def row_panels(self, channels: int) -> int:
        """Bytes of a task's packed rows; 0 where rows are not packed."""
        return _panels(self.rows, self.tile[0], self.terms(channels)) if self.panels else 0

    def key_panels(self, channels: int) -> int:
        """Bytes of a packed block of keys; 0 where keys are not packed."""
        return _panels(self.keys, self.tile[1], self.terms(channels)) if self.packed else 0

    def key_pairs(self, channels: int) -> int:
        """Bytes of a block of keys in pairs."""
        return self.keys // 2 * line(channels) if self.pairs else 0

    def row_pairs(self, channels: int) -> int:
        """Bytes of a block of rows in pairs."""
        return self.rows // 2 * line(channels) if self.pairs else 0

    @property
    def per_row(self) -> int:
        """Bytes of an array of one float32 for each row."""
        return _whole(ITEM * self.rows)

    def forward(self, channels: int, values: int) -> int:
        """Bytes of scratch of one thread in the forward. channels: those of q and k. values: those of v."""
        panels = self.row_panels(channels) + self.key_panels(channels) + self.key_pairs(values)
        lines = self.rows * (line(self.terms(channels)) + line(values))
        return panels + self.strip + 2 * self.per_row + lines

    def backward(self, channels: int, values: int) -> int:
        """Bytes of scratch of one thread in the backward. channels: those of q and k. values: those of v."""
        panels = sum(self.row_panels(n) + self.key_panels(n) for n in (channels, values))
        pairs = self.key_pairs(channels) + self.row_pairs(channels) + self.row_pairs(values)
        if self.pairs:  # ds by rows as well
            pairs += _whole(self.rows * self.across // 2)
        return panels + 2 * _whole(self.rows * self.across) + pairs + self.per_row

    @staticmethod
    def scratch(each: int, threads: int) -> int:
        """Bytes of scratch of all threads. each: bytes of one thread."""
        return HEAD + threads * each


def line(channels: int) -> int:
    """Bytes of a float32 row of so many channels, rounded up to a cache line."""
    return _whole(ITEM * channels)


def _panels(count: int, side: int, channels: int) -> int:
    """Bytes of packed panels: K is padded, and packing may write up to `PADDED` elements past the last panel."""
    terms = -(-channels // PADDED) * PADDED
    return _whole(ITEM * (-(-count // side) * side * terms + PADDED))


def _whole(size: int) -> int:
    return -(-size // 64) * 64
