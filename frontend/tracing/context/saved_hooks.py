"""Hooks of saved tensors (`torch.autograd.graph.saved_tensors_hooks`) around a call.

They are called with the tensors that eager mode keeps for its backward, and may give it others. A compiled program
keeps other tensors. PyTorch's own hooks (`save_on_cpu`, `torch.utils.checkpoint`) give back what they were called
with, so they may act on those of a program.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

_log = logging.getLogger("gflow")
_top = torch._C._autograd._top_saved_tensors_default_hooks
_pop = torch._C._autograd._pop_saved_tensors_default_hooks
_push = torch._C._autograd._push_saved_tensors_default_hooks

#: what is said of a function that runs in eager mode
IN_EAGER = (
    "runs in eager mode within torch.autograd.graph.saved_tensors_hooks, whose functions see the tensors that eager "
    "mode keeps; with those of PyTorch (save_on_cpu, checkpoint) it runs compiled"
)


def may_change_values() -> bool:
    """Whether the hooks that apply now are none of PyTorch's."""
    hooks = _top(True)
    if hooks is None:
        return False
    module = getattr(hooks[0], "__module__", None) or ""
    return not module.startswith("torch.")


@contextlib.contextmanager
def without_outer_hooks() -> Iterator[None]:
    """Within, hooks that are set around it don't apply."""
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
    """`run`, a compiled graph of TorchDynamo. AOTAutograd keeps what eager mode does not, so a call with gradients
    within hooks that may change values runs as in eager mode."""
    said = False

    def call(*args: Any) -> Any:
        nonlocal said
        if may_change_values() and torch.is_grad_enabled():
            if not said:
                _log.warning("torch.compile: a graph %s", IN_EAGER)
            said = True
            return module.forward(*args)
        return run(*args)

    return call
