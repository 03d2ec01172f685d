"""Arguments with state of their own: a model's cache of keys and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

#: depth of attributes in which tensors are searched: a cache has layers, which have tensors
_DEPTH = 3


def holds_state(args: tuple[Any, ...], kwargs: dict[str, Any], kinds: set[type]) -> bool:
    """Whether a call may change an argument invisibly to a program: it is an instance of one of these types, or of a
    class registered with pytrees that has attributes (a program would get a copy of it)."""
    return any(
        type(a) in kinds or (type(a) in pytree.SUPPORTED_NODES and _is_stateful(a))
        for a in _arguments(args, kwargs)
    )


def stateful_kinds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[type]:
    """The types of those arguments that are objects with tensors in their attributes, or may get some."""
    return {type(a) for a in _arguments(args, kwargs) if _is_stateful(a)}


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    yield from args
    yield from kwargs.values()


def _is_stateful(value: Any) -> bool:
    """Whether an object's state is its attributes, and they hold tensors, or lists that may hold some."""
    if isinstance(value, (torch.Tensor, torch.nn.Module, type, dict, list, tuple)) or callable(
        value
    ):
        return False
    if dataclasses.is_dataclass(value) or not hasattr(value, "__dict__"):
        return False
    return _holds_tensors(value, _DEPTH)


def _holds_tensors(value: Any, depth: int) -> bool:
    if isinstance(value, (torch.Tensor, list)):
        return True
    if not depth or not hasattr(value, "__dict__") or isinstance(value, (type, torch.nn.Module)):
        return False
    return any(_holds_tensors(v, depth - 1) for v in vars(value).values())
