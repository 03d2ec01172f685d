"""`torch.nn` with `Graph`."""

from __future__ import annotations

import importlib
from typing import Any

import torch.nn

#: OneFlow's modules that PyTorch does not have
_OWN = ("QuickGELU", "RMSLayerNorm", "SquareReLU")


def __getattr__(name: str) -> Any:
    if name == "Graph":
        # start-up: tracing is loaded by the first graph
        from gflow.graph import Graph

        globals()[name] = Graph
        return Graph
    if name in _OWN:
        value = getattr(importlib.import_module("gflow.oneflow.functions"), name)
        globals()[name] = value
        return value
    if name == "graph":
        return importlib.import_module(".graph", __name__)
    try:
        value = getattr(torch.nn, name)
    except AttributeError:
        try:
            return importlib.import_module(f"torch.nn.{name}")
        except ModuleNotFoundError:
            refused = importlib.import_module("gflow.oneflow.refused").NN
            if name in refused:
                raise AttributeError(f"gflow.nn.{name} {refused[name]}") from None
            raise AttributeError(f"neither gflow.nn nor torch.nn has {name!r}") from None
    return value


def __dir__() -> list[str]:
    return sorted({"Graph", "graph", *_OWN, *dir(torch.nn)})


__all__ = [
    "Graph",
    *[n for n in getattr(torch.nn, "__all__", dir(torch.nn)) if not n.startswith("_")],
]
