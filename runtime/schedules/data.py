"""PyTorch's learning rate schedulers as data: by class name and state, without pickle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler

from . import lr_scheduler as own
from . import stepped_schedulers as stepped

#: schedulers with functions as arguments, which state dicts do not contain
_WITH_FUNCTIONS = (lr_scheduler.LambdaLR, lr_scheduler.MultiplicativeLR)


def describe(scheduler: Any) -> dict[str, Any] | None:
    """The class names of a scheduler and of the schedulers in it.

    None if the scheduler is neither PyTorch's nor gflow's, or depends on functions or metrics.
    """
    kind = type(scheduler)
    ours = kind.__module__ in (own.__name__, stepped.__name__)
    if _found(kind.__name__, ours) is not kind or isinstance(
        scheduler, (*_WITH_FUNCTIONS, lr_scheduler.ReduceLROnPlateau)
    ):
        return None
    if getattr(scheduler, "_scale_fn_custom", None) is not None:  # CyclicLR
        return None
    inner = [describe(s) for s in getattr(scheduler, "_schedulers", ())]
    described = {"class": kind.__name__, "inner": inner}
    if ours:
        described["own"] = True
    return None if None in inner else described


def _found(name: str, of_gflow: bool) -> Any:
    """The class of a scheduler: PyTorch's, or gflow's own."""
    if not of_gflow:
        return getattr(lr_scheduler, name, None)
    return getattr(own, name, None) or getattr(stepped, name, None)


def restore(described: dict[str, Any], state: dict[str, Any], groups: list[dict[str, Any]]) -> Any:
    """Build a scheduler with its state, which sets the learning rates in `groups`.

    Raises:
        ValueError: PyTorch has no such scheduler.
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
    optimizer.param_groups = groups
    # schedulers check that the optimizer's step was called before theirs; here the program does the step
    vars(optimizer)["step"] = _step
    vars(optimizer)["_opt_called"] = True
    return _restore(described, state, optimizer)


def _step() -> None:
    """Does nothing: the optimizer's step is part of the program."""


_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _restore(described: dict[str, Any], state: dict[str, Any], optimizer: Any) -> Any:
    kind = _found(described["class"], described.get("own", False))
    if not (isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler)):
        raise ValueError(f"PyTorch has no learning rate scheduler {described['class']!r}")
    scheduler: Any = kind.__new__(kind)
    scheduler.optimizer = optimizer
    if isinstance(scheduler, lr_scheduler.CyclicLR):
        scheduler._scale_fn_custom = None
    states: Sequence[dict[str, Any]] = state.get("_schedulers", ())
    inner = described["inner"]
    if inner or isinstance(scheduler, own.WarmupLR):
        scheduler._schedulers = [_restore(d, s, optimizer) for d, s in zip(inner, states)]
    scheduler.load_state_dict(dict(state))
    return scheduler
