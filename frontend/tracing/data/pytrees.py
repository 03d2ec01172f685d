"""Nested arguments and results: PyTorch's pytrees, dataclasses, and objects as results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def learn(leaf: Any) -> bool:
    """Register the type of a dataclass with PyTorch's pytrees. Returns whether it is registered now."""
    if isinstance(leaf, type) or not dataclasses.is_dataclass(leaf):
        return False
    try:
        pytree.register_dataclass(type(leaf))
    except ValueError:  # fields that are no parameters of the constructor
        return False
    return True


class _Object:
    """An object in a result, represented by its class and its attributes."""

    def __init__(self, kind: type, attributes: dict[str, Any]) -> None:
        self.kind, self.attributes = kind, attributes


def opened(result: Any, holds: Callable[[Any], bool], within: tuple[int, ...] = ()) -> Any:
    """`result` with objects replaced so that pytrees flatten them, where `holds` says that they contain tensors.

    Unflattening creates objects of their classes with the same attributes, without calling their constructors (a
    model's key and value cache, for example). Objects with other state than attributes stay leaves.
    """

    def open_one(leaf: Any) -> Any:
        if not _is_plain(leaf) or id(leaf) in within or not holds(leaf):
            return leaf
        inner = (*within, id(leaf))
        return _Object(type(leaf), {k: opened(v, holds, inner) for k, v in vars(leaf).items()})

    return pytree.tree_map(open_one, result)


def _is_plain(leaf: Any) -> bool:
    """Whether an object has no state except its attributes."""
    kind: Any = type(leaf)
    return (
        hasattr(leaf, "__dict__")
        and kind.__new__ is object.__new__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
        and not isinstance(leaf, (type, torch.nn.Module))
        and not dataclasses.is_dataclass(leaf)
    )


def _close(values: Any, context: tuple[type, tuple[str, ...]]) -> Any:
    kind, names = context
    made: Any = object.__new__(kind)
    made.__dict__.update(zip(names, values))
    return made


pytree.register_pytree_node(
    _Object,
    lambda x: (list(x.attributes.values()), (x.kind, tuple(x.attributes))),
    _close,
)
