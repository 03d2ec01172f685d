"""`torch.distributed`, with OneFlow's API for global tensors on top of `DeviceMesh` and `DTensor`.

checkpoints     `save_checkpoint`, `load_checkpoint`: each rank writes its shards, any number of ranks can read them
env             the rank of this process, and the number of ranks
global_tensors  `to_global` and `to_local`: convert tensors and modules to and from global tensors
placement       `placement`: the ranks over which a global tensor is distributed
sbp             `sbp`: the sharding of a tensor: split, broadcast or partial sums
unshard         `unshard`: gathers sharded parameters and optimizer state
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
