"""Process groups for the axes of a program's mesh.

Code that sets up a mesh (`DeviceMesh`, a data-parallel module) calls `use` to state the group of an axis for programs
that are loaded afterwards. A program keeps its groups, since another mesh may have equal axes over other ranks. For a
program from a file, the axes are those of a `DeviceMesh` over all ranks, which is created when it is first needed.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary, ref

import torch.distributed as dist

from gflow.dialects.program import Ranks

#: process groups by (axes and sizes of a mesh, axes of a group). They are weak references, so that
#: `destroy_process_group()` can end their threads, which must not outlive the interpreter
_used: WeakValueDictionary[tuple[tuple[tuple[str, int], ...], tuple[str, ...]], Any] = (
    WeakValueDictionary()
)


class GroupError(RuntimeError):
    """The ranks of a program are not those of this process's groups."""


def use(mesh: dict[str, int], axes: tuple[str, ...], group: Any) -> None:
    """Use `group` for the ranks along these axes, in programs with this mesh that are loaded from now on.

    mesh: the sizes by axis.
    """
    _used[tuple(mesh.items()), axes] = group


def along(mesh: dict[str, int], axis: str) -> Any:
    """The process group of this rank along an axis of a mesh over all ranks.

    If it does not exist, it is created, in which all ranks must take part.

    Args:
        mesh: the sizes by axis; ranks are consecutive along the last axis.
        axis: the axis.

    Raises:
        GroupError: the world has another number of ranks.
    """
    return _along(mesh, (axis,))


def describe_ranks(ranks: Ranks) -> str:
    """A description of ranks for messages: "along dp", "of group 0"."""
    return f"along {', '.join(ranks.axes)}" if ranks.axes else f"of group {ranks.group}"


class Groups:
    """The process groups of one program. mesh: the sizes by axis."""

    def __init__(self, mesh: dict[str, int]) -> None:
        self.mesh = mesh
        sizes = tuple(mesh.items())
        self._own = {axes: ref(group) for (known, axes), group in _used.items() if known == sizes}

    def of(self, ranks: Ranks) -> Any:
        """The process group of a collective.

        Raises:
            GroupError: torch.distributed is not set up, or is set up for another number of ranks.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise GroupError(
                f"the program works with {ranks.count} ranks, and torch.distributed is not set up: call "
                "torch.distributed.init_process_group() first, in processes started by torchrun"
            )
        found = _named(ranks.group) if ranks.group else self._along(ranks.axes)
        if dist.get_world_size(found) != ranks.count:
            raise GroupError(
                f"the program works with {ranks.count} ranks along {', '.join(ranks.axes) or ranks.group}, and the "
                f"process group has {dist.get_world_size(found)}"
            )
        return found

    def _along(self, axes: tuple[str, ...]) -> Any:
        own = self._own.get(axes)
        group = None if own is None else _alive(own())
        return _along(self.mesh, axes) if group is None else group


def is_alive(group: Any) -> bool:
    """Whether a process group belongs to the current world, and was not destroyed."""
    try:
        return dist.get_rank(group) >= 0
    except ValueError:  # PyTorch raises it for a group that was destroyed
        return False


def _alive(group: Any) -> Any:
    gone = isinstance(group, dist.ProcessGroup) and not is_alive(group)
    return None if gone else group


def _named(name: str) -> Any:
    try:
        return dist.distributed_c10d._resolve_process_group(dist.distributed_c10d.GroupName(name))
    except (ValueError, RuntimeError) as error:
        raise GroupError(f"there is no process group {name!r} in this process: {error}") from None


def _along(mesh: dict[str, int], axes: tuple[str, ...]) -> Any:
    key = tuple(mesh.items()), axes
    group = _alive(_used.get(key))
    if group is None and not _make(mesh, axes):
        told = ", ".join(f"{axis} {size}" for axis, size in mesh.items())
        raise GroupError(
            f"the program is for a mesh of {told}, and the world has {dist.get_world_size()} ranks; start as many "
            "processes as the mesh has ranks"
        )
    return _used[key] if group is None else group


def _make(mesh: dict[str, int], axes: tuple[str, ...]) -> bool:
    """Create the groups of a `DeviceMesh` over all ranks."""
    count = 1
    for size in mesh.values():
        count *= size
    if count != dist.get_world_size():
        return False
    if set(axes) == set(mesh) and tuple(mesh) == axes:
        use(mesh, axes, dist.group.WORLD)
        return True
    # start-up time: only programs with named axes need meshes
    from torch.distributed.device_mesh import init_device_mesh

    kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
    made = init_device_mesh(kind, tuple(mesh.values()), mesh_dim_names=tuple(mesh))
    for axis in mesh:
        use(mesh, (axis,), made[axis].get_group())
    if len(axes) > 1:
        use(mesh, axes, made[axes]._flatten().get_group())
    return True
