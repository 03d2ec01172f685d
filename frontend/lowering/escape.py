"""Calls without a lowering become `gflow.aten`."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from math import prod
from typing import Any

import torch
from torch.utils._pytree import arg_tree_leaves

from gflow.dialects.aten.calls import encode_call
from gflow.dialects.opdef import MIXED_GROUPS
from gflow.runtime.stored.aten_check import overload
from gflow.tracing.dispatch.failures.pruning import draws_from

from .dtypes import LoweringError, has_kernels, mlir_dtype
from .emitter import Emitter, Value

#: kernels that support integer operands only if they are dense
_DENSE_INTEGERS = ("aten._embedding_bag", "aten.embedding_bag")
#: calls that reinterpret the memory of a tensor, and those of `_weight_norm`, whose kernels support row-major tensors
#: only
_DENSE = (
    "aten.view_as_complex", "aten.view.dtype", "aten.view_copy.dtype", "aten._weight_norm_interface",
)  # fmt: skip


def _dense(em: Emitter, item: Any, dtypes: tuple[str, ...] | None = None) -> Any:
    """Tensors (of these dtypes) copied by ATen; no pass turns such a copy back into a view."""
    if isinstance(item, list):
        return [_dense(em, i, dtypes) for i in item]
    if not isinstance(item, Value) or item.number or (dtypes and item.dtype not in dtypes):
        return item
    text = encode_call(
        [item],
        {"memory_format": torch.contiguous_format},
        lambda leaf: {"t": 0} if leaf is item else None,
    )
    attrs = {"overload": "aten.clone.default", "args": text}
    return em.create("aten", [item], attrs, [(item.shape, item.dtype)])[0]


def _operands(
    em: Emitter, func: torch._ops.OpOverload, values: list[Value]
) -> tuple[list[Value], dict[int, dict[str, Any]]]:
    """The operands of a call, and how it refers to each value, by its id.

    An op has a limited number of segments of operands of one type. If the values have more types, those of one element
    type are concatenated to one operand.

    Raises:
        LoweringError: there are too many element types, or a size is not known.
    """
    # Neighbours of one type.
    operands = sorted(values, key=lambda v: v.type)
    if len({v.type for v in operands}) <= MIXED_GROUPS:
        return operands, {id(v): {"s" if v.number else "t": i} for i, v in enumerate(operands)}
    joined: list[Value] = []
    places: dict[int, dict[str, Any]] = {}
    numbers = [v for v in operands if v.number]
    tensors = sorted((v for v in operands if not v.number), key=lambda v: v.dtype)
    for _, group in groupby(tensors, key=lambda v: v.dtype):
        parts, offset = [], 0
        for value in group:
            sizes = list(value.shape)
            if not all(type(size) is int for size in sizes):
                raise LoweringError(
                    f"{func} takes tensors of too many types and dynamic sizes for one op; leave its dimensions "
                    "static"
                )
            places[id(value)] = {"part": [len(joined), offset, sizes]}
            parts.append(em.reshape(value, (prod(sizes),)))
            offset += prod(sizes)
        joined.append(_joined(em, parts))
    for value in numbers:
        places[id(value)] = {"s": len(joined)}
        joined.append(value)
    if len(list(groupby(v.type for v in joined))) > MIXED_GROUPS:
        raise LoweringError(f"{func} takes tensors of more than {MIXED_GROUPS} element types")
    return joined, places


def _joined(em: Emitter, parts: list[Value]) -> Value:
    """Values flattened to one dimension and concatenated; by PyTorch if there are no kernels for them."""
    if has_kernels(parts[0].dtype):
        return em.concatenate(parts, 0)
    while len(parts) > 1:
        some, parts = parts[:MIXED_GROUPS], parts[MIXED_GROUPS:]
        shape = (sum(int(p.shape[0]) for p in some),)
        text = encode_call([some, 0], {}, partial(_place, {id(p): i for i, p in enumerate(some)}))
        attrs = {"overload": "aten.cat.default", "args": text}
        parts.insert(0, em.create("aten", some, attrs, [(shape, some[0].dtype)])[0])
    return parts[0]


def _place(places: dict[int, int], leaf: Any) -> dict[str, Any] | None:
    return {"t": places[id(leaf)]} if isinstance(leaf, Value) else None


def emit_aten(
    em: Emitter, func: torch._ops.OpOverload, args: Any, kwargs: Any, results: Any
) -> Any:
    """Emit the call as one `gflow.aten`. Returns one Value (or None) for each entry of `results`.

    Raises:
        LoweringError: programs do not call the overload (see `aten_check`), or results are sparse, or have too many
            different types.
    """
    if (
        func.namespace != "_c10d_functional"
    ):  # collectives of complex numbers, which no stored program has
        try:
            overload(str(func))
        except ValueError as error:
            raise LoweringError(f"{error}; call it outside of the graph") from None
    kwargs = {k: v for k, v in kwargs.items() if v is not None}
    if str(func).startswith(_DENSE_INTEGERS):
        args = [_dense(em, a, ("i64", "i32")) for a in args]
    elif str(func).startswith(_DENSE):
        args = [_dense(em, a) for a in args]
    drawing = draws_from(func, args, kwargs)
    if drawing:  # in the order of memory
        args = [_dense(em, a) for a in args]
    leaves = {id(v): v for v in arg_tree_leaves(*args, **kwargs) if isinstance(v, Value)}
    if drawing and em.drawn is not None:
        leaves.setdefault(id(em.drawn), em.drawn)  # it comes after that draw, as in eager
    operands, places = _operands(em, func, list(leaves.values()))

    def operand(leaf: Any) -> dict[str, Any] | None:
        return places[id(leaf)] if isinstance(leaf, Value) else None

    text = encode_call(args, kwargs, operand)
    if any(r is not None and r.shape and not r.strides for r in results):
        raise LoweringError(f"{func} gives a sparse tensor; a graph has dense tensors only")
    types = [(r.shape, mlir_dtype(r.dtype)) for r in results if r is not None]
    if len(list(groupby(types))) > MIXED_GROUPS:
        raise LoweringError(f"{func} gives tensors of more than {MIXED_GROUPS} types in turn")
    attrs: dict[str, Any] = {"overload": str(func), "args": text}
    if drawing:
        attrs["unique"] = em.uniques
        em.uniques += 1
    made = em.create("aten", operands, attrs, types)
    if drawing:
        em.drawn = made[0]
    values = iter(made)
    return [None if r is None else next(values) for r in results]
