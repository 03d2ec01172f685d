"""The modules of a graph: their dotted names, parameters and buffers, and the exchange of
both for traced tensors while `build()` runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter or buffer: `holder[key] is tensor`."""

    holder: dict[str, Any]
    key: str
    tensor: torch.Tensor
    name: str
    role: str


@dataclass(frozen=True)
class ModuleTable:
    """All modules reachable from a graph, each once."""

    names: dict[int, str]
    modules: list[torch.nn.Module]
    slots: list[Slot]


def collect_modules(roots: Mapping[str, torch.nn.Module]) -> ModuleTable:
    """Walk the roots; a module or tensor reachable by two names keeps the first."""
    names: dict[int, str] = {}
    modules: list[torch.nn.Module] = []
    slots: list[Slot] = []
    for root_name, root in roots.items():
        for path, module in root.named_modules(prefix=root_name):
            if id(module) in names:
                continue
            names[id(module)] = path
            modules.append(module)
            for role, holder in (("parameter", module._parameters), ("buffer", module._buffers)):
                for key, tensor in holder.items():
                    if tensor is not None:
                        slots.append(Slot(holder, key, tensor, f"{path}.{key}", role))
    return ModuleTable(names, modules, slots)


@contextlib.contextmanager
def exchanged(
    table: ModuleTable,
    replace: Callable[[Slot], torch.Tensor],
    changed: Callable[[torch.Tensor, torch.Tensor], None],
) -> Iterator[None]:
    """Put `replace(slot)` in every slot, restore all on exit. `changed(old, new)` is called
    for a tensor attribute or buffer of a module that was rebound to a traced tensor."""
    stand_ins = [replace(slot) for slot in table.slots]
    attributes = [dict(module.__dict__) for module in table.modules]
    for slot, stand_in in zip(table.slots, stand_ins, strict=True):
        slot.holder[slot.key] = stand_in
    completed = False
    try:
        yield
        completed = True
    finally:
        for slot, stand_in in zip(table.slots, stand_ins, strict=True):
            current = slot.holder.get(slot.key)
            slot.holder[slot.key] = slot.tensor
            if completed and current is not stand_in and isinstance(current, torch.Tensor):
                changed(slot.tensor, current)
        for module, before in zip(table.modules, attributes, strict=True):
            for key, value in list(module.__dict__.items()):
                if not (isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)):
                    continue
                old = before.get(key)
                if completed and isinstance(old, torch.Tensor):
                    changed(old, value)
                if key in before:
                    module.__dict__[key] = old
                else:
                    del module.__dict__[key]
            _drop_new_slots(module, table)


def _drop_new_slots(module: torch.nn.Module, table: ModuleTable) -> None:
    """Buffers registered inside build() hold traced tensors: they go."""
    for holder in (module._parameters, module._buffers):
        for key, value in list(holder.items()):
            if isinstance(value, torch.Tensor) and torch._is_functional_tensor(value):
                del holder[key]
