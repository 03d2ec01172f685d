"""Which values a backward recomputes, and which the forward saves for it."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.partitioners import min_cut_rematerialization_partition, must_recompute
from torch.utils.checkpoint import CheckpointPolicy


def partition(
    joint: torch.fx.GraphModule, inputs: Any, **more: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """AOTAutograd's partition of a joint graph into forward and backward, in which results of random ops are saved.

    A checkpointed module recomputes its forward in the backward, with the same random numbers. AOTAutograd would save
    and restore the generator's state around each random op, which a program cannot do. The results of random ops (a
    dropout's mask) are small, so the forward saves them instead.

    An argument that the forward updates in place may be saved for the backward, which would then read the new value.
    The forward saves a copy instead.
    """
    for node in joint.graph.nodes:
        if must_recompute(node) and _draws(node):
            node.meta.pop("recompute")
            _keep(node)
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **more)
    _copy_updated(forward, more["num_fwd_outputs"])
    return forward, backward


def _copy_updated(forward: torch.fx.GraphModule, results: int) -> None:
    """Make a forward save copies of the tensors that it updates. results: how many of its outputs come before the
    saved tensors."""
    graph = forward.graph
    (output,) = graph.find_nodes(op="output")
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    updates = dict.fromkeys(_updated_outside(forward), output)
    updates |= {node.args[0]: node for node in copies}
    given = list(output.args[0])
    for at, kept in enumerate(given[results:], results):
        update = updates.get(_base(kept)) if isinstance(kept, torch.fx.Node) else None
        if update is None:
            continue
        with graph.inserting_before(update):
            given[at] = graph.call_function(torch.ops.aten.clone.default, (kept,))
        given[at].meta.update(kept.meta)
        with kept.meta["val"].fake_mode:  # a fake tensor with its own storage
            given[at].meta["val"] = torch.empty_like(kept.meta["val"])
    if given != list(output.args[0]):
        output.args = (tuple(given),)
        forward.recompile()


def _updated_outside(forward: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The arguments that AOTAutograd updates after a forward, from values that the forward returns."""
    (output,) = forward.graph.find_nodes(op="output")
    taken = [
        d.mutated_input
        for d in output.meta.get("desc", ())
        if isinstance(d, InputMutationAOTOutput)
    ]
    return [n for n in forward.graph.find_nodes(op="placeholder") if n.meta.get("desc") in taken]


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """The node that a node is a view of, through any number of views; the node itself if it is no view."""
    while node.op == "call_function":
        parts = node.target is operator.getitem
        if not parts and not getattr(node.target, "is_view", False):
            break
        base = node.args[0]
        if not isinstance(base, torch.fx.Node):
            break
        node = base
    return node


def _draws(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _keep(node: torch.fx.Node) -> None:
    """Mark the tensors that a node returns as saved."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        return
    for user in node.users:
        if user.target is operator.getitem:
            _keep(user)
