"""The pipeline stages of a graph's modules, and their ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from gflow.dialects.records import record
from gflow.errors import GraphTraceError
from gflow.runtime.distributed.groups import along, use

from ..context.location import here
from ..context.ranks import world_group, world_size
from .module_config import stage_setting
from .modules import ModuleTable

#: the axes of the mesh: along a pipeline, and along ranks with the same stages
PIPELINE, COPIES = "pp", "dp"


@record
class PipelineMesh:
    """The ranks, arranged in pipelines that each work on a part of the batch.

    Args:
        axes: their number along "pp", and along "dp" if there are several pipelines; the last axis is that of adjacent
            ranks.
        group: the name of the process group of this rank's pipeline.
        copies: the name of the process group of the ranks with this rank's stages; None with one pipeline.
    """

    axes: Mapping[str, int]
    group: str
    copies: str | None = None

    @property
    def length(self) -> int:
        """The number of ranks of a pipeline."""
        return self.axes[PIPELINE]

    def ranks(self, place: int) -> list[int]:
        """The global ranks with one position in their pipelines."""
        several = self.axes.get(COPIES, 1)
        if [*self.axes][-1] == COPIES:
            return [place * several + n for n in range(several)]
        return [n * self.length + place for n in range(several)]


@record
class ModuleStages:
    """The stages of modules.

    Args:
        by_name: stages by the dotted names of modules.
        ranks: the position in a pipeline of each stage.
    """

    by_name: dict[str, int]
    ranks: tuple[int, ...]
    mesh: PipelineMesh

    def of(self, name: str) -> int | None:
        """The stage of a module: its own, or that of the innermost module with a stage that contains it."""
        while name not in self.by_name:
            name, dot, _ = name.rpartition(".")
            if not dot:
                return None
        return self.by_name[name]


def has_stages(table: ModuleTable) -> bool:
    """Whether modules are in pipeline stages that run in several processes."""
    return world_size() > 1 and any(stage_setting(m) is not None for m in table.modules)


def stages_of(table: ModuleTable, copies: Mapping[str, Any]) -> ModuleStages:
    """The stages of a graph that has some. All ranks must call this together.

    Args:
        copies: the process groups of data-parallel modules, by name.

    Raises:
        GraphTraceError: stages are not numbered from 0, or not placed on ranks with one position each; or the groups
            of data-parallel modules do not form pipelines.
    """
    settings = {table.names[id(m)]: s for m in table.modules if (s := stage_setting(m)) is not None}
    mesh = _mesh(copies)
    by_name: dict[str, int] = {}
    placed: dict[int, int] = {}
    for name, (stage, placement) in settings.items():
        by_name[name] = stage
        rank = stage % mesh.length if placement is None else _place(placement, name, mesh)
        if placed.setdefault(stage, rank) != rank:
            raise GraphTraceError(
                f"{here()}: {name} puts stage {stage} on rank {_listed(mesh, rank)}, and another module on rank "
                f"{_listed(mesh, placed[stage])}"
            )
    if sorted(placed) != [*range(len(placed))] or len(placed) % mesh.length:
        told = f", of which {mesh.axes[COPIES]} have a copy of a stage each," if mesh.copies else ""
        raise GraphTraceError(
            f"{here()}: modules are in the pipeline stages {sorted(placed)}; {world_size()} ranks{told} need stages "
            f"that are numbered from 0 on, {mesh.length} of them or a multiple (set_stage)"
        )
    return ModuleStages(by_name, tuple(placed[s] for s in range(len(placed))), mesh)


def _mesh(copies: Mapping[str, Any]) -> PipelineMesh:
    world = world_size()
    if not copies:
        return PipelineMesh({PIPELINE: world}, world_group())
    if len(copies) > 1:
        raise GraphTraceError(
            f"{here()}: modules are in pipeline stages (set_stage), and in DistributedDataParallel modules of "
            f"{len(copies)} process groups: the ranks with the same stages are one group. Give all the same one."
        )
    ((name, group),) = copies.items()
    ranks, several = dist.get_process_group_ranks(group), dist.get_world_size(group)
    length, first = world // several, min(ranks)
    if length == 1 or world % several:
        raise GraphTraceError(
            f"{here()}: modules are in pipeline stages (set_stage), and in a DistributedDataParallel module over "
            f"{several} of {world} ranks, which leaves no pipelines of equal length: give it the group of the ranks "
            'with the same stages, process_group=init_device_mesh("cpu", (stages, copies), '
            'mesh_dim_names=("pp", "dp"))["dp"].get_group().'
        )
    if ranks == [*range(first, first + several)] and first % several == 0:
        axes = {PIPELINE: length, COPIES: several}
    elif ranks == [*range(first, world, length)] and first < length:
        axes = {COPIES: several, PIPELINE: length}
    else:
        raise GraphTraceError(
            f"{here()}: modules are in pipeline stages (set_stage), and ranks {ranks} in one DistributedDataParallel "
            f"module. The ranks with the same stages are {several} neighbours, or {several} at distances of {length}: "
            "those along an axis of init_device_mesh."
        )
    pipeline = along(axes, PIPELINE)
    use(axes, (COPIES,), group)
    return PipelineMesh(axes, pipeline.group_name, name)


def _place(placement: Any, name: str, mesh: PipelineMesh) -> int:
    ranks = getattr(placement, "ranks", None)
    found = [] if ranks is None else sorted(ranks.flatten().tolist())
    for place in range(mesh.length):
        if mesh.ranks(place) == found:
            return place
    each = " or ".join(str(mesh.ranks(place)) for place in range(min(mesh.length, 3)))
    raise GraphTraceError(
        f"{here()}: {name} is in a pipeline stage on {placement!r}, and a stage runs on "
        f"{'the ranks that have copies of it' if mesh.copies else 'one rank'}: give gflow.placement(kind, ranks) with "
        f"ranks of {each}{' and so on' if mesh.length > 3 else ''}, or leave it out"
    )


def _listed(mesh: PipelineMesh, place: int) -> str:
    return ", ".join(map(str, mesh.ranks(place)))
