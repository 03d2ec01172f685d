"""Sharded tensors of optimizers and modules (ZeRO): gathered when they are read or saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch

from gflow.runtime.distributed import pieces
from gflow.tracing.context.ranks import world_size
from gflow.tracing.data.global_tensors import local_of

from .watchers import is_building

_hooked: WeakSet[Any] = WeakSet()


def gather_when_read(optimizers: Sequence[Any], modules: Iterable[torch.nn.Module]) -> None:
    """From now on `state_dict()` and eager calls gather sharded tensors, on all ranks.

    These hooks are registered before a trace records the hooks of modules.

    Args:
        modules: those whose parameters are to be sharded, or kept by one rank each.
    """
    if world_size() == 1:
        return
    for optimizer in optimizers:
        hook = getattr(optimizer, "register_state_dict_pre_hook", None)
        if hook is not None and optimizer not in _hooked:
            _hooked.add(optimizer)
            hook(_whole_state)
    for module in modules:
        if module not in _hooked and any(True for _ in kept_by(module)):
            _hooked.add(module)
            module.register_state_dict_pre_hook(_before_saving)
            module.register_load_state_dict_pre_hook(_before_loading)
            module.register_forward_pre_hook(_before_call)


def whole(tensors: Iterable[torch.Tensor | None], optimizers: Sequence[Any]) -> None:
    """Gather the tensors that a step op by op reads, in the same order on all ranks."""
    if world_size() > 1:
        pieces.gather(t for t in tensors if t is not None)
        for optimizer in optimizers:
            pieces.gather(tensors_of(optimizer))


def _whole_state(optimizer: Any) -> None:
    pieces.gather(_state(optimizer))


def _before_saving(module: torch.nn.Module, prefix: str, keep_vars: bool) -> None:
    pieces.gather(kept_by(module, recurse=False))


def _before_loading(module: torch.nn.Module, *_: Any) -> None:
    # entries that a dict lacks are not changed
    pieces.gather(kept_by(module, recurse=False))


def _before_call(module: torch.nn.Module, args: Any) -> None:
    """Gather the parameters before an eager call; a call in `build()` has those of the trace."""
    if pieces.any_held() and not is_building():
        pieces.gather(kept_by(module))


def kept_by(module: torch.nn.Module, recurse: bool = True) -> Iterator[torch.Tensor]:
    """This rank's parameters and buffers of a module, in the same order on all ranks."""
    yield from map(local_of, module.parameters(recurse))
    yield from map(local_of, module.buffers(recurse))


def tensors_of(optimizer: Any) -> Iterator[torch.Tensor]:
    """This rank's parameters of an optimizer and the tensors of its state, in the same order on all ranks."""
    for group in optimizer.param_groups:
        yield from map(local_of, group["params"])
    yield from _state(optimizer)


def _state(optimizer: Any) -> Iterator[torch.Tensor]:
    """The tensors of an optimizer's state, in the same order on all ranks."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            entry = optimizer.state.get(p, {})
            if isinstance(entry, dict):
                yield from (local_of(v) for v in entry.values() if isinstance(v, torch.Tensor))
