"""An optimizer's step on copies: ops read and write copies of the tensors that the code refers to.

Code that compares parameters by identity, or looks them up in a set or a dict, gets the parameters themselves, so it
makes the same choices as in an eager step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gflow.tracing.reads.steps import tensors_outside

from ..dispatch.functions.proxies import own_attributes

Tensor = torch.Tensor


class OnCopies(TorchFunctionMode):
    """While active, ops get the copies of some tensors, and return the tensors instead of copies.

    pairs: each tensor with its copy. later: tensors that are copied when an op first gets them.
    """

    def __init__(
        self, pairs: Iterable[tuple[Tensor, Tensor]], later: Iterable[Tensor] = ()
    ) -> None:
        super().__init__()
        pairs = list(pairs)
        self._copies = {id(real): (real, copy) for real, copy in pairs}
        self._reals = {id(copy): (copy, real) for real, copy in pairs}
        self._later = {id(real): real for real in later}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*self._copied(args), **self._copied(kwargs or {}))
        known = self._reals.get(id(result))
        return result if known is None else known[1]

    def _copied(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            known = self._copies.get(id(value))
            if known is not None:
                return known[1]
            return self._copy(value) if id(value) in self._later else value
        kind = type(value)
        if kind is list or kind is tuple:
            return kind([self._copied(v) for v in value])
        if kind is dict:
            return {k: self._copied(v) for k, v in value.items()}
        return value

    def _copy(self, real: Tensor) -> Tensor:
        copy = _copy_of(self._later.pop(id(real)))
        self._copies[id(real)] = real, copy
        self._reals[id(copy)] = copy, real
        return copy


def _copy_of(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def copies_outside(
    optimizers: Sequence[torch.optim.Optimizer], known: Iterable[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Copies of the tensors that steps can reach outside of their optimizers (in closures, globals, modules), each
    with its tensor. known: tensors that are excluded."""
    taken = {id(t) for t in known}
    return [(t, _copy_of(t)) for t in tensors_outside(optimizers) if id(t) not in taken]


@contextlib.contextmanager
def attributes_stay(
    tensors: Sequence[Tensor], refuse: Callable[[Tensor, str], None] | None = None
) -> Iterator[None]:
    """Restore attributes of parameters that a step sets. refuse: called with each such parameter and attribute."""
    saved = [own_attributes(t) for t in tensors]

    def put_back() -> list[tuple[Tensor, str]]:
        found = []
        for tensor, before in zip(tensors, saved):
            after = own_attributes(tensor)
            names = [n for n in after if n not in before or after[n] is not before[n]]
            for name in names:
                delattr(tensor, name)
            names += before.keys() - after.keys()
            if names:
                vars(tensor).update(before)
                found.append((tensor, names[0]))
        return found

    try:
        yield
    except BaseException:
        put_back()
        raise
    for tensor, name in put_back():
        if refuse is not None:
            refuse(tensor, name)


def told_apart(
    optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[Tensor]
) -> set[int]:
    """The ids of parameters that a step may treat individually: those that it can reach outside of groups and state,
    and those that the optimizer keeps in attributes, as tensors or by their ids."""
    every = {id(p) for p in parameters}
    found = {id(t) for t in tensors_outside(optimizers)}
    left = ("param_groups", "state", "defaults")
    held = [v for o in optimizers for k, v in vars(o).items() if k not in left]
    while held:
        value = held.pop()
        if isinstance(value, (list, tuple, set, frozenset)):
            held += value
        elif isinstance(value, dict):
            held += [*value.keys(), *value.values()]
        elif isinstance(value, Tensor):
            found.add(id(value))
        elif type(value) is int:
            found.add(value)
    return found & every
