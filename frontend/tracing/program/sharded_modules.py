"""Modules of `fully_shard` (FSDP2) in a trace: each rank has a shard of every parameter, and hooks gather it.

A graph treats them as ZeRO stage 3: their hooks are off while it is traced, parameters have their global shapes, and
`gflow-zero-3` gathers them where they are used. Their gradients are averaged as those of a data-parallel module.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gflow.dialects.records import record
from gflow.errors import GraphTraceError


@record
class ShardedModule:
    """A module of `fully_shard`: its FSDP state, and the groups of parameters that are gathered together."""

    module: torch.nn.Module
    state: Any
    groups: tuple[Any, ...]

    @property
    def parameters(self) -> Iterator[tuple[torch.Tensor, Any]]:
        """The parameters that it shards, each with its process group."""
        for group in self.groups:
            for p in group.fsdp_params:
                yield p.sharded_param, group.mesh_info.shard_process_group


def sharded_modules(modules: Iterable[torch.nn.Module]) -> list[ShardedModule]:
    """The modules that `fully_shard` shards over several ranks."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return []
    found = []
    for module in modules:
        if not isinstance(module, fsdp.FSDPModule):
            continue
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:  # before PyTorch 2.12
            groups = [state._fsdp_param_group]
        made = ShardedModule(module, state, tuple(g for g in groups if g is not None))
        if any(_ranks(g) > 1 for g in made.groups):
            found.append(made)
    return found


def take_apart(modules: Iterable[torch.nn.Module]) -> None:
    """Free the gathered parameters that an eager call has kept."""
    for found in sharded_modules(modules):
        found.module.reshard()  # type: ignore[operator]


def check(found: ShardedModule, name: str, where: str, training: bool) -> None:
    """Check a module.

    Args:
        training: whether the graph itself computes and uses gradients.

    Raises:
        GraphTraceError: a graph would lose a part of its behaviour.
    """
    problem = _problem(found, training)
    if problem:
        raise GraphTraceError(f"{where}: {name or 'module'}, a module of fully_shard(), {problem}")


def _problem(found: ShardedModule, training: bool) -> str:
    policy = found.state._mp_policy
    if any(getattr(policy, k, None) for k in ("param_dtype", "reduce_dtype", "output_dtype")):
        return "has mp_policy=…: use config.enable_amp() instead."
    for group in found.groups:
        mesh = group.mesh_info.mesh
        if mesh.ndim > 1:
            return (
                f"is over a mesh of {mesh.ndim} dimensions {mesh.mesh_dim_names or ''}, and a graph divides parameters "
                "among the ranks of one: give it a mesh of one dimension (mesh['dp'])."
            )
        if getattr(group.offload_policy, "pin_memory", None) is not None:
            return "keeps parameters on the CPU (offload_policy=…), where a graph does not look."
        if group._all_reduce_hook is not None or group.gradient_divide_factor is not None:
            return (
                "has a hook or factor of its own for gradients: a graph takes the mean over ranks."
            )
        given = (group._all_gather_comm, group._reduce_scatter_comm)
        if not all(type(comm).__module__.startswith("torch.") for comm in given):
            return (
                "has an all-gather or reduce-scatter of its own (set_custom_all_gather, set_custom_reduce_scatter), "
                "which a graph does not run: leave it out."
            )
        if training and not group.reduce_grads:
            return (
                "is without synchronization of gradients (set_requires_gradient_sync(False)): a call of a graph makes "
                "a whole step. Use config.set_gradient_accumulation_steps() instead."
            )
        for p in group.fsdp_params:
            if p.fsdp_placement.dim != 0 or p.sharded_param.dim() == 0:
                return "divides a parameter along another dimension than its first, which a graph does not know."
            size, ranks = p._orig_size[0], _ranks(group)
            if size % ranks:
                return (
                    f"divides a parameter of shape {list(p._orig_size)}, whose first dimension {ranks} ranks do not "
                    "share evenly: pad it to a multiple, or leave the module that has it out of fully_shard() "
                    "(ignored_params=…)."
                )
    if not training and torch.is_grad_enabled() and found.module.training:
        return (
            "is called in a graph without an optimizer, whose gradients leave it unaveraged: add the optimizer to the "
            "graph (add_optimizer), or call it under torch.no_grad()."
        )
    return ""


def gathered_once(found: Iterable[ShardedModule]) -> bool:
    """Whether all modules keep parameters gathered from the forward to the backward."""
    found = list(found)
    groups = [g for f in found for g in f.groups]
    told = all(not f.state._auto_reshard_after_forward for f in found)
    return bool(groups) and told and all(g.post_forward_mesh_info is None for g in groups)


@contextlib.contextmanager
def unhooked(found: Iterable[ShardedModule]) -> Iterator[None]:
    """While active, the modules' hooks are off."""
    kept: list[tuple[Any, list[tuple[Any, Any]]]] = []
    try:
        for f in found:
            ids = {
                handle.id
                for handle in (f.state._pre_forward_hook_handle, f.state._post_forward_hook_handle)
            }
            for hooks in (f.module._forward_pre_hooks, f.module._forward_hooks):
                kept.append((hooks, [*hooks.items()]))
                for key in ids & {*hooks}:
                    del hooks[key]
        yield
    finally:
        for hooks, items in kept:
            hooks.clear()
            hooks.update(items)


def _ranks(group: Any) -> int:
    return int(getattr(group.mesh_info, "shard_mesh_size", 1))
