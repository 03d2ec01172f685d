"""`torch.compile(model, backend="gflow")`: the programs of TorchDynamo and AOTAutograd, compiled by gflow."""

from __future__ import annotations

from .backend import gflow

__all__ = ["gflow"]
