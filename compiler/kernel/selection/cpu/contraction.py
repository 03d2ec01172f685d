"""A contraction as kernel selection sees it: its values, and the epilogue that follows it."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.dialects.extents import Count, at_most
from gflow.dialects.mlir import ir
from gflow.dialects.records import record
from gflow.dialects.types import TensorType

from ...convolution import Geometry, geometry
from ..choice import Way
from .loops import scratch_of, way_of_loops
from .rows import Rows


@record
class Contraction:
    """A contraction, alone or with an epilogue.

    Attributes:
        root: its op.
        values: the numbers of its operands in the function.
        types, strides: of its operands, then of its result. Strides are in elements.
        rows: the rows of its result, if an epilogue follows.
        tiled: whether the epilogue can run on tiles.
        copied: if an epilogue follows and the result is returned in a layout that isn't row-major: its strides.
    """

    root: ir.Operation
    values: Sequence[int]
    types: Sequence[TensorType]
    strides: Sequence[tuple[int, ...]]
    rows: Rows | None = None
    tiled: bool = False
    copied: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """The op's name in the dialect."""
        return self.root.name.removeprefix("gflow.")

    @property
    def result(self) -> TensorType:
        """The type of the result."""
        return self.types[-1]

    @property
    def geometry(self) -> Geometry:
        """The sizes of a convolution."""
        return geometry(self.name, self.root, self.types)

    @property
    def floating(self) -> int:
        """Scratch bytes of the whole result, where it has no buffer of its own."""
        return up(self.result.nbytes) if self.rows is not None and self.rows.floating else 0

    def epilogue(self, threads: int, count: Count | None = None) -> tuple[tuple[Way, ...], int]:
        """The launches of the epilogue, and its scratch in bytes. count: rows at a time; None: all."""
        if self.rows is None:
            return (), 0
        part = self.rows.part(self.rows.rows if count is None else count)
        after = self.rows.after(part, self.copied)
        ways = tuple(map(way_of_loops, after))
        scratch = (scratch_of(way, k, threads) for way, k in zip(ways, after))
        return ways, max(scratch, default=0)


def up(size: int) -> int:
    """`size` bytes at the greatest value of dynamic dimensions, rounded up to a multiple of 64."""
    return -(-at_most(size) // 64) * 64
