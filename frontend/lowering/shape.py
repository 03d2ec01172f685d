"""Views, permutations, slices and their scatters: positions renamed, values untouched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gflow.dialects.types import row_major_strides

from ..tracing.trace import Trace, TraceValue
from .dtypes import LoweringError, Unsupported, mlir_dtype, result_dtype
from .emitter import Emitter, Value
from .registry import lowers


def wrap(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


def _sizes(shape: Any, numel: int) -> tuple[int, ...]:
    """A shape with its -1 worked out."""
    shape = tuple(shape)
    if any(isinstance(s, Value) for s in shape):
        raise Unsupported("a traced size")
    if -1 in shape:
        known = -math.prod(shape)
        shape = tuple(numel // max(known, 1) if s == -1 else s for s in shape)
    return shape


@lowers("aten.view.default", "aten.reshape", "aten._unsafe_view", "aten.view_copy.default",
        "aten._reshape_alias", "aten._reshape_copy", "aten.reshape_copy")  # fmt: skip
def view(em: Emitter, x: Value, shape: Any, stride: Any = None) -> Value:
    return em.reshape(x, _sizes(shape, x.numel))


@lowers("aten.flatten")
def flatten(em: Emitter, x: Value, start: int = 0, end: int = -1) -> Value:
    if not x.rank:
        return x.reshape((1,))
    start, end = wrap(start, x.rank), wrap(end, x.rank)
    merged = math.prod(x.shape[start : end + 1])
    return x.reshape((*x.shape[:start], merged, *x.shape[end + 1 :]))


@lowers("aten.expand", "aten.expand_copy")
def expand(em: Emitter, x: Value, shape: Any, implicit: bool = False) -> Value:
    lead = len(shape) - x.rank
    shape = [x.shape[d - lead] if s == -1 else s for d, s in enumerate(shape)]
    return em.broadcast(x, shape)


@lowers("aten.broadcast_to")
def broadcast_to(em: Emitter, x: Value, shape: Any) -> Value:
    return expand(em, x, shape)


@lowers("prims.broadcast_in_dim")
def broadcast_in_dim(em: Emitter, x: Value, shape: Any, dims: Any) -> Value:
    return em.broadcast(x, shape, dims)


@lowers("aten.permute", "aten.permute_copy")
def permute(em: Emitter, x: Value, dims: Any) -> Value:
    return em.transpose(x, [wrap(d, x.rank) for d in dims])


@lowers("aten.transpose.int", "aten.transpose_copy.int", "aten.swapaxes", "aten.swapdims")
def transpose(em: Emitter, x: Value, a: int, b: int) -> Value:
    order = list(range(x.rank))
    if order:
        a, b = wrap(a, x.rank), wrap(b, x.rank)
        order[a], order[b] = order[b], order[a]
    return em.transpose(x, order)


@lowers("aten.t", "aten.t_copy", "aten.numpy_T", "aten.mT", "aten.adjoint")
def t(em: Emitter, x: Value) -> Value:
    order = list(range(x.rank))
    order[-2:] = reversed(order[-2:])
    return em.transpose(x, order)


@lowers("aten.unsqueeze", "aten.unsqueeze_copy")
def unsqueeze(em: Emitter, x: Value, dim: int) -> Value:
    return em.unsqueeze(x, dim % (x.rank + 1))


@lowers("aten.squeeze", "aten.squeeze_copy")
def squeeze(em: Emitter, x: Value, dims: Any = None) -> Value:
    if dims is None:
        chosen = set(range(x.rank))
    else:
        chosen = {wrap(d, x.rank) for d in ([dims] if isinstance(dims, int) else dims)}
    return x.reshape(tuple(s for d, s in enumerate(x.shape) if s != 1 or d not in chosen))


@lowers("aten.view.dtype", "aten.view_copy.dtype")
def view_dtype(em: Emitter, x: Value, dtype: Any) -> Value:
    if mlir_dtype(dtype) != x.dtype:
        raise Unsupported("bits read as another type")
    return x


# -- slices


def _range(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    start = 0 if start is None else start
    end = size if end is None else end
    if isinstance(start, Value) or isinstance(end, Value):
        raise Unsupported("a traced bound")
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return start, end


@lowers("aten.slice", "aten.slice_copy")
def slice_(
    em: Emitter, x: Value, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Value:  # fmt: skip
    dim = wrap(dim, x.rank)
    return em.slice(x, dim, *_range(start, end, x.shape[dim]), step)


@lowers("aten.narrow")
def narrow(em: Emitter, x: Value, dim: int, start: int, length: int) -> Value:
    if isinstance(start, Value):
        raise Unsupported("a traced start")
    dim = wrap(dim, x.rank)
    start += x.shape[dim] if start < 0 else 0
    return em.slice(x, dim, start, start + length)


@lowers("aten.select.int", "aten.select_copy.int")
def select(em: Emitter, x: Value, dim: int, index: int) -> Value:
    if isinstance(index, Value):
        raise Unsupported("a traced position")
    dim = wrap(dim, x.rank)
    index += x.shape[dim] if index < 0 else 0
    row = em.slice(x, dim, index, index + 1)
    return row.reshape((*x.shape[:dim], *x.shape[dim + 1 :]))


@lowers("aten.unbind", "aten.unbind_copy")
def unbind(em: Emitter, x: Value, dim: int = 0) -> list[Value]:
    return [select(em, x, dim, i) for i in range(x.shape[wrap(dim, x.rank)])]


@lowers("aten.split_with_sizes", "aten.split_with_sizes_copy", "aten.split.sizes")
def split_with_sizes(em: Emitter, x: Value, sizes: Any, dim: int = 0) -> list[Value]:
    dim = wrap(dim, x.rank)
    parts, start = [], 0
    for size in sizes:
        parts.append(em.slice(x, dim, start, start + size))
        start += size
    return parts


@lowers("aten.split.Tensor", "aten.split_copy", "aten.unsafe_split")
def split(em: Emitter, x: Value, size: int, dim: int = 0) -> list[Value]:
    dim = wrap(dim, x.rank)
    total = x.shape[dim]
    if size == 0 or total == 0:
        return [x]
    return [em.slice(x, dim, i, min(i + size, total)) for i in range(0, total, size)]


@lowers("aten.diagonal", "aten.diagonal_copy")
def diagonal(em: Emitter, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    dim1, dim2 = wrap(dim1, x.rank), wrap(dim2, x.rank)
    order = [d for d in range(x.rank) if d not in (dim1, dim2)] + [dim1, dim2]
    m = em.transpose(x, order)
    rows, columns = m.shape[-2:]
    top, left = max(-offset, 0), max(offset, 0)
    length = max(min(rows - top, columns - left), 0)
    m = em.slice(m, m.rank - 2, min(top, rows), min(top, rows) + length)
    m = em.slice(m, m.rank - 1, min(left, columns), min(left, columns) + length)
    # The diagonal of a square matrix is every (length + 1)-th of its elements.
    lead = m.shape[:-2]
    if length == 0:
        return m.reshape((*lead, 0))
    flat = m.reshape((*lead, length * length))
    return em.slice(flat, flat.rank - 1, 0, length * length, length + 1)


# -- joining


@lowers("aten.cat", "aten.concat", "aten.concatenate")
def cat(em: Emitter, xs: Sequence[Value], dim: int = 0) -> Value:
    dtype = result_dtype(xs)
    kept = [x for x in xs if x.shape != (0,)] or [xs[0]]
    return em.concatenate([x.to(dtype) for x in kept], wrap(dim, kept[0].rank))


@lowers("aten.stack")
def stack(em: Emitter, xs: Sequence[Value], dim: int = 0) -> Value:
    dim %= xs[0].rank + 1
    dtype = result_dtype(xs)
    return em.concatenate([em.unsqueeze(x.to(dtype), dim) for x in xs], dim)


@lowers("aten.repeat")
def repeat(em: Emitter, x: Value, repeats: Any) -> Value:
    lead = len(repeats) - x.rank
    sizes = (1,) * lead + x.shape
    split: list[int] = []
    wide: list[int] = []
    dims: list[int] = []
    for size, times in zip(sizes, repeats):
        dims.append(len(wide) + 1)
        split += [size]
        wide += [times, size]
    base = x.reshape(tuple(split))
    spread = em.broadcast(base, wide, dims) if base.rank else base
    return spread.reshape(tuple(s * r for s, r in zip(sizes, repeats)))


@lowers("aten.flip")
def flip(em: Emitter, x: Value, dims: Any) -> Value:
    dims = sorted({wrap(d, x.rank) for d in dims})
    return em("reverse", x, dims=tuple(dims)) if dims and x.rank else x


@lowers("aten.roll")
def roll(em: Emitter, x: Value, shifts: Any, dims: Any = ()) -> Value:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if x.numel == 0:
        return x
    if not dims:
        return roll(em, x.reshape((x.numel,)), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims):
        dim = wrap(dim, x.rank)
        size = x.shape[dim]
        cut = -shift % size
        if cut:
            x = em.concatenate([em.slice(x, dim, cut, size), em.slice(x, dim, 0, cut)], dim)
    return x


# -- padding and scattering back


@lowers("aten.constant_pad_nd")
def constant_pad(em: Emitter, x: Value, padding: Any, value: Any = 0) -> Value:
    if isinstance(value, Value):
        raise Unsupported("a traced padding value")
    low, high = [0] * x.rank, [0] * x.rank
    for i in range(len(padding) // 2):
        dim = x.rank - 1 - i
        before, after = padding[2 * i], padding[2 * i + 1]
        x = em.slice(x, dim, max(-before, 0), x.shape[dim] - max(-after, 0))
        low[dim], high[dim] = max(before, 0), max(after, 0)
    return em.pad(x, low, high, value)


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
    if wide.shape[dim] > size - start:
        wide = em.slice(wide, dim, 0, size - start)
    low, high = [0] * x.rank, [0] * x.rank
    low[dim], high[dim] = start, size - start - wide.shape[dim]
    return em.pad(wide, low, high)


@lowers("aten.slice_backward")
def slice_backward(
    em: Emitter, dy: Value, sizes: Any, dim: int, start: int, end: int, step: int
) -> Value:
    dim = wrap(dim, len(sizes))
    start, end = _range(start, end, sizes[dim])
    return _place(em, dy, dim, start, step, sizes[dim])


@lowers("aten.select_backward")
def select_backward(em: Emitter, dy: Value, sizes: Any, dim: int, index: int) -> Value:
    dim = wrap(dim, len(sizes))
    index += sizes[dim] if index < 0 else 0
    return _place(em, em.unsqueeze(dy, dim), dim, index, 1, sizes[dim])


@lowers("aten.slice_scatter")
def slice_scatter(
    em: Emitter, x: Value, source: Value, dim: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
) -> Value:  # fmt: skip
    dim = wrap(dim, x.rank)
    size = x.shape[dim]
    start, end = _range(start, end, size)
    source = source.to(x.dtype)
    if start >= end:
        return x
    source = em.broadcast(source, (*x.shape[:dim], -(-(end - start) // step), *x.shape[dim + 1 :]))
    if step == 1:
        before, after = em.slice(x, dim, 0, start), em.slice(x, dim, end, size)
        return em.concatenate([before, source, after], dim)
    position = em.iota(x.shape, dim, "i64")
    inside = position.ge(start) & position.lt(end) & (em.binary(
        "remainder", position - start, step).eq(0))  # fmt: skip
    return em.select(inside, _place(em, source, dim, start, step, size), x)


@lowers("aten.select_scatter")
def select_scatter(em: Emitter, x: Value, source: Value, dim: int, index: int) -> Value:
    dim = wrap(dim, x.rank)
    index += x.shape[dim] if index < 0 else 0
    source = em.broadcast(source, (*x.shape[:dim], *x.shape[dim + 1 :]))
    return slice_scatter(em, x, em.unsqueeze(source, dim), dim, index, index + 1)


@lowers("aten.diagonal_backward")
def diagonal_backward(
    em: Emitter, dy: Value, sizes: Any, offset: int, dim1: int, dim2: int
) -> Value:
    zeros = em.full(0, sizes, dy.dtype)
    return diagonal_scatter(em, zeros, dy, offset, dim1, dim2)


@lowers("aten.diagonal_scatter")
def diagonal_scatter(
    em: Emitter, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    dim1, dim2 = wrap(dim1, x.rank), wrap(dim2, x.rank)
    rows, columns = x.shape[dim1], x.shape[dim2]
    top, left = max(-offset, 0), max(offset, 0)
    length = max(min(rows - top, columns - left), 0)
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


# -- triangles and strided views


def _band(em: Emitter, x: Value) -> Value:
    """column - row, for the last two dimensions."""
    return em.iota(x.shape, x.rank - 1, "i64") - em.iota(x.shape, x.rank - 2, "i64")


@lowers("aten.tril")
def tril(em: Emitter, x: Value, diagonal: int = 0) -> Value:
    return em.select(_band(em, x).le(diagonal), x, 0)


@lowers("aten.triu")
def triu(em: Emitter, x: Value, diagonal: int = 0) -> Value:
    return em.select(_band(em, x).ge(diagonal), x, 0)


def strided_take(
    em: Emitter, x: Value, shape: Sequence[int], strides: Sequence[int], offset: int
) -> Value:
    """Element offset + Σ i·stride of x's row-major elements, for each position i of `shape`."""
    flat = x.reshape((x.numel,))
    shape = tuple(shape)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
    if 0 not in shape and not 0 <= last < x.numel:
        raise LoweringError(
            f"a strided view reaches element {last} of a tensor of {x.numel}; a graph does not "
            "keep what lies around a tensor in memory"
        )
    if tuple(strides) == row_major_strides(shape) and math.prod(shape) > 0:
        return em.slice(flat, 0, offset, offset + math.prod(shape)).reshape(shape)
    if not shape:
        return em.slice(flat, 0, offset, offset + 1).reshape(())
    position = em.full(offset, shape, "i64")
    for d, stride in enumerate(strides):
        if stride and shape[d] > 1:
            position = position + em.iota(shape, d, "i64") * stride
    return em("take", flat, position, dim=0)


def _starts_its_storage(trace: Trace, value: TraceValue) -> bool:
    """Whether the value begins where its storage does: views of all elements of such a value do."""
    made_by = {id(r): op for op in trace.ops for r in op.results if r is not None}
    while id(value) in made_by:
        maker = made_by[id(value)]
        if not any(r.alias_info for r in maker.func._schema.returns):
            return True
        base = maker.args[0]
        if math.prod(base.shape) != math.prod(value.shape):
            return False
        value = base
    return True


def _memory_order(em: Emitter) -> list[int]:
    """The dimensions of the strided view's source, outermost in memory first.

    Raises:
        Unsupported: inside a decomposition, where layouts are not known.
        LoweringError: the source does not fill its storage.
    """
    op = em.current
    if op is None or em.trace is None:
        raise Unsupported("a strided view")
    source = op.args[0]
    order = sorted(range(len(source.shape)), key=lambda d: (-source.strides[d], d))
    dense = row_major_strides(tuple(source.shape[d] for d in order))
    gaps = any(source.strides[d] != s for d, s in zip(order, dense) if source.shape[d] != 1)
    if gaps or not _starts_its_storage(em.trace, source):
        raise LoweringError(
            f"{op.loc.file}:{op.loc.line}: as_strided on a view or on a tensor with gaps reads "
            "memory that a graph does not keep in that form; call .clone() first, or use slicing, "
            "expand or permute"
        )
    return order


@lowers("aten.as_strided", "aten.as_strided_copy")
def as_strided(em: Emitter, x: Value, shape: Any, strides: Any, offset: int | None = None) -> Value:
    return strided_take(em, em.transpose(x, _memory_order(em)), shape, strides, offset or 0)


@lowers("aten.as_strided_scatter")
def as_strided_scatter(em: Emitter, x: Value, *args: Any, **kwargs: Any) -> Value:
    if _memory_order(em) != list(range(x.rank)):
        raise LoweringError("as_strided_scatter of a permuted tensor; call .contiguous() first")
    raise Unsupported("a strided scatter")


@lowers("aten.unfold", "aten.unfold_copy")
def unfold(em: Emitter, x: Value, dim: int, size: int, step: int) -> Value:
    if not x.rank:
        return em.slice(x.reshape((1,)), 0, 0, size)
    dim = wrap(dim, x.rank)
    windows = (x.shape[dim] - size) // step + 1
    index = em.iota((windows, size), 0, "i64") * step + em.iota((windows, size), 1, "i64")
    taken = em("take", x, index, dim=dim)  # [.., windows, size, ..]
    order = [d for d in range(taken.rank) if d != dim + 1] + [dim + 1]
    return em.transpose(taken, order)
