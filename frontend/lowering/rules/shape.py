"""Views, permutations, slices and joins: ops that move elements and do not compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gflow.dialects.extents import is_ordered, is_sum, minimum, remainder, varies

from ..dtypes import LoweringError, Unsupported, mlir_dtype, result_dtype
from ..emitter import Emitter, Value
from ..registry import lowers


def wrap(dim: int, rank: int) -> int:
    """A dimension counted from 0; 0 for rank 0."""
    return dim % rank if rank else 0


def _sizes(shape: Any, numel: int) -> tuple[int, ...]:
    """A shape with its -1 resolved."""
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
    """`x` with another shape; a size of −1 is inferred. The compiler chooses strides."""
    return em.reshape(x, _sizes(shape, x.numel))


@lowers("aten.flatten")
def flatten(em: Emitter, x: Value, start: int = 0, end: int = -1) -> Value:
    """Dimensions from `start` to `end`, both included, as one."""
    if not x.rank:
        return x.reshape((1,))
    start, end = wrap(start, x.rank), wrap(end, x.rank)
    merged = math.prod(x.shape[start : end + 1])
    return x.reshape((*x.shape[:start], merged, *x.shape[end + 1 :]))


@lowers("aten.expand", "aten.expand_copy")
def expand(em: Emitter, x: Value, shape: Any, implicit: bool = False) -> Value:
    """`x` repeated to a shape; −1 keeps a size."""
    lead = len(shape) - x.rank
    shape = [x.shape[d - lead] if s == -1 else s for d, s in enumerate(shape)]
    return em.broadcast(x, shape)


@lowers("aten.broadcast_to")
def broadcast_to(em: Emitter, x: Value, shape: Any) -> Value:
    """`expand`."""
    return expand(em, x, shape)


@lowers("prims.broadcast_in_dim")
def broadcast_in_dim(em: Emitter, x: Value, shape: Any, dims: Any) -> Value:
    """`x` repeated to a shape. dims: the dimension of the result for each of its dimensions."""
    return em.broadcast(x, shape, dims)


@lowers("aten.permute", "aten.permute_copy")
def permute(em: Emitter, x: Value, dims: Any) -> Value:
    """Dimensions in another order."""
    return em.transpose(x, [wrap(d, x.rank) for d in dims])


@lowers("aten.transpose.int", "aten.transpose_copy.int", "aten.swapaxes", "aten.swapdims")
def transpose(em: Emitter, x: Value, a: int, b: int) -> Value:
    """Two dimensions exchanged."""
    order = list(range(x.rank))
    if order:
        a, b = wrap(a, x.rank), wrap(b, x.rank)
        order[a], order[b] = order[b], order[a]
    return em.transpose(x, order)


@lowers("aten.t", "aten.t_copy", "aten.numpy_T", "aten.mT", "aten.adjoint")
def t(em: Emitter, x: Value) -> Value:
    """The last two dimensions exchanged."""
    order = list(range(x.rank))
    order[-2:] = reversed(order[-2:])
    return em.transpose(x, order)


@lowers("aten.unsqueeze", "aten.unsqueeze_copy")
def unsqueeze(em: Emitter, x: Value, dim: int) -> Value:
    """A dimension of size 1 at `dim`."""
    return em.unsqueeze(x, dim % (x.rank + 1))


@lowers("aten.squeeze", "aten.squeeze_copy")
def squeeze(em: Emitter, x: Value, dims: Any = None) -> Value:
    """Without dimensions of size 1: those among `dims`, or all."""
    if dims is None:
        chosen = set(range(x.rank))
    else:
        chosen = {wrap(d, x.rank) for d in ([dims] if isinstance(dims, int) else dims)}
    return x.reshape(tuple(s for d, s in enumerate(x.shape) if s != 1 or d not in chosen))


@lowers("aten.view.dtype", "aten.view_copy.dtype")
def view_dtype(em: Emitter, x: Value, dtype: Any) -> Value:
    """The value itself.

    Raises:
        Unsupported: its bits would be read as another dtype.
    """
    if mlir_dtype(dtype) != x.dtype:
        raise Unsupported("bits read as another type")
    return x


# -- slices


#: `x[a:]`
_END = (1 << 63) - 1


def from_start(index: int, size: int) -> int:
    """An index into a dimension, where negative ones count from its end.

    Raises:
        Unsupported: it is negative for some sizes only.
        LoweringError: there are two dynamic sizes, and the index from the start cannot be told from a constant.
    """
    if is_ordered(0, index):
        return index
    if is_ordered(index, -1):
        # an Unsupported would let a decomposition of PyTorch's compute with the number
        if not is_sum(index + size, index, size):
            raise LoweringError(
                "an index that counts from the end by the second of two dynamic sizes is not supported; count from the "
                f"start, as in x[{size} - n], or leave one of the sizes static"
            )
        return index + size
    raise Unsupported("an index that is negative for some sizes")


def slice_range(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """A slice's bounds in [0, size], negative ones counted from the end.

    Raises:
        Unsupported: a bound is traced.
    """
    start = 0 if start is None else start
    end = size if end is None else end
    if isinstance(start, Value) or isinstance(end, Value):
        raise Unsupported("a traced bound")
    if not varies(size) and not varies(start) and not varies(end):
        start = min(max(start + size if start < 0 else start, 0), size)
        return start, min(max(end + size if end < 0 else end, start), size)
    start = from_start(start, size)
    end = size if end >= _END else from_start(end, size)
    try:
        start, end = minimum(start, size), minimum(end, size)
        inside = minimum(0, start) == 0 and minimum(start, end) == start
    except ValueError as error:
        raise Unsupported(f"a slice whose bounds vary: {error}") from None
    if not inside:
        raise Unsupported("a slice whose bounds vary, and may lie outside")
    return start, end


@lowers("aten.slice", "aten.slice_copy")
def slice_(
    em: Emitter, x: Value, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Value:  # fmt: skip
    """x[.., start:end:step, ..] along `dim`."""
    dim = wrap(dim, x.rank)
    return em.slice(x, dim, *slice_range(start, end, x.shape[dim]), step)


@lowers("aten.narrow")
def narrow(em: Emitter, x: Value, dim: int, start: int, length: int) -> Value:
    """x[.., start : start + length, ..] along `dim`.

    Raises:
        Unsupported: the start is traced.
    """
    if isinstance(start, Value):
        raise Unsupported("a traced start")
    dim = wrap(dim, x.rank)
    start = from_start(start, x.shape[dim])
    return em.slice(x, dim, start, start + length)


@lowers("aten.select.int", "aten.select_copy.int")
def select(em: Emitter, x: Value, dim: int, index: int) -> Value:
    """x[.., index, ..] along `dim`, which goes away.

    Raises:
        Unsupported: the index is traced.
    """
    if isinstance(index, Value):
        raise Unsupported("a traced position")
    dim = wrap(dim, x.rank)
    index = from_start(index, x.shape[dim])
    row = em.slice(x, dim, index, index + 1)
    return row.reshape((*x.shape[:dim], *x.shape[dim + 1 :]))


@lowers("aten.unbind", "aten.unbind_copy")
def unbind(em: Emitter, x: Value, dim: int = 0) -> list[Value]:
    """All of `select` along `dim`."""
    return [select(em, x, dim, i) for i in range(x.shape[wrap(dim, x.rank)])]


@lowers("aten.split_with_sizes", "aten.split_with_sizes_copy", "aten.split.sizes")
def split_with_sizes(em: Emitter, x: Value, sizes: Any, dim: int = 0) -> list[Value]:
    """Parts of given sizes along `dim`."""
    dim = wrap(dim, x.rank)
    parts, start = [], 0
    for size in sizes:
        parts.append(em.slice(x, dim, start, start + size))
        start += size
    return parts


@lowers("aten.split.Tensor", "aten.split_copy", "aten.unsafe_split")
def split(em: Emitter, x: Value, size: int, dim: int = 0) -> list[Value]:
    """Parts of one size along `dim`; the last may be smaller."""
    dim = wrap(dim, x.rank)
    total = x.shape[dim]
    if size == 0 or total == 0:
        return [x]
    return [em.slice(x, dim, i, min(i + size, total)) for i in range(0, total, size)]


@lowers("aten.diagonal", "aten.diagonal_copy")
def diagonal(em: Emitter, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """A diagonal of two dimensions, as the last dimension."""
    dim1, dim2 = wrap(dim1, x.rank), wrap(dim2, x.rank)
    order = [d for d in range(x.rank) if d not in (dim1, dim2)] + [dim1, dim2]
    m = em.transpose(x, order)
    rows, columns = m.shape[-2:]
    top, left, length = diagonal_of(rows, columns, offset)
    m = em.slice(m, m.rank - 2, min(top, rows), min(top, rows) + length)
    m = em.slice(m, m.rank - 1, min(left, columns), min(left, columns) + length)
    # The diagonal of a square matrix is every (length + 1)-th of its elements.
    lead = m.shape[:-2]
    if length == 0:
        return m.reshape((*lead, 0))
    flat = m.reshape((*lead, length * length))
    return em.slice(flat, flat.rank - 1, 0, length * length, length + 1)


def diagonal_of(rows: int, columns: int, offset: int) -> tuple[int, int, int]:
    """The first row and the first column of a matrix's diagonal, and its length.

    Raises:
        Unsupported: with dynamic sizes, which of the sides ends the diagonal depends on the size.
    """
    top, left = max(-offset, 0), max(offset, 0)
    try:
        return top, left, max(minimum(rows - top, columns - left), 0)
    except ValueError as error:
        raise Unsupported(f"a diagonal whose length varies: {error}") from None


# -- joining


@lowers("aten.cat", "aten.concat", "aten.concatenate")
def cat(em: Emitter, xs: Sequence[Value], dim: int = 0) -> Value:
    """Tensors joined along `dim`, promoted to one dtype; tensors of shape [0] are left out."""
    dtype = result_dtype(xs)
    kept = [x for x in xs if x.shape != (0,)] or [xs[0]]
    return em.concatenate([x.to(dtype) for x in kept], wrap(dim, kept[0].rank))


@lowers("aten.stack")
def stack(em: Emitter, xs: Sequence[Value], dim: int = 0) -> Value:
    """Tensors joined along a new dimension `dim`, promoted to one dtype."""
    dim %= xs[0].rank + 1
    dtype = result_dtype(xs)
    return em.concatenate([em.unsqueeze(x.to(dtype), dim) for x in xs], dim)


@lowers("aten.repeat")
def repeat(em: Emitter, x: Value, repeats: Any) -> Value:
    """Copies side by side: repeats[d] of them along dimension d."""
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
    """Dimensions read backwards."""
    dims = sorted({wrap(d, x.rank) for d in dims})
    return em("reverse", x, dims=tuple(dims)) if dims and x.rank else x


@lowers("aten.roll")
def roll(em: Emitter, x: Value, shifts: Any, dims: Any = ()) -> Value:
    """Elements moved along dimensions, from the end to the start; without dims, along the flattened tensor."""
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if x.numel == 0:
        return x
    if not dims:
        return roll(em, x.reshape((x.numel,)), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims):
        dim = wrap(dim, x.rank)
        size = x.shape[dim]
        try:
            cut = remainder(-shift, size)
        except ValueError as error:
            raise Unsupported(str(error)) from error
        if cut:
            x = em.concatenate([em.slice(x, dim, cut, size), em.slice(x, dim, 0, cut)], dim)
    return x
