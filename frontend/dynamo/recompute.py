"""What a backward computes again, and what the forward keeps for it."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition, must_recompute
from torch.utils.checkpoint import CheckpointPolicy


def partition(
    joint: torch.fx.GraphModule, inputs: Any, **more: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """AOTAutograd's division of a joint graph into forward and backward, with random draws kept.

    A checkpointed module computes its forward again in the backward, with the same random numbers.
    AOTAutograd would save and restore the generator's state round each draw, which no program can
    hold; the mask of a dropout is small, so the forward keeps what it drew instead.
    """
    for node in joint.graph.nodes:
        if must_recompute(node) and _draws(node):
            node.meta.pop("recompute")
            _keep(node)
    return min_cut_rematerialization_partition(joint, inputs, **more)


def _draws(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _keep(node: torch.fx.Node) -> None:
    """Mark the tensors that a node gives."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        return
    for user in node.users:
        if user.target is operator.getitem:
            _keep(user)
