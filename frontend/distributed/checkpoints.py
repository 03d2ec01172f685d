"""Sharded checkpoints of graphs: each rank writes its own shards, and any number of ranks can resume from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from gflow.runtime.distributed.pieces import ungathered
from gflow.runtime.stored.sharded import load_sharded, save_sharded
from gflow.tracing.data.global_tensors import cut, global_like, is_global


def save_checkpoint(graph: Any, path: str | os.PathLike[str]) -> None:
    """Write the state of a training run (`graph.state_dict()`) to a directory, with `torch.distributed.checkpoint`. All
    ranks must call it. Nothing is gathered: sharded tensors (`config.enable_zero`), and tensors on one rank (pipeline
    stages), are written by the ranks that hold them, and so are parts of DTensors. The write is atomic: if a process is
    killed at any time, either the previous or the new checkpoint is complete.

    Args:
        graph: a `gflow.nn.Graph`.
        path: a directory that all ranks can access.

    Raises:
        TypeError: a DTensor is partial, or its parts differ in size.
        OSError: it cannot be written.
    """
    with ungathered():
        tree = graph.state_dict()
    save_sharded(tree, Path(path))


def load_checkpoint(graph: Any, path: str | os.PathLike[str]) -> None:
    """Load a checkpoint of `save_checkpoint`, before the first call, on any number of ranks, or in one process without
    `torch.distributed`. Each rank reads whole tensors, and the first call shards them. The module may be wrapped in
    `DistributedDataParallel`, which adds `module.` to names, when saving, when loading, or both.

    Parameters that are DTensors, in either graph, take their parts of what is read.

    Raises:
        GraphError: the graph was called already, or the state does not fit it.
        ValueError: there is no complete checkpoint at `path`.
    """
    tree = load_sharded(Path(path))
    for name, root in graph._roots().items():
        if isinstance(tree.get(name), dict):
            found = tree[name] = _named_as_in(root, tree[name])
            for key, own in root.state_dict().items():
                if is_global(own) and key in found:
                    found[key] = _placed(own, found[key])
    for n, optimizer in enumerate(graph._checked().optimizers):
        states = tree.get(f"graph.optimizer.{n}", {}).get("state", {})
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for k, own in enumerate(parameters):
            for key, value in states.get(k, {}).items() if is_global(own) and own.dim() else ():
                states[k][key] = _placed(own, value)
    graph.load_state_dict(tree)


def _named_as_in(root: torch.nn.Module, entries: dict[str, Any]) -> dict[str, Any]:
    """Entries of a state dict by the names that a module has for them, but for `module.` of wrappers."""
    own = list(root.state_dict())
    named = {_unwrapped(key): key for key in own}
    found = {named.get(_unwrapped(key), key): value for key, value in entries.items()}
    unique = len(named) == len(own) and len(found) == len(entries)
    return found if unique else entries


def _unwrapped(key: str) -> str:
    return ".".join(part for part in key.split(".") if part != "module")


def _placed(own: Any, value: Any) -> Any:
    """A whole tensor of a checkpoint as this rank holds it, where a graph's own one is a DTensor."""
    whole = isinstance(value, torch.Tensor) and not is_global(value)
    return global_like(cut(value, own), own) if whole and value.shape == own.shape else value
