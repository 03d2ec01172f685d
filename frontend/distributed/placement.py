"""The ranks over which global tensors are distributed."""

from __future__ import annotations

from typing import Any

import torch

from gflow.errors import GraphError
from gflow.tracing.context.location import here


class Placement:
    """Ranks in an arrangement of one or more dimensions, over devices of one kind: a `DeviceMesh`.

    kind: "cpu" or "cuda".
    ranks: rank numbers, as nested lists with one level for each dimension.
    names: the names of the dimensions; default "axis0", "axis1", ….
    """

    def __init__(self, kind: str, ranks: Any, names: tuple[str, ...] | None = None) -> None:
        if kind not in ("cpu", "cuda"):
            raise GraphError(
                f"{here()}: the kind of a placement must be 'cpu' or 'cuda', found {kind!r}"
            )
        self.kind, self.ranks = kind, torch.as_tensor(ranks, dtype=torch.int)
        self.names = names
        self._mesh: Any = None

    @classmethod
    def all(cls, kind: str) -> Placement:
        """All ranks, in one dimension."""
        return cls(kind, torch.arange(torch.distributed.get_world_size()))

    @property
    def mesh(self) -> Any:
        """The `DeviceMesh`. It creates process groups, so all ranks must call it."""
        if self._mesh is None:
            # start-up: meshes need torch.distributed, which a program on one rank does without
            from torch.distributed.device_mesh import DeviceMesh

            self._mesh = DeviceMesh(self.kind, self.ranks, mesh_dim_names=self.names)
        return self._mesh

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement) or self.kind != other.kind:
            return False
        return torch.equal(self.ranks, other.ranks)

    def __hash__(self) -> int:
        return hash((self.kind, tuple(self.ranks.flatten().tolist())))

    def __repr__(self) -> str:
        return f"placement({self.kind!r}, ranks={self.ranks.tolist()})"
