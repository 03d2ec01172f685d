"""`torch.optim.lr_scheduler`, with OneFlow's arguments, and its `WarmupLR`, `CosineDecayLR` and `PolynomialLR`."""

from __future__ import annotations

from typing import Any

from torch.optim import lr_scheduler as _torch

from gflow.runtime.schedules.lr_scheduler import CosineDecayLR, PolynomialLR, WarmUpLR, WarmupLR
from gflow.runtime.schedules.stepped_schedulers import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)


def __getattr__(name: str) -> Any:
    try:
        return getattr(_torch, name)
    except AttributeError:
        raise AttributeError(
            f"neither gflow.optim.lr_scheduler nor PyTorch's has {name!r}"
        ) from None


def __dir__() -> list[str]:
    return sorted({*_OWN, *dir(_torch)})


__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CosineDecayLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "WarmUpLR",
    "WarmupLR",
]
_OWN = frozenset(__all__)
__all__ += [n for n in getattr(_torch, "__all__", dir(_torch)) if n not in _OWN and n[0] != "_"]
