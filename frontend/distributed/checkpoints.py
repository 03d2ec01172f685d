"""Sharded checkpoints of graphs: each rank writes what it has, any number of ranks goes on from it."""

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
    """Write all that a training run goes on from (`graph.state_dict()`) to a directory, by
    `torch.distributed.checkpoint`. All ranks call it together. Nothing is gathered: what lies in pieces
    (`config.enable_zero`), or on one rank (pipeline stages), is written by the ranks that have it. Killed at any
    moment, the checkpoint before this or the new one is whole.

    Args:
        graph: a `gflow.nn.Graph`.
        path: a directory that all ranks see.

    Raises:
        GraphError: the graph has DTensors.
        OSError: it cannot be written.
    """
    with ungathered():
        tree = graph.state_dict()
    _check(graph)
    save_sharded(tree, Path(path))


def load_checkpoint(graph: Any, path: str | os.PathLike[str]) -> None:
    """Take what `save_checkpoint` has written, before the first call, on any number of ranks, or in one process without
    `torch.distributed`. Each rank reads whole tensors; the first call takes them apart. It does not matter whether the
    module is a `DistributedDataParallel` one, which adds `module.` to names, here or there.

    Raises:
        GraphError: the graph was called already, has DTensors, or the state does not fit it.
        ValueError: there is no whole checkpoint at `path`.
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
                    f"{here()}: {name}.{key} is a DTensor, which these checkpoints do not know: save the modules' and "
                    "optimizers' state_dict() by torch.distributed.checkpoint itself, which does"
                )
