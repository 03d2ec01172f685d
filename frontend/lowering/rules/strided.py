"""Strided views: as_strided over a value's row-major elements, and sliding windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gflow.dialects import extents
from gflow.dialects.types import row_major_strides, share_memory
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import TraceValue

from ..dtypes import TO_TORCH, LoweringError, Unsupported
from ..emitter import Emitter, Value
from ..escape import emit_aten
from ..registry import lowers
from .shape import wrap


def _dense(shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """The dimensions of a strided view, outermost first, if it shows every element of one piece of memory
    once; dimensions of one element may have any stride. None: it doesn't."""
    order = sorted(range(len(shape)), key=lambda d: (shape[d] != 1, -strides[d], d))
    dense = row_major_strides(tuple(shape[d] for d in order))
    if 0 in shape or any(strides[d] != s for d, s in zip(order, dense) if shape[d] != 1):
        return None
    return order


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(d) for d in range(len(order))]


def strided_take(
    em: Emitter, x: Value, shape: Sequence[int], strides: Sequence[int], offset: int
) -> Value:
    """Element offset + Σ i·stride of x's row-major elements, for each position i of `shape`.

    Raises:
        Unsupported: the view's end depends on a dynamic dimension.
        LoweringError: the view reaches beyond the elements of `x`.
    """
    flat = x.reshape((x.numel,))
    shape = tuple(shape)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides))
    symbol = extents.current()
    if symbol is not None and not symbol.is_count(x.numel - last - 1):
        raise Unsupported(f"a strided view of sizes that vary ({symbol})")
    if 0 not in shape and not 0 <= last < x.numel:
        raise LoweringError(
            f"a strided view accesses element {last} of a tensor with {x.numel} elements; a graph has no "
            "access to memory outside of a tensor"
        )
    order = _dense(shape, strides)
    if order is not None:
        part = em.slice(flat, 0, offset, offset + math.prod(shape))
        return em.transpose(part.reshape([shape[d] for d in order]), _inverse(order))
    return em("take", flat, _positions(em, shape, strides, offset), dim=0)


def _positions(em: Emitter, shape: tuple[int, ...], strides: Sequence[int], offset: int) -> Value:
    position = em.full(offset, shape, "i64")
    for d, stride in enumerate(strides):
        if stride and shape[d] > 1:
            position = position + em.iota(shape, d, "i64") * stride
    return position


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


def _source(em: Emitter) -> TraceValue:
    """The strided view's source, which begins where its storage does.

    Raises:
        Unsupported: inside a decomposition, where layouts are not known.
        LoweringError: it does not.
    """
    op = em.current
    if op is None or em.trace is None:
        raise Unsupported("a strided view")
    source: TraceValue = op.args[0]
    if not _starts_its_storage(em.trace, source):
        raise _not_kept(em)
    return source


def _not_kept(em: Emitter) -> LoweringError:
    assert em.current is not None
    return LoweringError(
        f"{em.current.loc.file}:{em.current.loc.line}: as_strided on a view or on a tensor with gaps reads "
        "memory that a graph does not keep in that form; call .clone() first, or use slicing, "
        "expand or permute"
    )


def _memory_order(source: TraceValue) -> list[int] | None:
    """The dimensions of a tensor, outermost in memory first; None if it has gaps."""
    order = sorted(range(len(source.shape)), key=lambda d: (-source.strides[d], d))
    dense = row_major_strides(tuple(source.shape[d] for d in order))
    gaps = any(source.strides[d] != s for d, s in zip(order, dense) if source.shape[d] != 1)
    return None if gaps else order


#: elements of a tensor with gaps that are looked up one by one
_LOOKED_UP = 1 << 16


def _looked_up(
    em: Emitter, source: TraceValue, shape: Sequence[int], strides: Sequence[int], offset: int
) -> Value:
    """For each position of a strided view, the number of its element in a tensor with gaps.

    Raises:
        LoweringError: a position is in a gap, or there are too many positions.
    """
    count = math.prod(source.shape)
    if extents.current() is not None or max(count, math.prod(shape)) > _LOOKED_UP:
        raise _not_kept(em)
    held = _addresses(source.shape, source.strides, 0).reshape(-1)
    wanted = _addresses(shape, strides, offset)
    order = np.argsort(held, kind="stable")
    found = np.minimum(np.searchsorted(held[order], wanted), count - 1)
    if not np.array_equal(held[order][found], wanted):
        raise _not_kept(em)
    return em.dense(order[found].astype(np.int64), "i64")


def _addresses(shape: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
    found = np.full(tuple(shape), offset, dtype=np.int64)
    for d, (size, stride) in enumerate(zip(shape, strides)):
        steps = np.arange(size, dtype=np.int64) * stride
        found += steps.reshape([-1 if d == k else 1 for k in range(len(shape))])
    return found


@lowers("aten.as_strided", "aten.as_strided_copy")
def as_strided(em: Emitter, x: Value, shape: Any, strides: Any, offset: int | None = None) -> Value:
    """The memory of the tensor that `x` is a view of, read by a shape, strides and an offset, in elements."""
    source = _source(em)
    memory = _memory_order(source)
    if memory is None:
        places = _looked_up(em, source, shape, strides, offset or 0)
        return em("take", x.reshape((x.numel,)), places, dim=0)
    return strided_take(em, em.transpose(x, memory), shape, strides, offset or 0)


@lowers("aten.as_strided_scatter")
def as_strided_scatter(
    em: Emitter, x: Value, source: Value, shape: Any, strides: Any, offset: int | None = None
) -> Value:
    """Written as concatenated slices of memory where possible, else as a scatter. PyTorch's offset counts from the
    beginning of the tensor's storage.

    Raises:
        LoweringError: elements of the view share memory.
    """
    held, order, begin = _source(em), _dense(shape, strides), offset or 0
    memory = _memory_order(held)
    end = begin + math.prod(shape)
    if memory is not None and order is not None and end <= x.numel and extents.current() is None:
        whole = em.transpose(x, memory)
        flat = whole.reshape((x.numel,))
        values = em.broadcast(source.to(x.dtype), tuple(shape))
        middle = em.transpose(values, order).reshape((end - begin,))
        around = em.slice(flat, 0, 0, begin), em.slice(flat, 0, end, x.numel)
        joined = em.concatenate([around[0], middle, around[1]], 0)
        return em.transpose(joined.reshape(whole.shape), _inverse(memory))
    if share_memory(tuple(shape), tuple(strides)) and source.const is None:
        raise LoweringError(
            "elements of a strided view that share memory are updated to different values; what PyTorch "
            "leaves there depends on its order. Update parts that do not overlap (a slice for each)"
        )
    if memory is None:
        memory = list(range(x.rank))
        places = _looked_up(em, held, shape, strides, begin)
    else:
        places = _positions(em, tuple(shape), strides, begin)
    whole = em.transpose(x, memory)
    values = em.broadcast(source.to(x.dtype), places.shape)
    parts = [v.reshape((v.numel,)) for v in (whole, places, values)]
    result = TraceValue(0, parts[0].shape, TO_TORCH[x.dtype], (1,))
    call = [parts[0], 0, *parts[1:]]
    found: Value = emit_aten(em, torch.ops.aten.scatter.src, call, {}, [result])[0]
    return em.transpose(found.reshape(whole.shape), _inverse(memory))


@lowers("aten.unfold", "aten.unfold_copy")
def unfold(em: Emitter, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows of `size` every `step` along `dim`: [.., windows, .., size]."""
    if not x.rank:
        return em.slice(x.reshape((1,)), 0, 0, size)
    dim = wrap(dim, x.rank)
    windows = (x.shape[dim] - size) // step + 1
    index = em.iota((windows, size), 0, "i64") * step + em.iota((windows, size), 1, "i64")
    taken = em("take", x, index, dim=dim)  # [.., windows, size, ..]
    order = [d for d in range(taken.rank) if d != dim + 1] + [dim + 1]
    return em.transpose(taken, order)
