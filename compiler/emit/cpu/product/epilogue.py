"""The epilogue of a contraction in a fused op, which runs on chunks of rows that were just computed.

The contraction's result is a matrix whose columns are its innermost dimension. It is written to the buffer of the fused
op's result if the op returns it, else to the buffer of the result `into` of `gflow.kernel`, which the epilogue
overwrites, or to scratch that holds one chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

from gflow.compiler.ir.fused import root_operands
from gflow.compiler.ir.ssa import Op
from gflow.compiler.ir.views import Layout
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
    """The epilogue of a contraction.

    Attributes:
        b: the builder.
        loads, stores: addresses by number of operand and result.
        label: for messages and profiles.
        made: the rows of the contraction's result, and the epilogue's kernel.
        place: the address of the first row; None: each chunk is in scratch.
        copy_to: the address and strides to which the contraction's result is copied, if it is returned in a layout that
            isn't row-major.
        tiled: the epilogue by tiles; it also stores the contraction's result if that is returned. None: it needs rows.
    """

    b: Builder
    loads: list[Place]
    stores: list[Place]
    label: str
    made: Rows
    place: Place | None
    copy_to: tuple[Place, tuple[int, ...]] | None = None
    tiled: Tiled | None = None

    def behind(self, size: int, result: TensorType) -> Place:
        """The address of a contraction's result on whose rows the epilogue runs.

        size: bytes of the contraction's scratch, which is in front of the result where that is in scratch, too.
        """
        raw = self.b.scratch(size + result.nbytes, self.place is None)
        return self.target(0, Place(raw.space, raw.index, raw.offset + size))

    def finish(self, width: int) -> tuple[KernelAddress, Words]:
        """The epilogue as a function that product kernels call on each tile: its address, and its arguments.

        width: the columns of a tile.

        Raises:
            CannotLower: the epilogue cannot run on tiles.
        """
        self.b.choice.check(self.tiled is not None, "runs an epilogue on tiles that needs all rows")
        assert self.tiled is not None
        root = len(self.loads)
        return finish(self.b, self.tiled, root, width, self.loads, self.stores)

    @property
    def rows(self) -> int:
        """The number of rows of the contraction's result."""
        return self.made.rows

    @property
    def row_bytes(self) -> int:
        """The bytes of one row of the contraction's result."""
        return self.made.width * self.made.type.itemsize

    def target(self, first: int, scratch: Place) -> Place:
        """The address for rows from number `first` on. scratch: the address of chunks without a buffer of their own."""
        if self.place is None:
            return scratch
        offset = self.place.offset + first * self.row_bytes
        return Place(self.place.space, self.place.index, offset)

    def run(self, first: int, count: Count, at: Place) -> None:
        """Add the epilogue's step for rows first … first + count - 1, which are at the address `at`."""
        k, step, part = self.made.part(count), 0, None
        if k is not self.made.kernel:
            unit = k.numel // k.sizes[0]
            step = first * self.made.width // unit
            part = count.times(self.made.width, unit) if isinstance(count, Piece) else None
        raw = Place(at.space, at.index, at.offset - first * self.row_bytes)
        after = self.made.after(k, self.copy_to and self.copy_to[1])
        for one, way in zip(after, self.b.ways(len(after))):
            if one is k:
                self.b.launch(k, [*self.loads, raw], self.stores, self.label, step, part, way=way)
            else:
                assert self.copy_to is not None
                self.b.launch(one, [raw], [self.copy_to[0]], self.label, way=way)


def split(b: Builder, o: Op, root: ir.Operation) -> tuple[Op, Epilogue]:
    """Split a fused op into its contraction and its epilogue.

    The contraction becomes an op of its own. Its result is a new value of the function's body, without an address.
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
    kernel = b.describe(o, inputs, [b.strides(v) for v in o.results])
    place, copy_to = None, None
    if returned is None:
        place = None if b.choice.into < 0 else b.place(o.results[b.choice.into])
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


def ending(
    b: Builder, o: Op, epilogue: Epilogue | None, size: int, width: int
) -> tuple[Place, KernelAddress, Words, Epilogue | None]:
    """Where a convolution writes its result, the function that runs on its tiles with its arguments (none without one),
    and the epilogue that runs on rows afterwards.

    Args:
        size: bytes of the convolution's scratch.
        width: the columns of a tile.
    """
    if epilogue is None:
        return b.place(o.results[0]), KernelAddress(""), (), None
    if epilogue.tiled is not None:
        finish, words = epilogue.finish(width)
        return (
            b.scratch(size),
            finish,
            words,
            None,
        )  # the scratch stands for the result, which is not written
    return epilogue.behind(size, b.body.types[o.results[0]]), KernelAddress(""), (), epilogue
