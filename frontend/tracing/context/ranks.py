"""The default process group and its size."""

from __future__ import annotations

import torch.distributed as dist


def world_size() -> int:
    """The number of ranks of the default process group; 1 without one."""
    if not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size()


def world_group() -> str:
    """The name of the default process group, which must exist."""
    name: str = dist.group.WORLD.group_name  # type: ignore[union-attr]
    return name
