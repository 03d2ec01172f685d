"""What follows a contraction in one fused op, run piece by piece on the rows it has just made.

The contraction's result is a matrix of rows, the innermost dimension across. It goes straight to where
the fused op returns it, or into a result's buffer where the epilogue overwrites it, or, where that one
holds an operand still, into scratch of one piece.
"""

from __future__ import annotations

from dataclasses import dataclass

from gflow.compiler.ir.contractions import root_operands
from gflow.compiler.ir.ssa import Op
from gflow.compiler.ir.views import Layout
from gflow.compiler.kernel.description import describe
from gflow.compiler.kernel.selection.cpu.rows import Rows, granule_of
from gflow.compiler.kernel.tiles import Tiled, tiles_of
from gflow.dialects import builder
from gflow.dialects.extents import Count, Piece
from gflow.dialects.mlir import ir
from gflow.dialects.program import KernelAddress, Place
from gflow.dialects.types import TensorType, is_row_major, row_major_strides

from ..program_builder import Builder
from .finish import Words, finish


@dataclass
class Epilogue:
    """The kernel that runs on rows of the root's result.

    made: the rows of the root's result, and the kernel. place: the first one's, or None if each piece lies in scratch.
    copy_to: where the result goes, too, if that is not row-major: place and strides.
    tiled: the kernel by tiles of the result, which stores the result itself, too, if that is returned.
    """

    b: Builder
    loads: list[Place]
    stores: list[Place]
    label: str
    made: Rows
    place: Place | None
    copy_to: tuple[Place, tuple[int, ...]] | None = None
    tiled: Tiled | None = None

    def finish(self, width: int) -> tuple[KernelAddress, Words]:
        """What follows as a function that products call on each tile, of so many columns.

        Raises:
            CannotLower: it cannot run by tiles.
        """
        self.b.choice.check(self.tiled is not None, "runs an epilogue on tiles that needs all rows")
        assert self.tiled is not None
        root = len(self.loads)
        return finish(self.b, self.tiled, root, width, self.loads, self.stores)

    @property
    def rows(self) -> int:
        """The number of rows of the root's result."""
        return self.made.rows

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the root's result."""
        return self.made.width * self.made.type.itemsize

    def target(self, first: int, scratch: Place) -> Place:
        """Where to write rows from `first` on. scratch: where, if they have no place."""
        if self.place is None:
            return scratch
        offset = self.place.offset + first * self.row_bytes
        return Place(self.place.space, self.place.index, offset)

    def run(self, first: int, count: Count, at: Place) -> None:
        """Add the kernel's step for rows first…first+count, which lie at `at`."""
        k, step, part = self.made.part(count), 0, None
        if k is not self.made.kernel:
            unit = k.numel // k.sizes[0]
            step = first * self.made.width // unit
            part = count.times(self.made.width, unit) if isinstance(count, Piece) else None
        raw = Place(at.space, at.index, at.offset - first * self.row_bytes)
        after = self.made.after(k, self.copy_to and self.copy_to[1])
        for one, way in zip(after, self.b.ways(len(after))):
            if one is k:
                self.b.launch(k, [*self.loads, raw], self.stores, self.label, step, part, way)
            else:
                assert self.copy_to is not None
                self.b.launch(one, [raw], [self.copy_to[0]], self.label, way=way)


def split(b: Builder, o: Op, root: ir.Operation) -> tuple[Op, Epilogue]:
    """The contraction of a fused op as an op of its own, and what follows it.

    The contraction's result becomes a new value of the body, without a place.
    """
    operands = [o.operands[n] for n in root_operands(root)]
    ty = builder.type_of(root.results[0])
    value = len(b.body.types)
    b.body.types.append(ty)
    b.body.values.append(root.results[0])
    b.body.producer.append(o.index)
    b.at.append(Layout(value, 0, row_major_strides(ty.shape)))
    op = Op(o.index, root, root.name.removeprefix("gflow."), operands, [value])

    stored, returned = [], None
    yielded = root.block.operations[-1].operation.operands
    for r, v in zip(o.results, yielded):
        if v == root.results[0]:
            returned = r
        else:
            stored.append(r)
    inputs = [b.strides(v) for v in o.operands]
    kernel = describe(o.op, inputs, [b.strides(v) for v in o.results])
    place, copy_to = None, None
    if returned is None:
        place = _borrowed(b, o, ty)
    elif is_row_major(ty.shape, b.strides(returned)):
        place = b.place(returned)
    else:
        copy_to = b.place(returned), b.strides(returned)
    granule = 0 if copy_to else granule_of(kernel, ty)
    made = Rows(ty, place is None, granule, b.blas, kernel)
    loads, stores = [b.place(v) for v in o.operands], [b.place(v) for v in o.results]
    label = b.label(o)
    own = None if returned is None else (o.results.index(returned), b.strides(returned))
    tiled = tiles_of(o, root, kernel, own)
    return op, Epilogue(b, loads, stores, label, made, place, copy_to, tiled)


def _borrowed(b: Builder, o: Op, ty: TensorType) -> Place | None:
    """A result's buffer that the contraction can write to first: as large, and no operand's."""
    taken = [_extent(b, b.at[v].base) for v in o.operands]
    for r in o.results:
        own = b.body.types[r]
        if own.dtype != ty.dtype or own.numel != ty.numel:
            continue
        if not is_row_major(own.shape, b.strides(r)):
            continue
        space, low, high = _extent(b, r)
        if not any(s == space and low < h and x < high for s, x, h in taken):
            return b.place(r)
    return None


def _extent(b: Builder, value: int) -> tuple[tuple[str, int], int, int]:
    """The memory of a value that is no view: (space, first byte, last + 1)."""
    place = b.places[value]
    ty = b.body.types[value]
    whole = 1 << 62 if place.space in ("arg", "result") else place.offset + ty.nbytes
    return (place.space, place.index), place.offset, whole
