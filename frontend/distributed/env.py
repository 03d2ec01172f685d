"""The rank of this process and the number of ranks: OneFlow's names on top of `torch.distributed`."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist


def _set_up() -> bool:
    return dist.is_available() and dist.is_initialized()


def get_rank() -> int:
    """The rank of this process; 0 without a process group."""
    return dist.get_rank() if _set_up() else 0


def get_world_size() -> int:
    """The number of processes; 1 without a process group."""
    return dist.get_world_size() if _set_up() else 1


def get_local_rank() -> int:
    """The rank of this process on its machine, as set by `torchrun`; 0 without it."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_node_size() -> int:
    """The number of machines, as set by `torchrun`; 1 without it."""
    return max(
        1, get_world_size() // int(os.environ.get("LOCAL_WORLD_SIZE", str(get_world_size())))
    )


def __getattr__(name: str) -> Any:
    # start-up: loaded where a name is missing
    from gflow.oneflow.refused import ENV

    if name in ENV:
        raise AttributeError(f"gflow.env.{name} {ENV[name]}")
    raise AttributeError(f"gflow.env has no {name!r}")
