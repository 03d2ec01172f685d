"""`lr_scale`: a factor of a parameter group's learning rate, as in OneFlow's graphs.

PyTorch's optimizers do not read it; timm's schedulers multiply it into `lr` themselves. A graph multiplies by it where
nothing else does.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler

from gflow.errors import GraphError, GraphTraceError

LR_SCALE = "lr_scale"


def rate_scheduler(optimizer: torch.optim.Optimizer) -> Any:
    """The scheduler of timm that sets the learning rates of an optimizer, including their factors; None if there is
    none.

    Raises:
        GraphError: gc.freeze() hides which scheduler has set them.
    """
    module = sys.modules.get("timm.scheduler.scheduler")
    if module is None:
        return None
    found = _holders(optimizer, (module.Scheduler,))
    known = next((s for s in found if getattr(s, "param_group_field", "lr") == "lr"), None)
    if known is None and gc.get_freeze_count() and _may_be_scheduled(optimizer):
        raise GraphError(
            f"a scheduler has set the learning rates of {type(optimizer).__name__}, whose groups have the key "
            "'lr_scale', and which one cannot be told: gc.freeze() hides objects from gc.get_objects(). timm's "
            "schedulers multiply by lr_scale, the graph must not do so again. Call gc.unfreeze() before the graph's "
            "first call, and gc.freeze() after it."
        )
    return known


def _may_be_scheduled(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a scheduler has been made for these groups that is none of PyTorch's that can be found."""
    scheduled = any("initial_lr" in group for group in optimizer.param_groups)
    return scheduled and not _holders(
        optimizer, (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau)
    )


def check_changed(optimizer: torch.optim.Optimizer, group: int) -> bool:
    """Check a change of the learning rate of a group that the graph scales.

    Returns:
        False if a scheduler that applies the factor made it.

    Raises:
        GraphError: no scheduler made it, so the rate may be scaled already.
    """
    if rate_scheduler(optimizer) is not None:
        return False
    if _holders(optimizer, (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau)):
        return True
    raise GraphError(
        f"the learning rate of parameter group {group} of {type(optimizer).__name__} was assigned "
        "directly, and the group has the key 'lr_scale', by which the graph multiplies it. If your "
        "code multiplies by it as well, the factor applies twice. Keep the factors outside of the "
        "groups (or `del group['lr_scale']`) and assign the products, or let a scheduler set the "
        "learning rates (lr_sch of add_optimizer)."
    )


def _holders(optimizer: torch.optim.Optimizer, kinds: tuple[type, ...]) -> list[Any]:
    """The objects of some classes whose attribute `optimizer` is this one."""
    classes: set[Any] = set(kinds)
    while more := {c for k in classes for c in k.__subclasses__()} - classes:
        classes |= more
    objects = [o for o in gc.get_objects() if type(o) in classes]
    return [o for o in objects if vars(o).get("optimizer") is optimizer]


@contextlib.contextmanager
def scaled_rates(
    optimizer: torch.optim.Optimizer, groups: Sequence[dict[str, Any]], where: str = ""
) -> Iterator[None]:
    """While active, the `lr` of each of an optimizer's groups (or of their mirrors) is multiplied by its `lr_scale`.

    Raises:
        GraphTraceError: step() sets a group's `lr` itself.
    """
    saved: list[tuple[dict[str, Any], Any, Any]] = []
    if any(LR_SCALE in g for g in groups) and rate_scheduler(optimizer) is None:
        for group in groups:
            factor = group.get(LR_SCALE)
            if factor is not None:
                old = group["lr"]
                group["lr"] = old * factor
                saved.append((group, old, group["lr"]))
    try:
        yield
    finally:
        for group, old, scaled in saved:
            changed, group["lr"] = group["lr"] is not scaled, old
            if changed and sys.exc_info()[0] is None:
                raise GraphTraceError(
                    f"{where}: step() sets the group's 'lr', which the key 'lr_scale' of the group scales; remove "
                    "one of the two."
                )
