"""Look-ups by index tensors, and the sums that go back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gflow.dialects.attributes import read
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import NO_KERNELS, type_of

from ..dtypes import Unsupported
from ..emitter import Emitter, Value, broadcast_shapes
from ..registry import lowers
from .shape import wrap


def _index(index: Value) -> Value:
    if index.dtype == "i1" or index.dtype.startswith(("f", "bf")):
        raise Unsupported("an index that is not an integer")
    return index if index.dtype in ("i64", "i32") else index.to("i64")


def _wrapped(em: Emitter, index: Value, size: int) -> Value:
    """Negative positions count from the end."""
    index = _index(index)
    return em.select(index.lt(0), index + size, index)


@lowers("aten.embedding")
def embedding(
    em: Emitter, weight: Value, index: Value, padding_idx: int = -1,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Value:  # fmt: skip
    """Rows of the weight: [*index, width]."""
    return em("take", weight, _index(index), dim=0)


@lowers("aten.embedding_dense_backward")
def embedding_dense_backward(
    em: Emitter, dy: Value, index: Value, rows: int, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    """The weight's gradient: rows of `dy` added up by index, those at `padding_idx` left out.

    Raises:
        Unsupported: gradients are scaled by frequency, or there are none.
    """
    if scale_grad_by_freq or dy.numel == 0:
        raise Unsupported("gradients scaled by frequency")
    index = _index(index)
    grad = dy.compute()
    if padding_idx >= 0:
        mask = em.unsqueeze(index.eq(padding_idx), index.rank)
        grad = em.select(mask, 0.0, grad)
    zeros = em.full(0, (rows, dy.shape[-1]), grad.dtype)
    return em("index_add", zeros, index, grad, dim=0).to(dy.dtype)


@lowers("aten.index_select")
def index_select(em: Emitter, x: Value, dim: int, index: Value) -> Value:
    """Slices of `x` along `dim`; the index has one dimension."""
    index = _index(index)
    if not x.rank:
        return x
    if not index.rank:
        index = index.reshape((1,))
    return em("take", x, index, dim=wrap(dim, x.rank))


@lowers("aten.gather")
def gather(em: Emitter, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """out[.., i, ..] = x[.., index[.., i, ..], ..] along `dim`."""
    index = _index(index)
    if not x.rank or not index.rank:
        flat = em("take", x.reshape((x.numel,)), index.reshape((index.numel,)), dim=0)
        return flat.reshape(index.shape)
    return em("gather", x, index, dim=wrap(dim, x.rank))


@lowers("aten.take")
def take(em: Emitter, x: Value, index: Value) -> Value:
    """Elements of `x` as one dimension, with the index's shape; negative indices count from the end."""
    return em("take", x.reshape((x.numel,)), _wrapped(em, index, x.numel), dim=0)


@lowers("aten.index_add")
def index_add(
    em: Emitter, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1
) -> Value:
    """`x` with alpha · source added at positions along `dim`; equal indices add up.

    Raises:
        Unsupported: a 0-d tensor, or booleans.
    """
    if not x.rank or not source.rank or x.dtype == "i1":
        raise Unsupported("index_add on a scalar")
    if alpha != 1:
        source = (source.compute() * alpha).to(source.dtype)
    index = _index(index).reshape((index.numel,))
    result = em("index_add", x.compute(), index, source.compute(), dim=wrap(dim, x.rank))
    return result.to(x.dtype)


@lowers("aten.index_copy")
def index_copy(em: Emitter, x: Value, dim: int, index: Value, source: Value) -> Value:
    """`x` with slices of `source` at positions along `dim`; of equal indices the last counts.

    Raises:
        Unsupported: a 0-d tensor, or complex numbers.
    """
    if not x.rank or not source.rank or x.dtype in NO_KERNELS:
        raise Unsupported("index_copy on a scalar, or of complex numbers")
    index = _index(index).reshape((index.numel,))
    return em("index_copy", x, index, source, dim=wrap(dim, x.rank))


@lowers("aten.index_fill")
def index_fill(em: Emitter, x: Value, dim: int, index: Value, value: Any) -> Value:
    """`x` with a value at positions along `dim`. A 0-d `x` has one position."""
    if not x.rank:
        return index_fill(em, x.reshape((1,)), 0, index, value).reshape(())
    dim = wrap(dim, x.rank)
    index = _wrapped(em, index, x.shape[dim]).to("i64").reshape((index.numel,))
    shape = (x.shape[dim], index.numel)
    hit = em.iota(shape, 0, "i64").eq(em.broadcast(index, shape, (1,)))
    mask = em.broadcast(em.reduce(hit, "any", (1,)), x.shape, (dim,))
    filling = em.broadcast(value.to(x.dtype), x.shape) if isinstance(value, Value) else value
    return em.select(mask, filling, x)


def _merged(
    em: Emitter, x: Value, indices: Sequence[Value | None]
) -> tuple[Value, Value, int, list[int]]:
    """Adjacent indexed dimensions merged into one.

    Returns the (transposed, merged) tensor, the linear index, the merged dimension, and the
    permutation that brought the dimensions together.
    """
    places = [d for d, index in enumerate(indices) if index is not None]
    if any(indices[d].dtype in ("i1", "ui8") for d in places):  # type: ignore[union-attr]
        raise Unsupported("a mask as an index")
    order = list(range(x.rank))
    if places != list(range(places[0], places[-1] + 1)):
        order = places + [d for d in order if d not in places]
    first = 0 if order[: len(places)] == places else places[0]
    moved = em.transpose(x, order)
    sizes = [x.shape[d] for d in places]
    shape: tuple[int, ...] = ()
    for d in places:
        shape = broadcast_shapes(shape, indices[d].shape)  # type: ignore[union-attr]
    linear: Value | None = None
    for k, d in enumerate(places):
        index = em.broadcast(_wrapped(em, indices[d], sizes[k]).to("i64"), shape)  # type: ignore[arg-type]
        stride = math.prod(sizes[k + 1 :])
        term = index if stride == 1 else index * stride
        linear = term if linear is None else linear + term
    assert linear is not None
    count = len(places)
    merged = moved.reshape((*moved.shape[:first], math.prod(sizes), *moved.shape[first + count :]))
    return merged, linear, first, order


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index_tensor(em: Emitter, x: Value, indices: Sequence[Value | None]) -> Value:
    """x[indices]: tensors of indices, None for dimensions that are taken whole."""
    if not any(i is not None for i in indices):
        return x
    merged, linear, first, _ = _merged(em, x, indices)
    return em("take", merged, linear, dim=first)


def _put_along(em: Emitter, x: Value, indices: Sequence[Value | None], values: Value) -> Value:
    """Values at positions along one dimension."""
    (dim, given), *_ = [(d, i) for d, i in enumerate(indices) if i is not None]
    if given.dtype in ("i1", "ui8"):
        raise Unsupported("a mask as an index")
    before, behind = x.shape[:dim], x.shape[dim + 1 :]
    source = em.broadcast(values.to(x.dtype), (*before, *given.shape, *behind))
    index = _wrapped(em, given, x.shape[dim]).reshape((given.numel,))
    return em("index_copy", x, index, source.reshape((*before, given.numel, *behind)), dim=dim)


def repeated_along(index: Value, x: Value, dim: int) -> Value | None:
    """The index [n] of a `scatter` that is repeated over all dimensions of x but `dim`, as `expand` makes it.

    None where indices differ between slices, or only a part of x is written.
    """
    if index.rank != x.rank or any(
        size != x.shape[d] for d, size in enumerate(index.shape) if d != dim
    ):
        return None
    count, value = index.shape[dim], index.ir
    while not isinstance(value.owner, ir.Block):
        if type_of(value).numel == count:
            break
        op = value.owner.operation
        if op.name != "gflow.broadcast":
            return None
        attrs = read(OPS["broadcast"], op.attributes)
        own = type_of(op.operands[0]).shape
        if any(n != 1 and d != dim for n, d in zip(own, attrs["dims"])):
            return None
        value = op.operands[0]
    ty = type_of(value)
    return index.em.wrap(value, ty.shape, ty.dtype).reshape((count,)) if ty.numel == count else None


@lowers("aten.scatter.src", "aten.scatter.value")
def scatter(em: Emitter, x: Value, dim: int, index: Value, source: Any) -> Value:
    """`x` with slices of `source`, or a number, at positions along `dim`.

    Raises:
        Unsupported: indices differ between slices; 0-d tensors, or complex numbers.
    """
    if not x.rank or not index.rank or x.dtype in NO_KERNELS:
        raise Unsupported("scatter on a scalar, or of complex numbers")
    dim = wrap(dim, x.rank)
    along = repeated_along(_index(index), x, dim)
    if along is None:
        raise Unsupported("scatter at indices that differ between slices")
    if not isinstance(source, Value):
        source = em.full(source, index.shape, x.dtype)
    for d, size in enumerate(index.shape):
        source = em.slice(source, d, 0, size)
    return em("index_copy", x, along, source.to(x.dtype), dim=dim)


@lowers("aten.index_put", "aten._unsafe_index_put")
def index_put(
    em: Emitter, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False,
    unsafe: bool = False,
) -> Value:  # fmt: skip
    """`x` with values at x[indices]. accumulate: added to what is there.

    Raises:
        Unsupported: the number of values depends on data, or what the message says.
    """
    masks = [i for i in indices if i is not None]
    if len(masks) == 1 and masks[0].dtype == "i1" and indices[0] is not None:
        if values.numel != 1 or accumulate:
            raise Unsupported("values of a size that depends on data")
        mask = em.broadcast(masks[0], x.shape, range(masks[0].rank))
        return em.select(mask, em.broadcast(values.reshape(()), x.shape), x)
    if not accumulate and len(masks) == 1 and x.dtype not in NO_KERNELS:
        return _put_along(em, x, indices, values)
    if not masks or not accumulate or x.dtype == "i1":
        raise Unsupported("index_put without accumulation, or without an index")
    merged, linear, first, order = _merged(em, x, indices)
    shape = (*merged.shape[:first], *linear.shape, *merged.shape[first + 1 :])
    source = em.broadcast(values, shape).compute()
    total = em("index_add", merged.compute(), linear, source, dim=first).to(x.dtype)
    moved = total.reshape(tuple(x.shape[d] for d in order))
    return em.transpose(moved, sorted(range(x.rank), key=lambda d: order[d]))
