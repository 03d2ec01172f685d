"""Tracers of others that record PyTorch's calls: a program's run is none of them, so they would take its results for
constants."""

from __future__ import annotations

import torch

_MODES = {
    torch._C._TorchDispatchModeKey.PROXY: "torch.fx (make_fx, torch.export)",
    torch._C._TorchDispatchModeKey.FAKE: "FakeTensorMode",
}


def recorder() -> str:
    """The name of what records PyTorch's calls, or acts on them without values; empty where nothing does."""
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    for key, name in _MODES.items():
        if torch._C._get_dispatch_mode(key) is not None:
            return name
    return ""
