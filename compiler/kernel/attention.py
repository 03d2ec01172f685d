"""How attention of our own is cut on a processor: register tiles, blocks of keys, and the rows that a thread takes.

a tile      rows × columns of a product, summed in registers, as of other products
a block     of keys: its scores are made, weighed and multiplied with values before the next one's are
a task      rows of one head of one batch, which one thread computes, block after block
"""

from __future__ import annotations

from gflow.dialects.records import record

from .blocks import HEAD, ITEM, LANES, PADDED

#: tiles of few rows: so many with a strip of keys, each a sum over channels; or rows as lanes, with keys side by side
FEW = ((1, 64), (2, 64), (4, 64), (LANES, 8), (LANES, 4))

#: vectors of columns of a tile of so many rows, at most, whose B is read where it lies
_WIDE = {1: 8, 2: 8, 4: 6, 8: 3}


@record
class AttentionBlocks:
    """The numbers of a blocked attention.

    Attributes:
        tile: rows and columns of a register tile.
        rows: rows of a task: positions of q, each with the heads that share keys; of gradients, positions of the blocks
            that a task goes through.
        keys: positions of k of a block.
        packed: k is packed; else it is read where it lies (few rows).
    """

    tile: tuple[int, int]
    rows: int
    keys: int
    packed: bool = True

    @property
    def panels(self) -> bool:
        """Whether rows are packed."""
        return self.packed or self.tile[0] == LANES

    @property
    def across(self) -> int:
        """Bytes between rows of scores: rows are apart in the sets of a cache."""
        return ITEM * (-(-self.keys // LANES) * LANES + LANES)

    @property
    def strip(self) -> int:
        """Bytes of the scores of a tile's rows."""
        return self.tile[0] * self.across

    def weighing(self, values: int) -> tuple[int, int]:
        """Rows and columns of a register tile of the product of scores with values, which are read where they lie."""
        if self.packed:
            return self.tile
        height, vectors = min(self.tile[0], 8), -(-values // LANES)
        times = -(-vectors // _WIDE[height])
        return height, -(-vectors // times) * LANES

    def row_panels(self, channels: int) -> int:
        """Bytes of the packed rows of a task."""
        return _panels(self.rows, self.tile[0], channels) if self.panels else 0

    def key_panels(self, channels: int) -> int:
        """Bytes of a packed block of keys."""
        return _panels(self.keys, self.tile[1], channels) if self.packed else 0

    @property
    def per_row(self) -> int:
        """Bytes of one number for each row."""
        return _whole(ITEM * self.rows)

    def forward(self, channels: int, values: int) -> int:
        """Bytes of scratch of a thread in the forward. channels: of q and k; values: of v."""
        panels = self.row_panels(channels) + self.key_panels(channels)
        lines = self.rows * (line(channels) + line(values))
        return panels + self.strip + 2 * self.per_row + lines

    def backward(self, channels: int, values: int) -> int:
        """Bytes of scratch of a thread in the backward. channels: of q and k; values: of v."""
        panels = sum(self.row_panels(n) + self.key_panels(n) for n in (channels, values))
        return panels + 2 * _whole(self.rows * self.across) + self.per_row

    @staticmethod
    def scratch(each: int, threads: int) -> int:
        """Bytes of scratch of all threads."""
        return HEAD + threads * each


def line(channels: int) -> int:
    """Bytes of a row of whole vectors."""
    return _whole(ITEM * channels)


def _panels(count: int, side: int, channels: int) -> int:
    """Packed panels: K is filled up, and the packing of the last one may write some elements more."""
    terms = -(-channels // PADDED) * PADDED
    return _whole(ITEM * (-(-count // side) * side * terms + PADDED))


def _whole(size: int) -> int:
    return -(-size // 64) * 64
