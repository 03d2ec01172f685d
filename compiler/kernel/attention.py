"""How attention of our own is cut on a processor: register tiles, blocks of keys, and the rows that a thread takes.

a tile      rows × columns of a product, summed in registers, as of other products
a block     of keys: its scores are made, weighed and multiplied with values before the next one's are
a task      rows of one head of one batch, which one thread computes, block after block
"""

from __future__ import annotations

from gflow.dialects.records import record

from .blocks import HEAD, ITEM, LANES, PADDED


@record
class AttentionBlocks:
    """The numbers of a blocked attention.

    Attributes:
        tile: rows and columns of a register tile.
        rows: positions of q of a task, or of the blocks that a task goes through (gradients).
        keys: positions of k of a block.
        packed: q and k are packed; else both are read where they lie (few rows).
    """

    tile: tuple[int, int]
    rows: int
    keys: int
    packed: bool = True

    @property
    def across(self) -> int:
        """Bytes between rows of scores: rows are apart in the sets of a cache."""
        return ITEM * (-(-self.keys // LANES) * LANES + LANES)

    @property
    def strip(self) -> int:
        """Bytes of the scores of a tile's rows."""
        return self.tile[0] * self.across

    def row_panels(self, channels: int) -> int:
        """Bytes of the packed rows of a task."""
        return _panels(self.rows, self.tile[0], channels)

    def key_panels(self, channels: int) -> int:
        """Bytes of a packed block of keys."""
        return _panels(self.keys, self.tile[1], channels)

    @property
    def per_row(self) -> int:
        """Bytes of one number for each row."""
        return _whole(ITEM * self.rows)

    def forward(self, channels: int) -> int:
        """Bytes of scratch of a thread in the forward."""
        panels = self.row_panels(channels) + self.key_panels(channels) if self.packed else 0
        return panels + self.strip + 2 * self.per_row

    def backward(self, channels: int, values: int) -> int:
        """Bytes of scratch of a thread in the backward. channels: of q and k; values: of v."""
        panels = sum(self.row_panels(n) + self.key_panels(n) for n in (channels, values))
        return panels + 2 * _whole(self.rows * self.across) + self.per_row

    @staticmethod
    def scratch(each: int, threads: int) -> int:
        """Bytes of scratch of all threads."""
        return HEAD + threads * each


def _panels(count: int, side: int, channels: int) -> int:
    """Packed panels: K is filled up, and the packing of the last one may write some elements more."""
    terms = -(-channels // PADDED) * PADDED
    return _whole(ITEM * (-(-count // side) * side * terms + PADDED))


def _whole(size: int) -> int:
    return -(-size // 64) * 64
