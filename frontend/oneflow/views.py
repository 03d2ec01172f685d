"""Modules as attributes of a graph: `graph.model` outside of `build()`, and lists, tuples and dicts of them.

A view forwards to its module, with two exceptions:

- `state_dict()` on its own is an error, since the graph's state dict contains those of its modules.
- `config` is the settings of the module, OneFlow's older name for them, unless the module has its own `config`.

`graph.model.to(nn.Module)` returns the module itself. Submodules of a view are views as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from gflow.errors import GraphError
from gflow.tracing.context.location import here
from gflow.tracing.program.graph_blocks import reached
from gflow.tracing.program.module_config import GraphModule, OlderSpelling, settings_of
from gflow.tracing.program.unwrapped import View, unwrapped


class ModuleView(View):
    """A view of a module of a graph. Method calls are forwarded to the module."""

    __slots__ = ()

    @property
    def __class__(self) -> Any:  # `isinstance` asks for it
        return type(self._held)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        self._held.__class__ = kind

    def __getattr__(self, name: str) -> Any:
        try:
            value = getattr(self._held, name)
        except AttributeError:
            if name != "config":
                raise
            return OlderSpelling(settings_of(self._held))
        if name in _LISTING:
            return _viewing(value, self._path)
        return self._seen(value, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._held, name, unwrapped(value))

    def __delattr__(self, name: str) -> None:
        delattr(self._held, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._held(*args, **kwargs)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """`to(nn.Module)` returns the module, `to(nn.graph.GraphModule)` its settings. Other arguments are forwarded
        to the module's `to`."""
        if args == (torch.nn.Module,) and not kwargs:
            return self._held
        if args == (GraphModule,) and not kwargs:
            reached(self._held, self._path)
        return self._held.to(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's part of the state dict of a module around it.

        Raises:
            GraphError: it is called on its own, without a `destination`.
        """
        if args or "destination" in kwargs:
            return self._held.state_dict(*args, **kwargs)
        path = self._path
        raise GraphError(
            f"{here()}: {path} is a module of a graph, and has no state_dict() of its own. "
            "Call state_dict() on the module that the graph was given, which is "
            f"{path}.to(nn.Module), or graph.state_dict() for all that a run goes on from."
        )

    def _seen(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            reached(value, f"{self._path}.{name}")
        return view(value, f"{self._path}.{name}") if isinstance(value, torch.nn.Module) else value

    # what Python looks up in the class

    def __getitem__(self, key: Any) -> Any:
        return self._seen(self._held[key], str(key))  # type: ignore[index]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._held[key] = unwrapped(value)  # type: ignore[index,operator]

    def __delitem__(self, key: Any) -> None:
        del self._held[key]  # type: ignore[attr-defined,operator]

    def __len__(self) -> int:
        return len(self._held)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        items: Iterable[Any] = iter(self._held)  # type: ignore[call-overload]
        return (self._seen(item, str(n)) for n, item in enumerate(items))

    def __contains__(self, item: Any) -> bool:
        return unwrapped(item) in self._held  # type: ignore[operator]

    def __bool__(self) -> bool:
        return bool(self._held)

    def __hash__(self) -> int:
        return hash(self._held)


#: methods that return modules
_LISTING = {
    "children",
    "get_submodule",
    "items",
    "modules",
    "named_children",
    "named_modules",
    "values",
}


def _viewing(method: Callable[..., Any], path: str) -> Callable[..., Any]:
    """A method that returns views of the modules that the module's method returns."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        if isinstance(found, torch.nn.Module):
            return view(found, f"{path}.{args[0]}" if args and args[0] else path)
        return (_view_of_item(item, path) for item in found)

    return call


def _view_of_item(item: Any, path: str) -> Any:
    if isinstance(item, torch.nn.Module):
        return view(item, path)
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], torch.nn.Module):
        name, module = item
        return name, view(module, f"{path}.{name}" if name else path)
    return item


class ContainerView(View):
    """A view of a list, tuple or dict of modules that is an attribute of a graph."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # `isinstance` asks for it
        return type(self._held)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._held, name)
        return _viewing(value, self._path) if name in _LISTING else value

    def get(self, key: Any, default: Any = None) -> Any:
        """As `dict.get`."""
        return view_of(self._held.get(key, default), f"{self._path}.{key}")

    def __getitem__(self, key: Any) -> Any:
        found = self._held[key]
        if isinstance(key, slice):
            return [view_of(x, f"{self._path}.{n}") for n, x in enumerate(found)]
        return view_of(found, f"{self._path}.{key}")

    def __setitem__(self, key: Any, value: Any) -> None:
        self._held[key] = unwrapped(value)

    def __delitem__(self, key: Any) -> None:
        del self._held[key]

    def __iter__(self) -> Iterator[Any]:
        return (view_of(x, f"{self._path}.{n}") for n, x in enumerate(self._held))

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, item: Any) -> bool:
        return unwrapped(item) in self._held

    def __add__(self, other: Any) -> Any:
        return self._held + unwrapped(other)

    def __radd__(self, other: Any) -> Any:
        return other + self._held

    def __iadd__(self, other: Any) -> Any:
        self._held += unwrapped(other)
        return self._held


def view(module: torch.nn.Module, path: str) -> Any:
    """The view of a module. A view of a view is that of its module."""
    return ModuleView(unwrapped(module), path)


def view_of(value: Any, path: str) -> Any:
    """The view of a module, or of a list, tuple or dict; other values unchanged."""
    if isinstance(value, torch.nn.Module):
        return view(value, path)
    if type(value) is tuple:
        return tuple([view_of(x, f"{path}.{n}") for n, x in enumerate(value)])
    if isinstance(value, (list, dict)):
        return ContainerView(unwrapped(value), path)
    return value
