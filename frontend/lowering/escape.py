"""Calls without a lowering become `gflow.aten`."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import arg_tree_leaves

from gflow.dialects.aten.calls import encode_call

from .dtypes import LoweringError, mlir_dtype
from .emitter import Emitter, Value

_NONDETERMINISTIC = torch.Tag.nondeterministic_seeded


#: Kernels that take integer operands only if they are dense, wherever they come from.
_DENSE_INTEGERS = ("aten._embedding_bag", "aten.embedding_bag")
#: Calls that read the memory of a tensor as something else.
_DENSE = ("aten.view_as_complex", "aten.view.dtype", "aten.view_copy.dtype")


def _dense(em: Emitter, item: Any, dtypes: tuple[str, ...] | None = None) -> Any:
    """Tensors (of these dtypes) copied by ATen, which no pass turns back into a view."""
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


def _draws(func: torch._ops.OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether a call draws random numbers; attention without dropout doesn't."""
    if _NONDETERMINISTIC not in func.tags:
        return False
    named = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
    defaults = {a.name: a.default_value for a in func._schema.arguments}
    return "dropout_p" not in defaults or named.get("dropout_p", defaults["dropout_p"]) != 0.0


def emit_aten(
    em: Emitter, func: torch._ops.OpOverload, args: Any, kwargs: Any, results: Any
) -> Any:
    """The call as one `gflow.aten`; gives one Value (or None) for each entry of `results`."""
    kwargs = {k: v for k, v in kwargs.items() if v is not None}
    if str(func).startswith(_DENSE_INTEGERS):
        args = [_dense(em, a, ("i64", "i32")) for a in args]
    elif str(func).startswith(_DENSE):
        args = [_dense(em, a) for a in args]
    leaves = {id(v): v for v in arg_tree_leaves(*args, **kwargs) if isinstance(v, Value)}
    # Neighbours of one type: an op has few groups of operands of one type.
    operands = sorted(leaves.values(), key=lambda v: v.type)
    positions = {id(v): i for i, v in enumerate(operands)}

    def operand(leaf: Any) -> dict[str, int] | None:
        if not isinstance(leaf, Value):
            return None
        return {"s" if leaf.number else "t": positions[id(leaf)]}

    text = encode_call(args, kwargs, operand)
    if any(r is not None and r.shape and not r.strides for r in results):
        raise LoweringError(f"{func} gives a sparse tensor; a graph has dense tensors only")
    types = [(r.shape, mlir_dtype(r.dtype)) for r in results if r is not None]
    attrs: dict[str, Any] = {"overload": str(func), "args": text}
    if _draws(func, args, kwargs):
        attrs["unique"] = em.uniques
        em.uniques += 1
    values = iter(em.create("aten", operands, attrs, types))
    return [None if r is None else next(values) for r in results]
