"""Graphs of TorchDynamo that update an argument which shares elements with another one.

AOTAutograd puts such arguments together into one (a synthetic base), makes each of them again from it, and gets results
that are views of them wrong: in PyTorch 2.13 `aot_eager` raises for `x.add_(1); return y[0]`, or loses elements. Such a
graph runs as in eager mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from gflow.tracing.program.shared import overlap

from .sizes import hint_of


@dataclass(frozen=True)
class _Place:
    """Where a tensor without memory lies in its storage: what `overlap` asks of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    itemsize: int

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.itemsize

    def data_ptr(self) -> int:
        return self.offset * self.itemsize


def updated_in_shared_memory(module: torch.fx.GraphModule) -> tuple[str, str] | None:
    """The names of an argument that a graph updates and of one that shares elements with it, if there are such."""
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            by_storage.setdefault(value.untyped_storage()._cdata, []).append((node.name, value))
    for group in by_storage.values():
        # views count the updates of all that lies in their memory
        if len(group) < 2 or not any(value._version for _, value in group):
            continue
        for (a, first), (b, second) in combinations(group, 2):
            places = _place(first), _place(second)
            if None in places or overlap(*places):  # type: ignore[arg-type]
                return a, b
    return None


def _place(value: torch.Tensor) -> Any:
    """None where sizes are not known."""
    shape, strides = [*map(hint_of, value.shape)], [*map(hint_of, value.stride())]
    offset = hint_of(value.storage_offset())
    if None in (*shape, *strides, offset):
        return None
    return _Place(tuple(shape), tuple(strides), offset, value.element_size())  # type: ignore[arg-type]
