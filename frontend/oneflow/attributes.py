"""Attributes of a graph.

Modules, and lists, tuples and dicts of them, are stored separately, and are views outside of `build()`. Names that
`Graph` defines are refused. A name that only modules have is an error that says what to use instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from gflow.errors import GraphAttributeError, GraphError
from gflow.tracing.context.location import here
from gflow.tracing.program.unwrapped import unwrapped

from .refused import of_graph
from .views import view_of

#: names that each graph has in its `__dict__`
_INSTANCE_NAMES = ("config", "_state")


class Attributes:
    """The part of `Graph` that stores attributes."""

    _own_names: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for key, value in vars(cls).items():
            method = callable(value) or hasattr(value, "__get__")
            if key in cls._own_names and (not method or key in _INSTANCE_NAMES):
                raise GraphError(_taken(cls.__name__, key, value))

    def __setattr__(self, key: str, value: Any) -> None:
        value = unwrapped(value)
        state: Any = self.__dict__.get("_state")
        special = key.startswith("__") and key.endswith("__") and modules_in(key, value)
        if special or (key in self._own_names and self._is_own(key, value)):
            raise GraphError(_taken(type(self).__name__, key, value))
        if state is not None:
            state.names[key] = None
            state.modules.pop(key, None)
        if state is None or not modules_in(key, value) or _has_setter(self, key):
            object.__setattr__(self, key, value)
        else:
            self.__dict__.pop(key, None)
            state.modules[key] = value
        if state is None or state.table is None or state.building:
            return
        if isinstance(value, (torch.nn.Module, torch.Tensor)):
            state.table = state.marks = None
            state.plans.clear()

    def _is_own(self, key: str, value: Any) -> bool:
        """Whether gflow defines a name, and no subclass overrides it."""
        if key == "build":  # a program may be chosen by assignment
            return not callable(value) or isinstance(value, torch.nn.Module)
        found = next((vars(c)[key] for c in type(self).__mro__ if key in vars(c)), None)
        return found is self._own_names[key]

    def __getattr__(self, key: str) -> Any:
        # attributes that are or contain modules: the modules themselves in `build()`, views elsewhere
        state: Any = self.__dict__.get("_state")
        if state is None or key not in state.modules:
            kind = type(self).__name__
            if (said := of_graph(key)) is not None:
                raise GraphAttributeError(f"{here()}: {kind}.{key} {said}.")
            raise AttributeError(f"{kind!r} object has no attribute {key!r}", name=key, obj=self)
        held = state.modules[key]
        return held if state.building else view_of(held, f"graph.{key}")

    def __delattr__(self, key: str) -> None:
        state: Any = self.__dict__.get("_state")
        if state is None or state.modules.pop(key, None) is None:
            object.__delattr__(self, key)
        elif state.table is not None:
            state.table = state.marks = None
            state.plans.clear()

    def __dir__(self) -> Iterable[str]:
        state: Any = self.__dict__.get("_state")
        return sorted({*object.__dir__(self), *(state.modules if state else ())})

    def _roots(self) -> dict[str, torch.nn.Module]:
        state: Any = self._checked()  # type: ignore[attr-defined]
        others = vars(self)
        roots: dict[str, torch.nn.Module] = {}
        for name in {**state.names, **others}:
            roots.update(modules_in(name, state.modules.get(name, others.get(name))))
        return roots


def own_names(graph: type) -> dict[str, Any]:
    """The names that a class of graphs defines, with their values in the class, and those of its instances."""
    found = {
        name: value
        for kind in reversed(graph.__mro__[:-1])
        for name, value in vars(kind).items()
        if not name.startswith("__")
    }
    return {**found, **dict.fromkeys(_INSTANCE_NAMES)}


def _taken(kind: str, key: str, value: Any) -> str:
    name = key.strip("_")
    instead = f"{name}_module" if modules_in(key, value) else f"my_{name}"
    return (
        f"{here()}: {kind}.{key} is a name of gflow's graphs (nn.Graph.{key}), so an attribute cannot have it; give it "
        f"another one, {instead} for example. Modules inside of modules can have any name."
    )


def modules_in(name: str, value: Any) -> dict[str, torch.nn.Module]:
    """The modules of an attribute by name: the attribute itself, or those in a list, tuple or dict."""
    if isinstance(value, torch.nn.Module):
        return {name: unwrapped(value)}
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif isinstance(value, Mapping):
        items = value.items()
    return {n: m for key, item in items for n, m in modules_in(f"{name}.{key}", item).items()}


def _has_setter(graph: object, key: str) -> bool:
    """Whether the class defines a property of this name with a setter."""
    return hasattr(getattr(type(graph), key, None), "__set__")
