"""`torch.optim.lr_scheduler`, with OneFlow's `WarmupLR`, `CosineDecayLR` and `PolynomialLR`."""

from __future__ import annotations

from typing import Any

from torch.optim import lr_scheduler as _torch

from gflow.runtime.lr_scheduler import CosineDecayLR, PolynomialLR, WarmUpLR, WarmupLR

_OWN = ("CosineDecayLR", "PolynomialLR", "WarmUpLR", "WarmupLR")


def __getattr__(name: str) -> Any:
    try:
        return getattr(_torch, name)
    except AttributeError:
        raise AttributeError(
            f"neither gflow.optim.lr_scheduler nor PyTorch's has {name!r}"
        ) from None


def __dir__() -> list[str]:
    return sorted({*_OWN, *dir(_torch)})


__all__ = ["CosineDecayLR", "PolynomialLR", "WarmUpLR", "WarmupLR"]
__all__ += [n for n in getattr(_torch, "__all__", dir(_torch)) if n not in _OWN and n[0] != "_"]
