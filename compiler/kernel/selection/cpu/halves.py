"""Contractions in half precision on a CPU.

Operands are widened to float32 in scratch, and the result is rounded once: the whole contraction, or a matrix product
in chunks of rows. Where the processor multiplies bfloat16 values (`precision = "bf16"`), operands are read as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gflow.compiler.targets.processors import ANY
from gflow.dialects.extents import varies
from gflow.dialects.types import HALVES, TensorType, is_row_major, row_major_strides

from ...blocks import BF16, ITEM, Problem
from ...contest import Contest
from ...movement import converting
from ...tiles import rounding, rounding_rows
from ..choice import Choice, Way
from .blocking import halves_are_faster
from .contraction import Contraction, up
from .convolutions.direct import reads_pairs
from .convolutions.patches import kind_of_patches, reads_halves, widened_strides
from .loops import way_of_loops
from .products import Products
from .rows import MOST_PIECES
from .sharing import of_product

#: the fewest rows of a half-precision product that are widened at a time; each chunk packs B again
_LEAST_ROWS = 128


def choice_in_halves(p: Products, c: Contraction) -> Choice:
    """The choice for a contraction whose result is in half precision, without the result that it is written to."""
    if c.name == "matmul" and p.blas and _is_one_matrix(c):
        return _rounded_in_tiles(p, c) or _in_pieces(p, c)
    found = None if c.name == "matmul" else _by_pairs(p, c)
    return found or _widened(p, c)


def _is_one_matrix(c: Contraction) -> bool:
    (rows, inner), columns = c.types[0].shape[-2:], c.result.shape[-1]
    return bool(inner) and c.result.numel == rows * columns


def _rounded_in_tiles(p: Products, c: Contraction) -> Choice | None:
    """The choice for a product of bfloat16 operands whose sums over all of K are rounded on each tile.

    Between blocks of K the sums are in scratch, which is small.
    """
    tiled = c.tiled if c.rows is not None else rounding(c.result, c.strides[2]) is not None
    if not tiled or not _exact(c.types) or not all(map(_has_unit, c.strides[:2])):
        return None
    (m, k), n = c.types[0].shape[-2:], c.result.shape[-1]
    product = Problem(m, n, k)
    if any(map(varies, product.sizes)):
        return None
    if p.processor is None or not halves_are_faster(p.processor, product):
        return None
    contest, time = Contest(product, "k", "lanes"), of_product(1, m, n, k)
    found = p.blocked("panels", contest, time, True)
    if found is None or found.tile[2] >= k:
        return found
    sums = ITEM * m * n
    return replace(found, scratch=found.scratch + up(sums)) if sums <= ANY.gathered else None


def _in_pieces(p: Products, c: Contraction) -> Choice:
    """The choice for a matrix product that is widened, or rounded, in chunks of rows."""
    types, strides = c.types, c.strides
    piece = rows_at_a_time(types)
    wide = widened_shapes(types, piece)
    a, b, _ = wide
    then, kernel = c.epilogue(p.threads)
    pieces = [TensorType(w.shape, t.dtype) for w, t in zip(wide, types)]
    product = Problem(a.shape[0], b.shape[1], a.shape[1])
    cut = None
    converted: tuple[int, ...] = (0, 1, 2)
    if not any(map(varies, vars(product).values())):
        contest = Contest(product, "k", "lanes")
        time = of_product(1, product.rows, product.columns, product.k)
        cut = p.blocked("panels", contest, time, _exact(types))
        if cut is not None and cut.precision == BF16 and all(map(_has_unit, strides[:2])):
            converted = (2,)  # A and B are read as they are
    then = (*conversions(converted, pieces, [s[-2:] for s in strides], 2), *then)
    scratch = c.floating + kernel + sum(up(wide[n].nbytes) for n in converted)
    cut = cut or Choice("blas")
    return replace(cut, scratch=cut.scratch + scratch, rows=piece, widened=converted, then=then)


def _by_pairs(p: Products, c: Contraction) -> Choice | None:
    """The choice for a convolution that reads windows of bfloat16 values in place, and multiplies two values at a time
    by AVX-512, if it is faster than by patches."""
    g, cpu = c.geometry, p.processor
    if cpu is None or cpu.halves is None or cpu.amx is not None or not reads_pairs(g, c.types[:2]):
        return None
    if kind_of_patches(g, [as_float32(ty) for ty in c.types], c.strides, p.blas) != "patches":
        return None
    then, kernel = c.epilogue(p.threads)
    if c.name != "convolution_weight_grad":
        if not c.tiled and rounding_rows(c.result) is None:
            return None
        found = p.direct_convolution(c, BF16)
        if found is None or c.tiled:
            return found
        return replace(found, scratch=max(found.scratch, kernel), then=then)
    found = p.direct_convolution(replace(c, rows=None), BF16)
    if found is None:
        return None
    # sums of blocks are added in float32
    scratch = c.floating + max(found.scratch + up(ITEM * c.result.numel), kernel)
    wide = [widened_strides(c.name, t, s) for t, s in zip(c.types, c.strides)]
    then = (*conversions((2,), c.types, c.strides, 2, wide), *then)
    return replace(found, scratch=scratch, widened=(2,), then=then)


def _widened(p: Products, c: Contraction) -> Choice:
    """The choice for a contraction that is widened to float32 as a whole; its epilogue runs after it."""
    types, strides = c.types, c.strides
    halves = halves_among([*c.values, -1], types)
    copies = [widened_strides(c.name, t, s) for t, s in zip(types, strides)]
    wide = replace(
        c,
        types=[as_float32(t) for t in types],
        strides=[copy if t.dtype in HALVES else s for t, s, copy in zip(types, strides, copies)],
        rows=None, tiled=False, copied=None,
    )  # fmt: skip
    inner, _ = p.choose(wide, _exact(types))
    if inner.precision == BF16 and c.name != "matmul":
        dense = all(is_row_major(t.shape, s) for t, s in zip(types[:2], strides))
        if dense and reads_halves(c.geometry):
            halves = (2,)
    saved = sum(up(ITEM * types[n].numel) for n in halves)
    ways = conversions(halves, types, strides, len(c.values), copies)
    then, kernel = c.epilogue(p.threads)
    scratch = c.floating + max(saved + inner.scratch, kernel)
    first = len(inner.copies)
    then = (*inner.then[:first], *ways, *inner.then[first:], *then)
    return replace(inner, scratch=scratch, widened=halves, then=then)


def _exact(types: Sequence[TensorType]) -> bool:
    """Whether a contraction's operands are bfloat16 values. types: of A, B and the result."""
    return all(ty.dtype == "bf16" for ty in types[:2])


def _has_unit(strides: tuple[int, ...]) -> bool:
    """Whether the rows or the columns of a matrix are contiguous."""
    return 1 in strides[-2:]


def rows_at_a_time(types: Sequence[TensorType]) -> int:
    """The rows of a half-precision product that are widened at a time; 0: all. types: of A, B and the result."""
    (rows, inner), columns = types[0].shape[-2:], types[2].shape[-1]
    if varies(rows):
        return 0
    cached = ANY.gathered // (4 * (inner + columns))
    length = max(_LEAST_ROWS, cached, rows // MOST_PIECES)
    while rows % length == 1 and 1 < length < rows:
        length += 1  # the loops chosen for a chunk of several rows do not fit one of a single row
    return length if length < rows else 0


def widened_shapes(types: Sequence[TensorType], piece: int) -> list[TensorType]:
    """The types of the float32 copies for a half-precision product: `piece` rows of A (0: all), B, rows of the result.

    types: of A, B and the result.
    """
    (rows, inner), columns = types[0].shape[-2:], types[2].shape[-1]
    piece = piece or rows
    return [TensorType(s, "f32") for s in ((piece, inner), (inner, columns), (piece, columns))]


def halves_among(values: Sequence[int], types: Sequence[TensorType]) -> tuple[int, ...]:
    """The positions of the half-precision values among `values`; of a value that stands there twice, the first."""
    first: dict[int, int] = {}
    for n, v in enumerate(values):
        first.setdefault(v, n)
    return tuple(n for n in first.values() if types[n].dtype in HALVES)


def conversions(
    numbers: Sequence[int],
    types: Sequence[TensorType],
    strides: Sequence[tuple[int, ...]],
    operands: int,
    wide: Sequence[tuple[int, ...]] | None = None,
) -> tuple[Way, ...]:
    """The loops of conversions between half precision and float32.

    Args:
        numbers: the positions of the converted values; from `operands` on they are results, converted from float32.
        types, strides: of all values, in half precision.
        operands: how many of them are operands.
        wide: the strides of the float32 copies; None: they are row-major.
    """
    found = []
    for n in numbers:
        ty, own = types[n], strides[n]
        dense = row_major_strides(ty.shape) if wide is None else wide[n]
        if n < operands:
            k = converting(ty, own, "f32", dense)
        else:
            k = converting(as_float32(ty), dense, ty.dtype, own)
        found.append(way_of_loops(k))
    return tuple(found)


def as_float32(ty: TensorType) -> TensorType:
    return TensorType(ty.shape, "f32") if ty.dtype in HALVES else ty
