"""Ops that go over the range of their type: infinities and NaN from finite operands."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = torch.Tensor


class Overflows(TorchDispatchMode):
    """Counts them by name, over all that runs in it."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        finite = _finite((args, kwargs))
        out = func(*args, **(kwargs or {}))
        if finite and not _finite(out):
            self.count[func._schema.name] += 1
        return out


def _finite(values: Any) -> bool:
    tensors = [t for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]
    return all(_is_finite(t) for t in tensors if t.is_floating_point() or t.is_complex())


def _is_finite(t: Tensor) -> bool:
    return t._is_zerotensor() or t.layout != torch.strided or bool(t.isfinite().all())
