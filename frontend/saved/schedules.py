"""Learning rate schedules of a graph's optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler


def schedule_problem(optimizer: torch.optim.Optimizer, schedule: Any) -> str | None:
    """Why a graph cannot step `schedule` after each update of `optimizer`; None if it can."""
    if not callable(getattr(schedule, "step", None)):
        return (
            "add_optimizer() takes a learning rate scheduler as lr_sch, "
            f"got {type(schedule).__name__}"
        )
    for part in _parts(schedule):
        if isinstance(part, lr_scheduler.ReduceLROnPlateau):
            return (
                "ReduceLROnPlateau.step() needs a metric, which a graph that steps schedules by "
                "itself does not have. Leave lr_sch out and call scheduler.step(metric) after the "
                "graph: it takes the new learning rate at its next call and is not compiled again."
            )
        owner = getattr(part, "optimizer", optimizer)
        if owner is not optimizer:
            return (
                f"lr_sch is a {type(part).__name__} of another optimizer "
                f"({type(owner).__name__}); make it with the optimizer that is added."
            )
    return None


def learning_rates(optimizers: Sequence[torch.optim.Optimizer]) -> list[list[float]]:
    """For each optimizer, the learning rates of its parameter groups in the next step."""
    return [[float(group["lr"]) for group in o.param_groups] for o in optimizers]


def _parts(schedule: Any) -> list[Any]:
    """A schedule, and the schedules that it contains."""
    inner = getattr(schedule, "_schedulers", ())
    return [schedule, *(part for s in inner for part in _parts(s))]
