"""Keys of parameter groups that an optimizer keeps and does not read."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any

import torch

_CORRECTION = "do_bias_correction"

#: keys of schedulers and of users that change no step
_NOTES = {
    # schedulers
    "initial_lr", "swa_lr", "min_lr", "max_lr", "base_lr", "last_lr", "base_momentum", "max_momentum",
    "initial_momentum",
    # labels
    "name", "names", "group_name", "param_group_name", "module_name", "label", "tag", "description",
    "layer", "layer_id", "layer_name", "index", "group_index",
}  # fmt: skip
#: keys that a step need not read
_INERT = _NOTES | {
    "params", "param_names", "lr", "foreach", "fused", "capturable", "differentiable",
    "lr_scale", "clip_grad_max_norm", "clip_grad_norm_type", _CORRECTION,
}  # fmt: skip


def is_note(key: Any) -> bool:
    """Whether a key of a group changes no step of any optimizer."""
    return key in _NOTES or f"{key}".startswith("initial_")


def unread_problem(optimizer: torch.optim.Optimizer) -> str | None:
    """An option in a group that the optimizer would silently ignore, as an error message; None if there is none."""
    if getattr(optimizer, "is_second_order", False):
        return (
            f"{type(optimizer).__name__} differentiates gradients (it needs backward(create_graph=True)); in a "
            "graph gradients are values that are done. Compute second derivatives in build(), with "
            "torch.autograd.grad(..., create_graph=True), or use an optimizer of the first order"
        )
    for i, group in enumerate(optimizer.param_groups):
        if group.get("differentiable"):
            return (
                f"parameter group {i} has differentiable=True: the step is to be part of autograd's graph, and "
                "a compiled step is not; leave it out, or make such steps outside of graphs"
            )
        if type(optimizer).__module__.startswith("torch.optim") and not group.get(
            _CORRECTION, True
        ):
            return (
                f"parameter group {i} has {_CORRECTION}=False, and PyTorch's {type(optimizer).__name__} "
                "always corrects its moments; leave the key out, or add an optimizer that reads it"
            )
    return None


def _named(optimizers: Sequence[Any]) -> set[str]:
    """The strings that stand in the code of optimizers' own classes."""
    classes = {c for o in optimizers for c in type(o).__mro__ if c is not torch.optim.Optimizer}
    held: list[Any] = [unwrap(f) for c in classes for f in vars(c).values() if callable(f)]
    found: set[str] = set()
    while held:
        value = held.pop()
        if isinstance(value, FunctionType):
            held.append(value.__code__)
        elif isinstance(value, CodeType):
            held += value.co_consts
        elif isinstance(value, tuple):
            held += value
        elif isinstance(value, str):
            found.add(value)
    return found


def foreign_keys(
    optimizers: Sequence[Any], groups: Sequence[tuple[int, dict[str, Any], Any]]
) -> str | None:
    """A key of a group that the optimizer's class does not name, and its step does not read. optimizers: it, and what
    it holds; groups: their numbers, and what stood for each while the step was traced."""
    own = {*_INERT}
    for optimizer in optimizers:
        own |= {*getattr(optimizer, "defaults", {})}
    named: set[str] | None = None
    for i, group, mirror in groups:
        for key in group:
            if key in own or key in mirror.seen.keys or is_note(key):
                continue
            named = _named(optimizers) if named is None else named
            if key in named:  # for other groups, or for state that is there
                continue
            return (
                f"parameter group {i} has the key {key!r} ({group[key]!r}), which step() did not read and which "
                f"{type(optimizers[0]).__name__} does not declare, so it has no effect. Take it out of the "
                "group, add an optimizer that reads it, or keep notes of your own under 'name' or 'label'."
            )
    return None
