"""`unshard`: parameters and optimizer state that lie in pieces on the ranks, whole again."""

from __future__ import annotations

from typing import Any

import torch

from gflow.call.zero_state import kept_by, tensors_of
from gflow.errors import GraphError
from gflow.runtime.distributed import pieces
from gflow.tracing.context.location import here


def unshard(*parts: Any) -> None:
    """Make the parameters of modules, and the state of optimizers, whole on every rank, where they lie in pieces
    (`config.enable_zero`) or on one rank (pipeline stages). All ranks call it together, with the same parts. The next
    step of a graph that works so takes them apart again. `state_dict()`, and eager calls of modules, do this by
    themselves.

    Args:
        parts: modules, optimizers and tensors.

    Raises:
        GraphError: one is none of these.
        RuntimeError: another rank does not take part within the group's timeout.
    """
    for part in parts:
        if isinstance(part, torch.nn.Module):
            pieces.gather(kept_by(part))
        elif isinstance(part, torch.Tensor):
            pieces.gather([part])
        elif hasattr(part, "param_groups"):
            pieces.gather(tensors_of(part))
        else:
            raise GraphError(
                f"{here()}: unshard() takes modules, optimizers and tensors, found {type(part).__name__}"
            )
