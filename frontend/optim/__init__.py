"""`torch.optim`, whose optimizers also take OneFlow's arguments, with `LAMB`, and more learning rate schedulers in
`lr_scheduler`."""

from __future__ import annotations

import importlib
from typing import Any

import torch.optim

_OWN = ("LAMB", "LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "RMSprop")


def __getattr__(name: str) -> Any:
    if name == "lr_scheduler":
        return importlib.import_module(".lr_scheduler", __name__)
    if name in _OWN:
        # start-up: tracing is loaded at its first use
        return getattr(importlib.import_module(".optimizers", __name__), name)
    try:
        return getattr(torch.optim, name)
    except AttributeError:
        raise AttributeError(f"neither gflow.optim nor torch.optim has {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*_OWN, *dir(torch.optim)})


__all__ = [n for n in getattr(torch.optim, "__all__", dir(torch.optim)) if not n.startswith("_")]
__all__ += ["LAMB"]
