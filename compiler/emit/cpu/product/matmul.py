"""Matrix products as steps: BLAS calls, or calls into PyTorch for element types without one."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.movement import shifted
from gflow.compiler.kernel.selection.cpu.batches import BLAS_DTYPES
from gflow.dialects.extents import Count, Piece, longest
from gflow.dialects.program import KernelStep, Place, TensorRef
from gflow.dialects.types import COMPLEX, TensorType

from ..program_builder import Builder
from . import gemm
from .epilogue import Epilogue


def matmul(b: Builder, o: Op, epilogue: Epilogue | None = None) -> None:
    """Add the steps of a product, in pieces with what follows each if there is an epilogue."""
    x, y, z = (*o.operands, *o.results)
    types = [b.body.types[v] for v in (x, y, z)]
    strides = [b.strides(v) for v in (x, y, z)]
    places = [b.place(x), b.place(y)]
    if types[2].numel == 0:
        return
    if epilogue is None:
        product(b, [*places, b.place(z)], types, strides, b.label(o))
        return
    batched = types[2].numel != types[2].shape[-2] * types[2].shape[-1]
    pieces: list[tuple[int, Count]]
    pieces = [(0, epilogue.rows)] if batched else epilogue.made.pieces(types[0].shape[-1])
    scratch = b.scratch(longest(pieces) * epilogue.row_bytes, epilogue.place is None)
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


def product(
    b: Builder,
    places: Sequence[Place],
    types: Sequence[TensorType],
    strides: Sequence[tuple[int, ...]],
    label: str,
    rows: Piece | None = None,
) -> None:
    """C = A B. rows: of A and C, if these are a piece of what varies."""
    out = types[2]
    if types[0].shape[-1] == 0 and out.dtype not in COMPLEX:
        b.fill(0, places[2], out, strides[2], label)
        return
    if b.choice.kind == "blas":
        b.choice.check(
            b.blas and out.dtype in BLAS_DTYPES, "calls BLAS for what it has no product for"
        )
        name = b.gemm(out.dtype)
        for words, parallel in gemm.words(places, types, strides, rows):
            b.steps.append(KernelStep(name, words, parallel, label))
    else:
        x, y, z = (TensorRef(p, t, s) for p, t, s in zip(places, types, strides))
        b.aten(label, "aten.matmul.default", [{"t": 0}, {"t": 1}], [x, y], z)
