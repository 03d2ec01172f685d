"""The modules of a graph: their dotted names, parameters and buffers, and the exchange of
both for traced tensors while `build()` runs."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_training = operator.attrgetter("training")
_requires_grad = operator.attrgetter("requires_grad")


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

    def __post_init__(self) -> None:
        # Columns for `is_current`, which runs at every call: `map` keeps the loops in C.
        columns = ([s.holder for s in self.slots], [s.key for s in self.slots])
        object.__setattr__(self, "_columns", (*columns, [s.tensor for s in self.slots]))
        parameters = [s.tensor for s in self.slots if s.role == "parameter"]
        object.__setattr__(self, "_parameters", parameters)
        parents = [m._modules for m in self.modules]
        object.__setattr__(self, "_tree", (parents, _children(parents)))

    def is_current(self) -> bool:
        """Every parameter, buffer and submodule is still the one it was, and no module has more."""
        holders, keys, tensors = self._columns  # type: ignore[attr-defined]
        parents, children = self._tree  # type: ignore[attr-defined]
        return (
            all(map(operator.is_, map(dict.get, holders, keys), tensors))
            and _children(parents) == children
        )

    def modes(self) -> tuple[bool, ...]:
        """Train or eval mode of every module, and which parameters are trained."""
        parameters = self._parameters  # type: ignore[attr-defined]
        return (*map(_training, self.modules), *map(_requires_grad, parameters))


def _children(parents: list[dict[str, Any]]) -> list[Any]:
    return [*itertools.chain.from_iterable(map(dict.values, parents))]


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
    owner: object = None,
) -> Iterator[None]:
    """Put `replace(slot)` in every slot, restore all on exit. `changed(old, new)` is called
    for a buffer, or a tensor attribute of a module or `owner`, that was rebound to a traced
    tensor."""
    stand_ins = [replace(slot) for slot in table.slots]
    objects: list[Any] = [*table.modules, *([owner] if hasattr(owner, "__dict__") else [])]
    attributes = [dict(vars(obj)) for obj in objects]
    completed = False
    restored: set[int] = set()  # slots whose new value has been seen

    def restore() -> None:
        for n, (slot, stand_in) in enumerate(zip(table.slots, stand_ins, strict=True)):
            current = slot.holder.get(slot.key)
            slot.holder[slot.key] = slot.tensor
            if completed and n not in restored and current is not stand_in:
                restored.add(n)
                if isinstance(current, torch.Tensor) and current is not slot.tensor:
                    changed(slot.tensor, current)
        for obj, before in zip(objects, attributes, strict=True):
            for key, value in list(vars(obj).items()):
                if not (isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)):
                    continue
                old = before.get(key)
                if completed and isinstance(old, torch.Tensor):
                    changed(old, value)
                if key in before:
                    vars(obj)[key] = old
                else:
                    del vars(obj)[key]
            if isinstance(obj, torch.nn.Module):
                _drop_new_slots(obj)

    try:
        try:
            for slot, stand_in in zip(table.slots, stand_ins, strict=True):
                slot.holder[slot.key] = stand_in
            yield
            completed = True
        finally:
            restore()
    finally:  # once more, for an exception that came in the middle
        restore()


def _drop_new_slots(module: torch.nn.Module) -> None:
    """Buffers registered inside build() hold traced tensors: they go."""
    for holder in (module._parameters, module._buffers):
        for key, value in list(holder.items()):
            if isinstance(value, torch.Tensor) and torch._is_functional_tensor(value):
                del holder[key]
