"""Process groups of programs: over which ranks, where meshes have equal axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

import gflow as flow
from gflow.dialects.program import Ranks
from gflow.runtime.distributed.groups import Groups

Tensor = torch.Tensor


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """Rank 0 of four, which sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class _Sum(flow.nn.Graph):
    def build(self, x: Tensor) -> Tensor:
        return x.sum(0)


class _Sums(flow.nn.Graph):
    def build(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.sum(0), b.sum(0)


def _groups(graph: Any) -> list[Groups]:
    return [plan.compiled.run._groups for plan in graph._state.plans]


def _ranks(groups: Groups, axis: str) -> list[int]:
    return dist.get_process_group_ranks(groups.of(Ranks((axis,), "", 2)))


@pytest.mark.usefixtures("four_ranks")
def test_meshes_with_equal_axes_keep_their_ranks() -> None:
    names, x, graph = ("dp", "tp"), torch.ones(4, 4), _Sum()
    rows = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=names)
    columns = DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=names)
    for mesh in (rows, columns):
        graph(distribute_tensor(x, mesh, [Shard(0), Shard(1)]))
    last, first = _groups(graph)
    found = [_ranks(g, axis) for g in (first, last) for axis in names]
    assert sorted(found) == [[0, 1], [0, 1], [0, 2], [0, 2]]
    assert _ranks(first, "tp") != _ranks(last, "tp")


@pytest.mark.usefixtures("four_ranks")
def test_a_mesh_of_other_ranks_is_no_part() -> None:
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    other = DeviceMesh("cpu", [0, 3], mesh_dim_names=("tp",))
    a = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)])
    b = distribute_tensor(torch.ones(4, 4), other, [Shard(1)])
    graph = _Sums()
    with pytest.raises(flow.GraphInputError, match="different meshes"):
        graph(a, b)
    part = distribute_tensor(torch.ones(4, 4), mesh["tp"], [Shard(1)])
    graph(a, part)


@pytest.mark.usefixtures("four_ranks")
def test_ranks_in_another_order_are_refused() -> None:
    mesh = DeviceMesh("cpu", [3, 2, 1, 0], mesh_dim_names=("tp",))
    with pytest.raises(flow.GraphInputError, match="ascending order"):
        _Sum()(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
