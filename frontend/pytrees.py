"""Nested arguments and results: what PyTorch's pytrees know, and dataclasses."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.utils import _pytree as pytree


def learn(leaf: Any) -> bool:
    """Make the type of a dataclass known to PyTorch's pytrees; whether its fields are seen now."""
    if isinstance(leaf, type) or not dataclasses.is_dataclass(leaf):
        return False
    try:
        pytree.register_dataclass(type(leaf))
    except ValueError:  # fields that its constructor does not take
        return False
    return True
