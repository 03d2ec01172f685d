"""Global tensors: values that are sharded over a mesh, PyTorch's `DTensor`.

A graph traces them with their global shapes and binds this rank's shard; a `Layout` has the sharding. Nothing here
imports `torch.distributed.tensor` before a program has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from gflow.dialects.records import record
from gflow.errors import GraphInputError

#: attributes in the dictionary of a DTensor
OWN = frozenset({"_local_tensor", "_spec"})


@record
class Layout:
    """The sharding of a value over a mesh.

    Args:
        mesh: a `DeviceMesh`.
        placements: for each of its dimensions "S(dim)" (sharded), "B" (replicated) or "P(reduction)" (partial).
    """

    mesh: Any
    placements: tuple[str, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the mesh's dimensions."""
        return axes_of(self.mesh)

    def along(self, axes: Sequence[str]) -> tuple[str, ...]:
        """The placements along the axes of a larger mesh, which contains this one; "B" for the other axes."""
        own = dict(zip(self.axes, self.placements))
        return tuple(own.get(axis, "B") for axis in axes)

    def part(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a rank's shard of a value with this global shape."""
        found = [*shape]
        for n, text in enumerate(self.placements):
            if text.startswith("S("):
                found[int(text[2:-1])] //= self.mesh.size(n)
        return tuple(found)


def axes_of(mesh: Any) -> tuple[str, ...]:
    """The names of a mesh's dimensions; `axis0`, … if it has no names."""
    return tuple(mesh.mesh_dim_names or (f"axis{n}" for n in range(mesh.ndim)))


def is_global(value: object) -> bool:
    """Whether a value is a DTensor, or a parameter that holds one."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(value, loaded.DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a global tensor; other tensors themselves."""
    return tensor._local_tensor if is_global(tensor) else tensor  # type: ignore[attr-defined]


def layout_of(tensor: torch.Tensor, name: str, divided: int | None = None) -> Layout | None:
    """The layout of a global tensor; None for other tensors.

    Args:
        name: the tensor's name, for errors.
        divided: a dimension of the mesh along which `fully_shard` shards the tensor; the layout is the one without
            this sharding.

    Raises:
        GraphInputError: the placement is not supported, a dimension is not evenly divisible, or the shard is not
            contiguous.
    """
    if not is_global(tensor):
        return None
    mesh, placements = tensor.device_mesh, [*tensor.placements]  # type: ignore[attr-defined]
    if divided is not None:
        placements[divided] = _whole()
    texts = texts_of(placements, tensor.dim(), name)
    for n, text in enumerate(texts):
        if text.startswith("S("):
            d, ranks = int(text[2:-1]), mesh.size(n)
            if tensor.shape[d] % ranks:
                raise GraphInputError(
                    f"{name}: dimension {d} has {tensor.shape[d]} elements, which cannot be split evenly over "
                    f"{ranks} ranks along {axes_of(mesh)[n]!r}; pad it to a multiple, or use Replicate() there."
                )
    local = local_of(tensor)
    if not local.is_contiguous():
        raise GraphInputError(
            f"{name} is a DTensor whose local tensor is not contiguous; create it from a contiguous "
            "tensor."
        )
    return Layout(mesh, texts)


def _whole() -> Any:
    # imported here for start-up time
    from torch.distributed.tensor import Replicate

    return Replicate()


def is_divided(tensor: torch.Tensor, axis: int) -> bool:
    """Whether a global tensor is sharded in its first dimension along a dimension of the mesh, directly or after a
    sharding along later dimensions of the mesh (`_StridedShard`)."""
    placement = tensor.placements[axis]  # type: ignore[attr-defined]
    return type(placement).__name__ in ("Shard", "_StridedShard") and placement.dim == 0


def texts_of(placements: Sequence[Any], rank: int, name: str) -> tuple[str, ...]:
    """PyTorch's placements in the notation of `Layout`.

    Args:
        rank: the number of dimensions of the tensor.
        name: the tensor's name, for errors.

    Raises:
        GraphInputError: a placement is not supported.
    """
    found = []
    for p in placements:
        kind = type(p).__name__
        if kind == "Shard":
            found.append(f"S({p.dim % rank if rank else p.dim})")
        elif kind == "Replicate":
            found.append("B")
        elif kind == "Partial" and p.reduce_op in ("sum", "max", "min", "avg"):
            found.append(f"P({p.reduce_op})")
        else:
            raise GraphInputError(
                f"{name} has the placement {p}, which graphs do not support; expected Shard(dim), Replicate() "
                "or Partial() with sum, avg, max or min. Call .redistribute() first."
            )
    return tuple(found)


def placements_of(texts: Sequence[str]) -> list[Any]:
    """Placements in the notation of `Layout` as PyTorch's."""
    # start-up: DTensor is loaded by the first program that has global tensors
    from torch.distributed.tensor import Partial, Replicate, Shard

    made: list[Any] = []
    for text in texts:
        if text.startswith("S("):
            made.append(Shard(int(text[2:-1])))
        else:
            made.append(Partial(text[2:-1]) if text.startswith("P(") else Replicate())
    return made


def global_tensor(
    local: torch.Tensor, mesh: Any, texts: Sequence[str], shape: Sequence[int]
) -> torch.Tensor:
    """A global tensor with this rank's shard `local`. shape: the global shape."""
    # start-up: DTensor is loaded by the first program that has global tensors
    from torch.distributed.tensor import DTensor

    strides = torch.empty(tuple(shape), device="meta").stride()
    found: torch.Tensor = DTensor.from_local(
        local, mesh, placements_of(texts), run_check=False, shape=torch.Size(shape), stride=strides
    )
    return found


def global_like(local: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A global tensor with this rank's shard `local`, and the shape and placements of `other`."""
    # start-up: DTensor is loaded by the first program that has global tensors
    from torch.distributed.tensor import DTensor

    strides = torch.empty(other.shape, device="meta").stride()
    mesh, placements = other.device_mesh, other.placements  # type: ignore[attr-defined]
    found: torch.Tensor = DTensor.from_local(
        local, mesh, placements, run_check=False, shape=other.shape, stride=strides
    )
    return found


def cut(whole: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a global value, by the placements of the global tensor `other`, in new memory."""
    mesh = other.device_mesh  # type: ignore[attr-defined]
    place, cuts = mesh.get_coordinate(), []
    for n, placement in enumerate(other.placements):  # type: ignore[attr-defined]
        kind = type(placement).__name__
        if kind == "Shard":
            cuts.append((placement.dim, n))
    cuts += [
        (0, n) for n in range(mesh.ndim) if _is_strided(other, n)
    ]  # of the parts that others cut
    for dim, n in cuts:
        whole = whole.chunk(mesh.size(n), dim)[place[n]]
    return whole.clone(memory_format=torch.contiguous_format)


def _is_strided(tensor: torch.Tensor, axis: int) -> bool:
    return type(tensor.placements[axis]).__name__ == "_StridedShard"  # type: ignore[attr-defined]


def common_mesh(meshes: Iterable[Any], where: str) -> Any | None:
    """The mesh that contains all the others; None if there are no meshes.

    Raises:
        GraphInputError: no mesh contains all the others.
    """
    found: Any | None = None
    known = [*{id(mesh): mesh for mesh in meshes}.values()]
    for mesh in known:
        if found is None or mesh.ndim > found.ndim:
            found = mesh
    for mesh in known:
        if not _part_of(mesh, found):
            raise GraphInputError(
                f"{where}: tensors over different meshes, {found} and {mesh}; use one mesh with named dimensions, "
                "and parts of it (mesh['tp'])."
            )
    return found


def _part_of(mesh: Any, whole: Any) -> bool:
    """Whether a mesh is equal to another, or is this rank's submesh of it along some of its dimensions."""
    if mesh.ndim == whole.ndim:
        return bool(mesh == whole)
    names = axes_of(mesh)
    if names != tuple(n for n in whole.mesh_dim_names or () if n in names):
        return False
    return bool(torch.equal(whole[names].mesh, mesh.mesh))
