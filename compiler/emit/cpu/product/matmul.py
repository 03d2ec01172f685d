"""The steps of a matmul: gflow's own kernel, BLAS calls, or ATen calls for element types without either."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.blocks import ITEM
from gflow.compiler.kernel.movement import shifted
from gflow.compiler.kernel.selection.cpu.batches import BLAS_DTYPES, batch_steps
from gflow.compiler.kernel.tiles import rounding
from gflow.dialects.extents import Count, Piece, longest
from gflow.dialects.program import KernelStep, Place, TensorRef
from gflow.dialects.types import NO_KERNELS, TensorType

from ..program_builder import Builder
from . import gemm, own
from .epilogue import Epilogue
from .finish import finish

#: the kinds of gflow's own kernels
OWN = ("panels", "rows")


def matmul(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
    """Add the steps of a matmul; with an epilogue, in chunks of rows or in tiles, each followed by it."""
    x, y, z = (*o.operands, *o.results)
    types = [b.body.types[v] for v in (x, y, z)]
    strides = [b.strides(v) for v in (x, y, z)]
    places = [b.place(x), b.place(y)]
    if types[2].numel == 0:
        return
    if epilogue is None:
        product(b, [*places, b.place(z)], types, strides, b.label(o))
        return
    if b.choice.kind in OWN and epilogue.tiled is not None:
        _in_tiles(b, places, types, strides, epilogue)
        return
    batched = types[2].numel != types[2].shape[-2] * types[2].shape[-1]
    pieces: list[tuple[int, Count]]
    sound = not b.choice.rows or (not batched and epilogue.made.divides(b.choice.rows))
    b.choice.check(sound, "has rows that the epilogue cannot run on")
    pieces = epilogue.made.pieces(b.choice.rows)
    taken = b.choice.blocks().scratch(b.threads) if b.choice.kind in OWN else 0
    raw = taken + longest(pieces) * epilogue.row_bytes
    scratch = _behind(b.scratch(raw, epilogue.place is None), taken)
    for first, count in pieces:
        target = epilogue.target(first, scratch)
        if len(pieces) == 1:
            product(b, [*places, target], types, strides, b.label(o))
        else:
            rows = count if isinstance(count, Piece) else None
            size = count.like if isinstance(count, Piece) else count
            part = [_rows(types[0], size), types[1], _rows(types[2], size)]
            at = shifted(places[0], first * strides[0][-2], types[0])
            product(b, [at, places[1], target], part, strides, b.label(o), rows)
        epilogue.run(first, count, target)


def _rows(ty: TensorType, count: int) -> TensorType:
    return TensorType((*ty.shape[:-2], count, ty.shape[-1]), ty.dtype)


def _in_tiles(
    b: Builder,
    places: Sequence[Place],
    types: Sequence[TensorType],
    strides: Sequence[tuple[int, ...]],
    epilogue: Epilogue,
) -> None:
    """Add the step of C = A B with the epilogue on each tile.

    Only if K is summed in several blocks, C needs memory for the sums between them.
    """
    blocks, (m, n) = b.choice.blocks(), types[2].shape[-2:]
    scratch = b.scratch(blocks.scratch(b.threads))
    target, row = scratch, 0  # not written to if all of K is summed at once
    if blocks.tile[2] < types[0].shape[-1]:
        behind = b.scratch(blocks.scratch(b.threads) + types[2].nbytes, epilogue.place is None)
        target = epilogue.target(0, _behind(behind, blocks.scratch(b.threads)))
        row = n
    made = epilogue.finish(blocks.tile[1])
    x, y = (own.Operand(p, s[-2], s[-1]) for p, s in zip(places, strides))
    operands = (x, y, own.Operand(target, row, 1))
    sizes, shared = (m, n, types[0].shape[-1]), b.choice.shared()
    own.product(b, blocks, operands, sizes, scratch, epilogue.label, shared, finish=made)


def rounded_in_tiles(b: Builder, o: Op, epilogue: Epilogue | None) -> None:
    """Add the step of a product of bfloat16 operands whose float32 sums are rounded, and followed by the epilogue, on
    each tile. If K is summed in several blocks, the sums between them are in scratch."""
    x, y, z = (*o.operands, *o.results)
    types = [b.body.types[v] for v in (x, y, z)]
    strides = [b.strides(v) for v in (x, y)]
    blocks, (m, n), k = b.choice.blocks(), types[2].shape[-2:], types[0].shape[-1]
    sound = types[2].numel == m * n
    sound = sound and all(ty.dtype == "bf16" for ty in types) and all(1 in s[-2:] for s in strides)
    b.choice.check(sound, "is for bfloat16 operands with contiguous rows or columns")
    if epilogue is None:
        tiled = rounding(types[2], b.strides(z))
        b.choice.check(tiled is not None, "rounds on tiles what needs all rows")
        assert tiled is not None
        at = b.place(z)
        made, label = finish(b, tiled, 0, blocks.tile[1], [at], [at]), b.label(o)
    else:
        made, label = epilogue.finish(blocks.tile[1]), epilogue.label
    panels, several = blocks.scratch(b.threads), blocks.tile[2] < k
    scratch = b.scratch(panels + several * ITEM * m * n)
    # not written to if there is one block of K
    sums = own.Operand(_behind(scratch, panels), n * several, 1)
    left, right = (
        own.Operand(b.place(v), s[-2], s[-1], 0, ty.itemsize)
        for v, s, ty in zip((x, y), strides, types)
    )
    operands = (left, right, sums)
    own.product(b, blocks, operands, (m, n, k), scratch, label, b.choice.shared(), finish=made)


def _behind(place: Place, size: int) -> Place:
    return Place(place.space, place.index, place.offset + -(-size // 64) * 64)


def _blocked(
    b: Builder,
    places: Sequence[Place],
    types: Sequence[TensorType],
    strides: Sequence[tuple[int, ...]],
    label: str,
    rows: Piece | None,
) -> None:
    """Add the steps of C = A B by gflow's own kernel, whose panels are at the start of scratch."""
    blocks = b.choice.blocks()
    (m, n), k = types[2].shape[-2:], types[0].shape[-1]
    b.choice.check(types[2].dtype == "f32", "makes products of float32 alone")
    scratch = b.scratch(blocks.scratch(b.threads))
    for count, steps, offsets in batch_steps(types[2].shape[:-2], [s[:-2] for s in strides]):
        x, y, z = (
            own.Operand(
                Place(p.space, p.index, p.offset + o * t.itemsize), s[-2], s[-1], each, t.itemsize
            )
            for p, t, s, o, each in zip(places, types, strides, offsets, steps)
        )
        z = own.Operand(z.place, z.row if m != 1 else n, 1, z.each)
        sizes, shared = (rows or m, n, k), b.choice.shared()
        own.product(b, blocks, (x, y, z), sizes, scratch, label, shared, batch=count)


def product(
    b: Builder,
    places: Sequence[Place],
    types: Sequence[TensorType],
    strides: Sequence[tuple[int, ...]],
    label: str,
    rows: Piece | None = None,
) -> None:
    """Add the steps of C = A B.

    Args:
        b: the builder.
        places, types, strides: those of A, B and C; strides are in elements.
        label: for messages and profiles.
        rows: the rows of A and C, if they are a chunk of a dynamic dimension.
    """
    out = types[2]
    empty = types[0].shape[-1] == 0 and out.dtype not in NO_KERNELS
    b.choice.check(empty == (b.choice.kind == "zero"), "is for another K")
    if empty:
        b.zero(places[2], out, strides[2], label)
    elif b.choice.kind in OWN:
        _blocked(b, places, types, strides, label, rows)
    elif b.choice.kind == "blas":
        b.choice.check(
            b.blas and out.dtype in BLAS_DTYPES,
            "calls BLAS for an element type that it has no product of",
        )
        name = b.gemm(out.dtype)
        for words, parallel in gemm.words(places, types, strides, rows):
            b.steps.append(KernelStep(name, words, parallel, label))
    else:
        x, y, z = (TensorRef(p, t, s) for p, t, s in zip(places, types, strides))
        b.aten(label, "aten.matmul.default", [{"t": 0}, {"t": 1}], [x, y], z)
