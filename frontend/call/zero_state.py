"""Optimizers whose state lies in pieces on the ranks (ZeRO): whole for who saves it, and for tracing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch

from gflow.runtime.distributed.pieces import blank, gather
from gflow.tracing.context.ranks import world_size

_hooked: WeakSet[Any] = WeakSet()


def prepare(optimizers: Sequence[Any]) -> None:
    """Before a step is traced: state has memory again; from now on `state_dict()` gathers it, on all ranks."""
    if world_size() == 1:
        return
    for optimizer in optimizers:
        blank(_state(optimizer))
        hook = getattr(optimizer, "register_state_dict_pre_hook", None)
        if hook is not None and optimizer not in _hooked:
            _hooked.add(optimizer)
            hook(_whole)


def _whole(optimizer: Any) -> None:
    gather(_state(optimizer))


def _state(optimizer: Any) -> Iterator[torch.Tensor]:
    """The tensors of an optimizer's state, in an order that all ranks have."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            entry = optimizer.state.get(p, {})
            if isinstance(entry, dict):
                yield from (v for v in entry.values() if isinstance(v, torch.Tensor))
