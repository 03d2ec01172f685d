"""`to_global` and `to_local`: convert tensors and modules to and from global tensors.

In OneFlow these are methods of tensors and modules. Here the classes are PyTorch's, so they are functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gflow.errors import GraphError, GraphTraceError
from gflow.tracing.context.location import here
from gflow.tracing.data.global_tensors import is_global
from gflow.tracing.program.modules import is_traced
from gflow.tracing.program.resharding import reshard

from .placement import Placement


def to_global(value: Any, placement: Any = None, sbp: Any = None) -> Any:
    """Distribute a tensor or module over the ranks of a placement. In `build()`, reshard a value.

    Args:
        value: a global tensor, which is resharded; a plain tensor, which is the local part of this rank (with
            `broadcast`, the value of the first rank is used); or a module, whose parameters and buffers are converted
            in place. In `build()`: a value of the graph, which is replicated before.
        placement: a `placement` or a `DeviceMesh`; by default that of the global tensor.
        sbp: one of `sbp`, or one for each dimension of the placement.

    Returns:
        A `DTensor`; in `build()` the value; for a module, the module itself.

    Raises:
        GraphError: placement or sbp is missing or of another kind.
    """
    if isinstance(value, torch.nn.Module):
        return _module(value, placement, sbp)
    if not isinstance(value, torch.Tensor):
        raise GraphError(
            f"{here()}: to_global() takes a tensor or a module, found {type(value).__name__}"
        )
    mesh = placement.mesh if isinstance(placement, Placement) else placement
    if mesh is None and is_global(value):
        mesh = value.device_mesh  # type: ignore[attr-defined]
    if mesh is None:
        raise GraphError(f"{here()}: to_global() needs a placement")
    placements = _placements(sbp, mesh)
    if is_traced(value):
        return reshard(value, mesh, placements)
    # start-up: DTensor is loaded by the first program that has global tensors
    from torch.distributed.tensor import DTensor

    if is_global(value):
        return value.redistribute(mesh, placements)  # type: ignore[attr-defined]
    value = _from_first(value, mesh, placements)
    return DTensor.from_local(value, mesh, placements, run_check=False)


def _from_first(value: torch.Tensor, mesh: Any, placements: Sequence[Any]) -> torch.Tensor:
    """The value of the first rank along each dimension in which all have the whole."""
    for n, placed in enumerate(placements):
        if type(placed).__name__ == "Replicate" and mesh.size(n) > 1:
            group = mesh.get_group(n)
            value = value.detach().clone(memory_format=torch.contiguous_format)
            torch.distributed.broadcast(value, torch.distributed.get_global_rank(group, 0), group)
    return value


def _placements(sbp: Any, mesh: Any) -> list[Any]:
    found = list(sbp) if isinstance(sbp, (list, tuple)) else [sbp]
    kinds = ("Shard", "Replicate", "Partial")
    if len(found) != mesh.ndim or any(type(p).__name__ not in kinds for p in found):
        raise GraphError(
            f"{here()}: to_global() needs an sbp for each of the {mesh.ndim} dimensions of the placement: "
            f"sbp.split(dim), sbp.broadcast or sbp.partial_sum, found {sbp!r}"
        )
    return found


def _module(module: torch.nn.Module, placement: Any, sbp: Any) -> torch.nn.Module:
    seen: dict[int, Any] = {}
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                if id(parameter) not in seen:
                    made = to_global(parameter.detach(), placement, sbp)
                    kept = torch.nn.Parameter(made, parameter.requires_grad)
                    seen[id(parameter)] = (parameter, kept)
                part._parameters[name] = seen[id(parameter)][1]
        for name, buffer in list(part._buffers.items()):
            if buffer is not None:
                part._buffers[name] = to_global(buffer, placement, sbp)
    return module


def to_local(value: torch.Tensor) -> torch.Tensor:
    """The local tensor of this rank of a global tensor. A plain tensor is returned unchanged.

    Raises:
        GraphTraceError: it is called in `build()`, where all values are global.
    """
    if is_traced(value):
        raise GraphTraceError(
            f"{here()}: to_local() is not supported in build(), where all values are global; call it on "
            "the results of the graph."
        )
    return value.to_local() if is_global(value) else value  # type: ignore[attr-defined]
