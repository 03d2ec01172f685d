"""Sharded checkpoints of graphs: each rank writes its own shards, and any number of ranks can resume from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from gflow.errors import GraphError
from gflow.runtime.distributed.pieces import ungathered
from gflow.runtime.stored.sharded import load_sharded, save_sharded
from gflow.tracing.context.location import here
from gflow.tracing.data.global_tensors import is_global


def save_checkpoint(graph: Any, path: str | os.PathLike[str]) -> None:
    """Write the state of a training run (`graph.state_dict()`) to a directory, with `torch.distributed.checkpoint`. All
    ranks must call it. Nothing is gathered: sharded tensors (`config.enable_zero`), and tensors on one rank (pipeline
    stages), are written by the ranks that hold them. The write is atomic: if a process is killed at any time, either
    the previous or the new checkpoint is complete.

    Args:
        graph: a `gflow.nn.Graph`.
        path: a directory that all ranks can access.

    Raises:
        GraphError: the graph has DTensors.
        OSError: it cannot be written.
    """
    with ungathered():
        tree = graph.state_dict()
    _check(graph)
    save_sharded(tree, Path(path))


def load_checkpoint(graph: Any, path: str | os.PathLike[str]) -> None:
    """Load a checkpoint of `save_checkpoint`, before the first call, on any number of ranks, or in one process without
    `torch.distributed`. Each rank reads whole tensors, and the first call shards them. The module may be wrapped in
    `DistributedDataParallel`, which adds `module.` to names, when saving, when loading, or both.

    Raises:
        GraphError: the graph was called already, has DTensors, or the state does not fit it.
        ValueError: there is no complete checkpoint at `path`.
    """
    _check(graph)
    tree = load_sharded(Path(path))
    for name, root in graph._roots().items():
        if isinstance(tree.get(name), dict):
            tree[name] = _named_as_in(root, tree[name])
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


def _check(graph: Any) -> None:
    roots: dict[str, torch.nn.Module] = graph._roots()
    for name, root in roots.items():
        for key, p in root.named_parameters():
            if is_global(p):
                raise GraphError(
                    f"{here()}: {name}.{key} is a DTensor, which this checkpoint format does not support. Save the "
                    "state_dict() of modules and optimizers with torch.distributed.checkpoint instead"
                )
