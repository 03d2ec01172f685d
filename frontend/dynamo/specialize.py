"""Graphs with symbolic sizes: one program for each set of sizes that comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

#: programs that are kept of one graph; the one not used for longest goes
_MOST_KEPT = 16


def is_symbolic(value: Any) -> bool:
    """Whether a size is symbolic: the value is one, or a tensor that has one."""
    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride())
        return any(isinstance(s, torch.SymInt) for s in sizes)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def specialized(
    module: torch.fx.GraphModule, compile_static: Callable[..., Callable[..., Any]]
) -> Callable[..., Any]:
    """A function that compiles `module` for the sizes of each call."""
    known: dict[Any, Callable[..., Any]] = {}

    def run(*args: Any) -> Any:
        key = (torch.is_grad_enabled(), *map(_signature, args))
        program = known.pop(key, None)
        if program is None:
            mode = FakeTensorMode()
            program = compile_static(module, [_fake(mode, a) for a in args])
            if len(known) >= _MOST_KEPT:
                del known[next(iter(known))]
        known[key] = program
        return program(*args)

    return torch._dynamo.disable(run, reason="compiles for the sizes of a call")  # type: ignore[no-any-return]


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
    return (type(value), value)
