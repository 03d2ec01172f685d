"""`torch.distributed`, and OneFlow's words for global tensors over its `DeviceMesh` and `DTensor`.

checkpoints     `save_checkpoint`, `load_checkpoint`: each rank writes what it has, any number of ranks reads it
env             which rank this process is, of how many
global_tensors  `to_global` and `to_local`: tensors and modules over a placement
placement       `placement`: the ranks that a global tensor is spread over
sbp             `sbp`: how a tensor lies over ranks: split, broadcast, partial sums
unshard         `unshard`: parameters and optimizer state that lie in pieces on the ranks, whole again
"""

from __future__ import annotations

import importlib
from typing import Any

_OWN = {
    "env": ("env", None),
    "load_checkpoint": ("checkpoints", "load_checkpoint"),
    "save_checkpoint": ("checkpoints", "save_checkpoint"),
    "placement": ("placement", "Placement"),
    "sbp": ("sbp", None),
    "to_global": ("global_tensors", "to_global"),
    "to_local": ("global_tensors", "to_local"),
    "unshard": ("unshard", "unshard"),
}


def __getattr__(name: str) -> Any:
    if name in _OWN:
        file, what = _OWN[name]
        module = importlib.import_module(f".{file}", __name__)
        value = globals()[name] = module if what is None else getattr(module, what)
        return value
    try:
        return getattr(importlib.import_module("torch.distributed"), name)
    except AttributeError:
        raise AttributeError(
            f"neither gflow.distributed nor torch.distributed has {name!r}"
        ) from None


def __dir__() -> list[str]:
    return sorted({*_OWN, *dir(importlib.import_module("torch.distributed"))})
