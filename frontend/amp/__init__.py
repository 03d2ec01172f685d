"""`torch.amp`, with scalers for `Graph.set_grad_scaler`."""

from __future__ import annotations

import importlib
from typing import Any

from .scalers import GradScaler, StaticGradScaler


def __getattr__(name: str) -> Any:
    try:
        return getattr(importlib.import_module("torch.amp"), name)
    except AttributeError:
        raise AttributeError(f"neither gflow.amp nor torch.amp has {name!r}") from None


__all__ = ["GradScaler", "StaticGradScaler"]
