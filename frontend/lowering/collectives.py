"""Functional collectives of `torch.distributed` become `gflow.collective`, each after the one before it."""

from __future__ import annotations

from typing import Any

import torch

from gflow.compiler.ir.collectives import GRADIENT
from gflow.dialects.aten.collectives import is_collective
from gflow.dialects.mlir import ir
from gflow.tracing.data.trace import Trace

from .dtypes import LoweringError
from .emitter import Emitter, Value


def emit_collectives(
    em: Emitter, func: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]
) -> list[Value] | None:
    """Lower a call of `torch.ops._c10d_functional`; None for any other call. Coalesced ones become several
    collectives."""
    if not is_collective(str(func)):
        return None
    named = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
    inputs = named.get("inputs")
    kind = func._opname.removesuffix("_coalesced")
    values = [named["input"]] if inputs is None else inputs
    return [_one(em, kind, x, named) for x in values]


def _one(em: Emitter, kind: str, x: Value, named: dict[str, Any]) -> Value:
    group = named["group_name"]
    if not isinstance(group, str):
        group = group.group_name
    ranks = torch._C._distributed_c10d._resolve_process_group(group).size()
    axis = em.trace.groups.get(group) if em.trace is not None else None
    attrs: dict[str, Any] = {"ranks": ranks}
    if axis is None:
        attrs["group"] = group
    else:
        attrs["axes"] = (axis,)
        em.mesh[axis] = ranks
    match kind:
        case "all_reduce":
            attrs["reduction"] = _reduction(named["reduce_op"])
        case "reduce_scatter_tensor":
            kind, attrs["reduction"] = "reduce_scatter", _reduction(named["reduce_op"])
        case "all_gather_into_tensor":
            kind = "all_gather"
        case "broadcast":
            attrs["root"] = named["src"]
        case "all_to_all_single":
            kind = "all_to_all"
            takes, sends = list(named["output_split_sizes"]), list(named["input_split_sizes"])
            if len({*takes, *sends}) != 1:
                attrs["takes"], attrs["sends"] = takes, sends
        case _:
            raise LoweringError(f"no collective {kind!r}")
    if not x.shape and kind in ("all_gather", "reduce_scatter", "all_to_all"):
        x = x.reshape((1,))
    made = em.collective(x, kind, attrs)
    mark_gradient(em, made.ir.owner.operation)
    return made


def copies(em: Emitter, trace: Trace, group: str) -> ir.Attribute:
    """The value of `gflow.copies` or `gflow.parts` for an argument of which each rank of a group has a copy or a
    shard."""
    axis = trace.groups[group]
    named: Any = group
    em.mesh[axis] = torch._C._distributed_c10d._resolve_process_group(named).size()
    return ir.ArrayAttr.get([ir.StringAttr.get(axis)])


def mark_gradient(em: Emitter, made: ir.Operation) -> None:
    """Mark an op that makes a gradient equal on all ranks with the name of its parameter."""
    if em.trace is None or em.current is None or not em.current.results:
        return
    (result, *_) = em.current.results
    if result not in em.trace.reduced:
        return
    made.attributes[GRADIENT] = ir.StringAttr.get(em.trace.reduced[result])
    if result in em.trace.buckets:
        made.attributes["gflow.buckets"] = ir.DenseI64ArrayAttr.get(em.trace.buckets[result])


def _reduction(name: str) -> str:
    return {"mean": "avg", "prod": "product"}.get(name.lower(), name.lower())
