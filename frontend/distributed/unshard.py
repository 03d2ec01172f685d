"""`unshard`: gathers sharded parameters and optimizer state."""

from __future__ import annotations

from typing import Any

import torch

from gflow.call.zero_state import kept_by, tensors_of
from gflow.errors import GraphError
from gflow.runtime.distributed import pieces
from gflow.tracing.context.location import here
from gflow.tracing.data.global_tensors import local_of


def unshard(*parts: Any) -> None:
    """Gather the parameters of modules, and the state of optimizers, on every rank. They may be sharded
    (`config.enable_zero`) or on one rank (pipeline stages). All ranks must call it with the same parts. The next step
    of the graph shards them again. `state_dict()` and eager calls of modules gather automatically.

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
            pieces.gather([local_of(part)])
        elif hasattr(part, "param_groups"):
            pieces.gather(tensors_of(part))
        else:
            raise GraphError(
                f"{here()}: unshard() takes modules, optimizers and tensors, found {type(part).__name__}"
            )
