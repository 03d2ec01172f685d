"""Which pipeline stages the modules of a graph are in, and on which ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gflow.errors import GraphTraceError

from ..context.location import here
from .module_config import stage_setting
from .modules import ModuleTable


@dataclass(frozen=True)
class ModuleStages:
    """by_name: the stages of modules, by their dotted names. ranks: of each stage."""

    by_name: dict[str, int]
    ranks: tuple[int, ...]

    def of(self, name: str) -> int | None:
        """The stage of a module: its own, or that of the closest one around it."""
        while name not in self.by_name:
            name, dot, _ = name.rpartition(".")
            if not dot:
                return None
        return self.by_name[name]


def stages_of(table: ModuleTable, world: int) -> ModuleStages | None:
    """The stages of a graph; None where there is one process, or no module is in a stage.

    Raises:
        GraphTraceError: stages are not numbered from 0, or not placed on one rank each.
    """
    if world == 1:
        return None
    by_name: dict[str, int] = {}
    placed: dict[int, int] = {}
    for module in table.modules:
        setting = stage_setting(module)
        if setting is None:
            continue
        stage, placement = setting
        name = table.names[id(module)]
        by_name[name] = stage
        rank = stage % world if placement is None else _rank(placement, name)
        if placed.setdefault(stage, rank) != rank:
            raise GraphTraceError(
                f"{here()}: {name} puts stage {stage} on rank {rank}, and another module on rank {placed[stage]}"
            )
    if not by_name:
        return None
    if sorted(placed) != [*range(len(placed))] or len(placed) % world:
        raise GraphTraceError(
            f"{here()}: modules are in the pipeline stages {sorted(placed)}; {world} ranks need stages that are "
            f"numbered from 0 on, {world} of them or a multiple (set_stage)"
        )
    return ModuleStages(by_name, tuple(placed[s] for s in range(len(placed))))


def _rank(placement: Any, name: str) -> int:
    ranks = getattr(placement, "ranks", None)
    if ranks is None or ranks.numel() != 1:
        raise GraphTraceError(
            f"{here()}: {name} is in a pipeline stage on {placement!r}, and a stage runs on one rank: give "
            "gflow.placement(kind, ranks=[rank]), or leave it out"
        )
    return int(ranks.item())
