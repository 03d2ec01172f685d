"""Calls without a lowering become `gflow.aten`."""

from __future__ import annotations

from typing import Any

import torch

from gflow.dialects.aten import encode_call

from .dtypes import mlir_dtype
from .emitter import Emitter, Value

_NONDETERMINISTIC = torch.Tag.nondeterministic_seeded


def emit_aten(
    em: Emitter, func: torch._ops.OpOverload, args: Any, kwargs: Any, results: Any
) -> Any:
    """The call as one `gflow.aten`; gives one Value (or None) for each entry of `results`."""
    operands: list[Value] = []
    positions: dict[int, int] = {}

    def operand(leaf: Any) -> dict[str, int] | None:
        if not isinstance(leaf, Value):
            return None
        key = id(leaf)
        if key not in positions:
            positions[key] = len(operands)
            operands.append(leaf)
        return {"s" if leaf.number else "t": positions[key]}

    kwargs = {k: v for k, v in kwargs.items() if v is not None}
    text = encode_call(args, kwargs, operand)
    types = [(r.shape, mlir_dtype(r.dtype)) for r in results if r is not None]
    attrs: dict[str, Any] = {"overload": str(func), "args": text}
    if _NONDETERMINISTIC in func.tags:
        attrs["unique"] = em.uniques
        em.uniques += 1
    values = iter(em.create("aten", operands, attrs, types))
    return [None if r is None else next(values) for r in results]
