"""Padding, triangles, and ops that write a slice into a tensor."""

from __future__ import annotations

from typing import Any

from gflow.dialects.extents import is_ordered

from ..dtypes import Unsupported
from ..emitter import Emitter, Value
from ..registry import lowers
from .shape import diagonal_of, from_start, slice_range, wrap

# -- padding and scattering back


@lowers("aten.constant_pad_nd")
def constant_pad(em: Emitter, x: Value, padding: Any, value: Any = 0) -> Value:
    """`x` with a number around it; negative padding cuts. padding: pairs, from the last dimension on.

    Raises:
        Unsupported: the number is traced, or an amount is negative for some sizes only.
    """
    if isinstance(value, Value):
        raise Unsupported("a traced padding value")
    low, high = [0] * x.rank, [0] * x.rank
    for i in range(len(padding) // 2):
        dim = x.rank - 1 - i
        (low[dim], first), (high[dim], last) = map(_amounts, padding[2 * i : 2 * i + 2])
        x = em.slice(x, dim, first, x.shape[dim] - last)
    return em.pad(x, low, high, value)


def _amounts(padding: int) -> tuple[int, int]:
    """How many elements padding adds, and how many it cuts."""
    if is_ordered(0, padding):
        return padding, 0
    if is_ordered(padding, 0):
        return 0, -padding
    raise Unsupported("padding that is negative for some sizes")


def dilate(em: Emitter, x: Value, dim: int, step: int, value: Any = 0) -> Value:
    """x with step - 1 copies of `value` after every position of `dim`."""
    if step == 1 or x.shape[dim] == 0:
        return x
    wide = em.unsqueeze(x, dim + 1)
    zeros = [0] * wide.rank
    high = list(zeros)
    high[dim + 1] = step - 1
    wide = em.pad(wide, zeros, high, value)
    return wide.reshape((*x.shape[:dim], x.shape[dim] * step, *x.shape[dim + 1 :]))


def _place(em: Emitter, x: Value, dim: int, start: int, step: int, size: int) -> Value:
    """x at start, start + step, … of a dimension of `size` zeros."""
    wide = dilate(em, x, dim, step)
    if not is_ordered(wide.shape[dim], size - start):
        wide = em.slice(wide, dim, 0, size - start)
    low, high = [0] * x.rank, [0] * x.rank
    low[dim], high[dim] = start, size - start - wide.shape[dim]
    return em.pad(wide, low, high)


@lowers("aten.slice_backward")
def slice_backward(
    em: Emitter, dy: Value, sizes: Any, dim: int, start: int, end: int, step: int
) -> Value:
    """Zeros of `sizes` with `dy` in the slice."""
    dim = wrap(dim, len(sizes))
    start, end = slice_range(start, end, sizes[dim])
    return _place(em, dy, dim, start, step, sizes[dim])


@lowers("aten.select_backward")
def select_backward(em: Emitter, dy: Value, sizes: Any, dim: int, index: int) -> Value:
    """Zeros of `sizes` with `dy` at the index."""
    dim = wrap(dim, len(sizes))
    index = from_start(index, sizes[dim])
    return _place(em, em.unsqueeze(dy, dim), dim, index, 1, sizes[dim])


@lowers("aten.slice_scatter")
def slice_scatter(
    em: Emitter, x: Value, source: Value, dim: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
) -> Value:  # fmt: skip
    """`x` with `source` in a slice along `dim`."""
    dim = wrap(dim, x.rank)
    size = x.shape[dim]
    start, end = slice_range(start, end, size)
    source = source.to(x.dtype)
    if is_ordered(end, start):
        return x
    source = em.broadcast(source, (*x.shape[:dim], -(-(end - start) // step), *x.shape[dim + 1 :]))
    if step == 1 and size < end:  # the rest becomes less as a size grows, so no shape can have it
        inside, found = em.placed(source, dim, start, size)
        return em.select(inside, found, x)
    if step == 1:
        before, after = em.slice(x, dim, 0, start), em.slice(x, dim, end, size)
        return em.concatenate([before, source, after], dim)
    position = em.iota(x.shape, dim, "i64")
    inside = position.ge(start) & position.lt(end) & (em.binary(
        "remainder", position - start, step).eq(0))  # fmt: skip
    return em.select(inside, _place(em, source, dim, start, step, size), x)


@lowers("aten.select_scatter")
def select_scatter(em: Emitter, x: Value, source: Value, dim: int, index: int) -> Value:
    """`x` with `source` at an index along `dim`."""
    dim = wrap(dim, x.rank)
    index = from_start(index, x.shape[dim])
    source = em.broadcast(source, (*x.shape[:dim], *x.shape[dim + 1 :]))
    return slice_scatter(em, x, em.unsqueeze(source, dim), dim, index, index + 1)


@lowers("aten.diagonal_backward")
def diagonal_backward(
    em: Emitter, dy: Value, sizes: Any, offset: int, dim1: int, dim2: int
) -> Value:
    """Zeros of `sizes` with `dy` on a diagonal."""
    zeros = em.full(0, sizes, dy.dtype)
    return diagonal_scatter(em, zeros, dy, offset, dim1, dim2)


@lowers("aten.diagonal_scatter")
def diagonal_scatter(
    em: Emitter, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """`x` with `source` on a diagonal of two dimensions."""
    dim1, dim2 = wrap(dim1, x.rank), wrap(dim2, x.rank)
    rows, columns = x.shape[dim1], x.shape[dim2]
    top, _, length = diagonal_of(rows, columns, offset)
    if length == 0:
        return x
    # Spread the diagonal over the rows, put the row dimension at dim1, repeat along dim2.
    low, high = [0] * source.rank, [0] * source.rank
    low[-1], high[-1] = top, rows - top - length
    column = em.pad(source.to(x.dtype), low, high)
    others = [d for d in range(x.rank) if d not in (dim1, dim2)]
    where = [*others, dim1]
    order = sorted(range(len(where)), key=lambda i: where[i])
    column = em.transpose(column, order)
    spread = em.broadcast(column, x.shape, sorted(where))
    i, j = em.iota(x.shape, dim1, "i64"), em.iota(x.shape, dim2, "i64")
    return em.select((j - i).eq(offset), spread, x)


# -- triangles


def _band(em: Emitter, x: Value) -> Value:
    """column - row, for the last two dimensions."""
    return em.iota(x.shape, x.rank - 1, "i64") - em.iota(x.shape, x.rank - 2, "i64")


@lowers("aten.tril")
def tril(em: Emitter, x: Value, diagonal: int = 0) -> Value:
    """Zeros above a diagonal of the last two dimensions."""
    return em.select(_band(em, x).le(diagonal), x, 0)


@lowers("aten.triu")
def triu(em: Emitter, x: Value, diagonal: int = 0) -> Value:
    """Zeros below a diagonal of the last two dimensions."""
    return em.select(_band(em, x).ge(diagonal), x, 0)
