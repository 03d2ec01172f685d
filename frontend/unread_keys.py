"""Keys of OneFlow's parameter groups that PyTorch's optimizers carry along and do not read."""

from __future__ import annotations

import torch

_CORRECTION = "do_bias_correction"


def unread_problem(optimizer: torch.optim.Optimizer) -> str | None:
    """What a group asks for that the optimizer would not do, without a word."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        return None
    for i, group in enumerate(optimizer.param_groups):
        if not group.get(_CORRECTION, True):
            return (
                f"parameter group {i} has {_CORRECTION}=False, and PyTorch's {type(optimizer).__name__} "
                "always corrects its moments; leave the key out, or add an optimizer that reads it"
            )
    return None
