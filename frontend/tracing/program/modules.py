"""The modules of a graph: their dotted names, parameters and buffers.

While `build()` runs, modules hold their own tensors, so that other threads can use them; `Rewrites` replaces these by
traced tensors in calls of PyTorch. Assignments of `build()` are undone at the end.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CellType
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from gflow.dialects.records import record
from gflow.errors import GraphTraceError

from ..context.location import here
from ..data.containers import contents
from ..data.unchanged import unchanged

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


@record
class ModuleTable:
    """All modules reachable from `roots`, each once."""

    roots: Mapping[str, torch.nn.Module]
    names: dict[int, str]
    modules: list[torch.nn.Module]
    slots: list[Slot]

    def __post_init__(self) -> None:
        # Columns for `is_current`, which runs at every call: `map` keeps the loops in C.
        held = [d for m in self.modules for d in (m._parameters, m._buffers)]
        entries = [(d, key, tensor) for d in held for key, tensor in d.items()]  # None, too
        object.__setattr__(self, "_columns", tuple(map(list, zip(*entries))) or ([], [], []))
        parameters = [s.tensor for s in self.slots if s.role == "parameter"]
        object.__setattr__(self, "_parameters", parameters)
        parents = [m._modules for m in self.modules]
        object.__setattr__(self, "_tree", (parents, _children(parents)))
        object.__setattr__(self, "_held", (held, [*map(tuple, held)]))
        object.__setattr__(self, "_kinds", {*map(type, self.modules)})
        # snapshots of the latest comparison of tensors and of modes, and these modes
        object.__setattr__(self, "_latest", [None, None, ()])

    def with_modules(self, roots: Mapping[str, torch.nn.Module]) -> ModuleTable:
        """The table extended by other modules."""
        return collect_modules(roots, self) if roots else self

    def is_current(self) -> bool:
        """Whether every parameter, buffer and submodule is the same, in the same order, and no module has more."""
        told, *_ = self._latest  # type: ignore[attr-defined]
        if not self.modules or (told is not None and told.same()):
            return True
        holders, keys, tensors = self._columns  # type: ignore[attr-defined]
        parents, children = self._tree  # type: ignore[attr-defined]
        held, keys_of = self._held  # type: ignore[attr-defined]
        told = unchanged([*held, *parents])  # taken before the comparison
        current = (
            all(map(operator.is_, map(dict.get, holders, keys), tensors))
            and _children(parents) == children
            and [*map(tuple, held)] == keys_of
        )
        self._latest[0] = told if current else None  # type: ignore[attr-defined]
        return current

    def modes(self) -> tuple[bool, ...]:
        """The train or eval mode of every module, and which parameters require gradients."""
        if not self.modules:
            return ()
        _, told, flags = self._latest  # type: ignore[attr-defined]
        if told is None or not told.same() or any(map(_finds_training, self._kinds)):  # type: ignore[attr-defined]
            told = unchanged([*map(vars, self.modules)], self.modules)
            flags = (*map(_training, self.modules),)
            self._latest[1:] = told, flags  # type: ignore[attr-defined]
        return (*flags, *map(_requires_grad, self._parameters))  # type: ignore[attr-defined]


def scripted_module(name: str) -> GraphTraceError:
    """The error for a module of `torch.jit.script`, `trace` or `load`."""
    return GraphTraceError(
        f"{here()}: {name} is a module of torch.jit, whose code and attributes are not Python's, so that a graph could "
        "not tell when they change. Use the module that it was made of; a function of torch.jit.script works."
    ).to_eager(f"{name} is a module of torch.jit, whose code and attributes are not Python's")


def _finds_training(kind: Any) -> bool:
    """Whether a class customizes the access to `training` of its instances."""
    return hasattr(kind, "training") or kind.__getattribute__ is not object.__getattribute__


def _children(parents: list[dict[str, Any]]) -> list[Any]:
    return [*itertools.chain.from_iterable(map(dict.values, parents))]


def collect_modules(
    roots: Mapping[str, torch.nn.Module], known: ModuleTable | None = None
) -> ModuleTable:
    """Collect the modules below `roots`; a module or tensor that is reachable by two names keeps the first. known: an
    existing table to extend.

    Raises:
        GraphTraceError: one is a module of `torch.jit`.
    """
    names: dict[int, str] = dict(known.names) if known else {}
    modules: list[torch.nn.Module] = [*known.modules] if known else []
    slots: list[Slot] = [*known.slots] if known else []
    for root_name, root in roots.items():
        for path, module in root.named_modules(prefix=root_name):
            if id(module) in names:
                continue
            if isinstance(module, torch.jit.ScriptModule):
                raise scripted_module(path)
            names[id(module)] = path
            modules.append(module)
            for role, holder in (("parameter", module._parameters), ("buffer", module._buffers)):
                for key, tensor in holder.items():
                    if tensor is not None:
                        slots.append(Slot(holder, key, tensor, f"{path}.{key}", role))
    return ModuleTable({**(known.roots if known else {}), **roots}, names, modules, slots)


class Assignment(NamedTuple):
    """A tensor that `build()` has put into a dict of attributes or buffers.

    Args:
        holder: the dict.
        key: its key there.
        value: the traced tensor.
    """

    holder: dict[Any, Any]
    key: Any
    value: torch.Tensor


@record
class Reached:
    """What `build()` reaches besides the graph's own modules.

    Args:
        modules: modules by name.
        holders: objects that may hold tensors, with names: dicts (of attributes, of globals), lists, sets and cells of
            closures.
        assigns: whether new tensors may be assigned to attributes after a call.
        assigned: attributes that had no tensor, or one of another shape or dtype, and get a new one after each call.
        lost: names of other places that had no tensor, and got a traced one, which is removed.
        refused: names of places whose assignment is no update of tensors, with the reason.
        owned: new tensors at places whose tensor shared memory with another one.
    """

    modules: Mapping[str, torch.nn.Module] = field(default_factory=dict)
    holders: Sequence[tuple[str, Any]] = ()
    assigns: bool = False
    assigned: list[Assignment] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    owned: list[torch.Tensor] = field(default_factory=list)


@contextlib.contextmanager
def kept_real(
    table: ModuleTable,
    reached: Reached,
    owner: object,
    changed: Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor | None],
    read: Callable[[torch.Tensor], bool],
    assigns: bool,
) -> Iterator[None]:
    """Remove traced tensors from all objects at the end, and restore their contents.

    Args:
        owner: the graph.
        changed: called with the name of a buffer, an attribute or an item that was assigned, its real tensor, and the
            traced one. Returns a tensor to put there instead, or None.
        read: whether `build()` has read a real tensor.
        assigns: whether the call may assign new tensors (`Reached.assigned`).
    """
    holders: list[tuple[str, Any]] = list(reached.holders)
    for module in table.modules:
        name = table.names[id(module)]
        parts = (vars(module), module._parameters, module._buffers)
        holders += [(name, part) for part in parts]
    if hasattr(owner, "__dict__"):
        holders.append(("graph", vars(owner)))
    unique = {id(holder): (name, holder) for name, holder in holders}
    before = [(name, holder, _contents(holder)) for name, holder in unique.values()]
    exchanged: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    places: dict[int, tuple[Any, Any]] = {}
    completed = False
    try:
        yield
        completed = True
    finally:
        for slot in table.slots:
            current = slot.holder.get(slot.key)
            if current is not slot.tensor:
                slot.holder[slot.key] = slot.tensor
                if current is not None and is_traced(current):
                    if assigns and _differ(slot.tensor, current):
                        reached.assigned.append(Assignment(slot.holder, slot.key, current))
                        continue
                    exchanged.append((slot.name, slot.tensor, current))
                elif completed:
                    reached.lost.append(slot.name)
        for name, holder, old in before:
            for key, now, then in _put_back(holder, old):
                path = f"{name}.{key}" if isinstance(key, str) else name
                fresh = not isinstance(then, torch.Tensor) or _differ(then, now)
                if assigns and completed and is_traced(now) and fresh and isinstance(holder, dict):
                    reached.assigned.append(Assignment(holder, key, now))
                elif isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor):
                    exchanged.append((path, then, now))
                    places[id(then)] = holder, key
                elif isinstance(then, (tuple, list, dict)) and any(map(read, _tensors(then))):
                    text = (
                        f"gives {path} a new {type(then).__name__} with tensors in it. Assign to tensors "
                        "(attributes of their own, or items of a list or dict that stays)"
                    )
                    reached.refused.append((path, text))
                elif completed:
                    reached.lost.append(path)
    updated = {id(tensor): name for name, tensor, _ in exchanged}
    for name, holder, old in before:
        for key, now in _moved(holder, old):
            if id(now) in updated:
                text = (
                    f"gives {updated[id(now)]} a new tensor, which a program writes into the old one, and keeps the "
                    f"old one as {name}.{key}. Keep a copy (.clone())"
                )
                reached.refused.append((f"{name}.{key}", text))
    reached.refused.extend(_parted(table, exchanged))
    for name, then, now in exchanged:
        own = changed(name, then, now)
        if own is not None and isinstance(places.get(id(then), (None,))[0], dict):
            holder, key = places[id(then)]
            dict.__setitem__(holder, key, own)
            reached.owned.append(own)


def _parted(
    table: ModuleTable, exchanged: Sequence[tuple[str, torch.Tensor, torch.Tensor]]
) -> Iterator[tuple[str, str]]:
    """Names under which a tensor is also stored that did not get the same new tensor, with error messages. exchanged:
    (name, the tensor, the new one)."""
    new: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor, now in exchanged:
        first, other = new.setdefault(id(tensor), (name, now))
        if other is not now:
            yield name, _two_names(name, first)
    names = {name for name, *_ in exchanged}
    for module in table.modules:
        for holder in (vars(module), module._parameters, module._buffers):
            for key, value in holder.items():
                path = f"{table.names[id(module)]}.{key}"
                if id(value) in new and path not in names:
                    yield path, _two_names(new[id(value)][0], path)


def _two_names(name: str, other: str) -> str:
    return (
        f"gives {name} a new tensor, which a program writes into the old one, and the old one is {other} as well. Make "
        "them two tensors (.clone()) before the call"
    )


def _differ(old: torch.Tensor, new: torch.Tensor) -> bool:
    return old.shape != new.shape or old.dtype != new.dtype


def is_traced(value: object) -> bool:
    """Whether this is a tensor of a trace."""
    return isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)


def _contents(holder: Any) -> Any:
    if isinstance(holder, CellType):
        try:
            return holder.cell_contents
        except ValueError:  # not assigned yet
            return None
    return dict(dict.items(holder)) if isinstance(holder, dict) else [*contents(holder)]


def give_up_traced(cached: Any) -> bool:
    """Clear the cache of a `functools.lru_cache` function if it contains a traced tensor. Returns whether it did."""
    found = any(map(_holds_traced, gc.get_referents(cached)))
    if found:
        cached.cache_clear()
    return found


def cached_tensors(cached: Any) -> Iterator[torch.Tensor]:
    """The tensors among the results that a `functools.lru_cache` function keeps."""
    for part in gc.get_referents(cached):
        yield from _tensors(part)


def _holds_traced(value: Any) -> bool:
    if isinstance(value, (tuple, list, dict)):
        return any(map(is_traced, tree_leaves(value)))
    return is_traced(value)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _moved(holder: Any, old: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    """The tensors from outside that were stored in an object."""
    if isinstance(holder, dict):
        for key, value in dict.items(holder):
            if isinstance(value, torch.Tensor) and old.get(key) is not value:
                yield key, value


def _put_back(holder: Any, old: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Undo the assignments of traced tensors to one object. Yields (key, traced, previous value)."""
    if isinstance(holder, dict):
        for key, value in list(dict.items(holder)):
            then = old.get(key)
            if value is not then and _holds_traced(value):
                if key in old:
                    dict.__setitem__(holder, key, then)
                else:
                    dict.__delitem__(holder, key)
                yield key, value, then
    elif isinstance(holder, CellType):
        value = _contents(holder)
        if value is not old and _holds_traced(value):
            holder.cell_contents = old
            yield None, value, old
    else:
        now = contents(holder)
        places = [n for n, value in enumerate(now) if _holds_traced(value)]
        if not places:
            return
        if isinstance(holder, (list, deque)) and len(now) == len(old):
            for n in places:
                holder[n] = old[n]
                yield n, now[n], old[n]
        else:
            left = [value for value in now if not _holds_traced(value)]
            holder.clear()
            (holder.update if isinstance(holder, set) else holder.extend)(left)
            yield None, now[places[0]], None
