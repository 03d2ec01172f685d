"""`torch.optim`, with more learning rate schedulers in `lr_scheduler`."""

from __future__ import annotations

import importlib
from typing import Any

import torch.optim


def __getattr__(name: str) -> Any:
    if name == "lr_scheduler":
        return importlib.import_module(".lr_scheduler", __name__)
    try:
        return getattr(torch.optim, name)
    except AttributeError:
        raise AttributeError(f"neither gflow.optim nor torch.optim has {name!r}") from None


def __dir__() -> list[str]:
    return dir(torch.optim)


__all__ = [n for n in getattr(torch.optim, "__all__", dir(torch.optim)) if not n.startswith("_")]
