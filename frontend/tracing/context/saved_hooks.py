"""Hooks of saved tensors (`torch.autograd.graph.saved_tensors_hooks`) around a call.

Such hooks receive the tensors that eager mode saves for its backward, and may replace them. A compiled program saves
other tensors. PyTorch's own hooks (`save_on_cpu`, `torch.utils.checkpoint`) return the values that they received, so
they may run on the tensors of a program.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch
import torch.utils.checkpoint
from torch.autograd.graph import saved_tensors_hooks

from .transforms import TRANSFORMED, is_transformed

_log = logging.getLogger("gflow")
_top = torch._C._autograd._top_saved_tensors_default_hooks
_pop = torch._C._autograd._pop_saved_tensors_default_hooks
_push = torch._C._autograd._push_saved_tensors_default_hooks

#: the warning for a function that runs in eager mode
IN_EAGER = (
    "runs in eager mode within torch.autograd.graph.saved_tensors_hooks, whose functions see the tensors that eager "
    "mode keeps; with those of PyTorch (save_on_cpu, checkpoint) it runs compiled"
)


def may_change_values() -> bool:
    """Whether one of the active hooks is not PyTorch's."""
    hooks = _top(True)
    return hooks is not None and any(_code_of(h) not in _pytorchs() for h in hooks)


def _code_of(hook: Any) -> CodeType | None:
    """The code of a hook. It identifies PyTorch's hooks, since anybody can set a name and a module."""
    if getattr(hook, "__globals__", {}).get("__name__") == "torch._dynamo.eval_frame":
        hook = getattr(hook, "_torchdynamo_orig_callable", hook)  # of `torch._dynamo.disable`
    return getattr(hook, "__code__", None)


@functools.cache
def _pytorchs() -> frozenset[CodeType]:
    """The code of PyTorch's own hooks."""
    classes = [
        entry.__init__.__code__
        for module in (torch.autograd.graph, torch.utils.checkpoint)
        for entry in vars(module).values()
        if isinstance(entry, type) and issubclass(entry, saved_tensors_hooks)
    ]
    return frozenset(c for code in classes for c in code.co_consts if isinstance(c, CodeType))


@contextlib.contextmanager
def without_outer_hooks() -> Iterator[None]:
    """Within, hooks that were set outside are inactive."""
    outer = []
    while (hooks := _top(False)) is not None:
        outer.append(hooks)
        _pop()
    try:
        yield
    finally:
        for pack, unpack in reversed(outer):
            _push(pack, unpack)


def eager_within_hooks(module: torch.fx.GraphModule, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, a compiled graph of TorchDynamo, with a check of each call: within hooks that may change values, a call
    with gradients runs as in eager mode, since AOTAutograd saves other tensors; so does any within forward-mode
    differentiation."""
    said = set[str]()

    def call(*args: Any) -> Any:
        hooks = may_change_values() and torch.is_grad_enabled()
        if hooks or is_transformed():
            text = IN_EAGER if hooks else TRANSFORMED
            if text not in said:
                _log.warning("torch.compile: a graph %s", text)
            said.add(text)
            return module.forward(*args)
        return run(*args)

    return call
