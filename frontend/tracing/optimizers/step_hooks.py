"""Hooks of `optimizer.step()`: Python code before and after a step, which runs at each call, outside of the
program."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gflow.errors import GraphError

from ..context.location import here
from ..context.threads import here_only

#: attributes of optimizers that hold hooks
HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
#: names in `torch.optim.optimizer` of the hooks for all optimizers
_GLOBAL = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
#: functions that clear gradients, which do not exist here
_ZERO_GRAD = [
    inspect.unwrap(kind.zero_grad).__code__ for kind in (torch.optim.Optimizer, torch.nn.Module)
]


class _Elsewhere(OrderedDict[int, Any]):
    """Global hooks that are empty for the thread that created this object."""

    def __init__(self, real: Any) -> None:
        super().__init__()
        self.real, self.thread = real, threading.get_ident()

    def values(self) -> Any:
        return () if threading.get_ident() == self.thread else self.real.values()


@contextlib.contextmanager
def without_hooks(optimizers: Sequence[torch.optim.Optimizer] = ()) -> Iterator[None]:
    """While active, steps of this thread run no global hooks, and no hooks of `optimizers`."""
    saved = [(vars(o), n, vars(o)[n]) for o in optimizers for n in HOOKS if n in vars(o)]
    places = vars(torch_optimizer)
    hooks = [places[name] for name in _GLOBAL]
    try:
        for attributes, name, _ in saved:
            attributes[name] = OrderedDict()
        for name, real in zip(_GLOBAL, hooks):
            places[name] = _Elsewhere(real)
        yield
    finally:
        for name, real in zip(_GLOBAL, hooks):
            places[name] = real
        for attributes, name, real in saved:
            attributes[name] = real


def has_hooks(optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Whether a step of one of these optimizers runs hooks."""
    for optimizer in optimizers:
        attributes = vars(optimizer)
        if attributes.get(HOOKS[0]) or attributes.get(HOOKS[1]):
            return True
    return bool(optimizers and (_for_all(False) or _for_all(True)))


def _for_all(after: bool) -> list[Any]:
    """The hooks for all optimizers, without those by which another thread's trace observes steps."""
    hooks = getattr(torch_optimizer, _GLOBAL[after])
    if not hooks:
        return []
    return [h for h in hooks.values() if getattr(h, "__module__", "") != here_only.__module__]


def check_hooks(optimizers: Sequence[torch.optim.Optimizer], scaler: Any) -> None:
    """Check that hooks can run before and after the program.

    Raises:
        GraphError: several optimizers step, or a scaler may skip a step.
    """
    if len(optimizers) > 1:
        raise GraphError(
            "hooks of optimizer steps (register_step_pre_hook, register_step_post_hook) in a graph with "
            f"{len(optimizers)} optimizers: all steps are one program, so a hook cannot run between two of "
            "them. Remove the hooks and call their functions around the graph."
        )
    if isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled():
        raise GraphError(
            "hooks of optimizer steps (register_step_pre_hook, register_step_post_hook) in a graph with a "
            "GradScaler: whether a step is skipped is known on the device only. Remove the hooks and call "
            "their functions around the graph."
        )


class _WithoutGradients(TorchFunctionMode):
    """A mode that raises an error if a hook reads gradients, which do not exist outside of the program."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _GRADIENT and sys._getframe(1).f_code not in _ZERO_GRAD:
            raise GraphError(
                f"{here()}: a hook of an optimizer's step uses a gradient (.grad). In a graph the hook runs "
                "outside of the program, where gradients are not available. Do this in build() after "
                "backward() (clip_grad_norm_ works there), give the parameter group the key "
                "clip_grad_max_norm, or read gradients with config.keep_gradients() and graph.grad()."
            )
        return func(*args, **(kwargs or {}))


_SLOT: Any = torch.Tensor.grad
_GRADIENT = {_SLOT.__get__, _SLOT.__set__, _SLOT.__delete__}


class _KeepingParameters(TorchDispatchMode):
    """A mode that raises an error if a hook writes to one of the parameters: before the program runs is before its
    forward, not between backward and step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.places = {p.untyped_storage().data_ptr() for p in parameters if p.numel()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for n, argument in enumerate(func._schema.arguments):
            info = argument.alias_info
            if info is None or not info.is_write:
                continue
            for tensor in tree_leaves(args[n] if n < len(args) else kwargs.get(argument.name)):
                if isinstance(tensor, torch.Tensor):
                    self._check(tensor)
        return func(*args, **kwargs)

    def _check(self, tensor: torch.Tensor) -> None:
        if tensor.untyped_storage().data_ptr() in self.places:
            raise GraphError(
                f"{here()}: a hook before an optimizer's step changes a parameter. In a graph it runs before "
                "the whole program, so the forward would see the change. Do it in build() after backward() "
                "(p.data.mul_(…) works there), or in a hook after the step."
            )


def run_hooks(optimizer: torch.optim.Optimizer, after: bool) -> None:
    """Run the hooks before a step, or those after it.

    Raises:
        GraphError: a hook reads gradients, changes the arguments of `step()`, or changes parameters before the step.
    """
    own = vars(optimizer).get(HOOKS[after], {})
    common = _for_all(after)
    hooks = [*own.values(), *common] if after else [*common, *own.values()]
    kept = contextlib.nullcontext() if after or not hooks else _KeepingParameters(optimizer)
    with _WithoutGradients(), kept:
        for hook in hooks:
            changed = hook(optimizer, (optimizer,), {})
            if changed is not None and not after:
                raise GraphError(
                    f"the hook {getattr(hook, '__qualname__', hook)!r} changes the arguments of "
                    f"{type(optimizer).__name__}.step(); a graph's step takes none."
                )
