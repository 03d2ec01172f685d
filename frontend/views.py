"""Modules as attributes of a graph: `graph.model` outside of `build()`.

It answers as the module does, but for `state_dict()`: a graph's modules are a part of its state, and
OneFlow's documents have one way to save each. `graph.model.to(nn.Module)` is the module itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from .errors import GraphError
from .tracing.location import user_frame


class ModuleView:
    """Stands for a module of a graph. What is called on it is called on the module."""

    __slots__ = ("__weakref__", "_module", "_path")
    _module: torch.nn.Module
    _path: str

    def __init__(self, module: torch.nn.Module, path: str) -> None:
        object.__setattr__(self, "_module", module)
        object.__setattr__(self, "_path", path)

    @property
    def __class__(self) -> Any:  # `isinstance` asks for it
        return type(self._module)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        self._module.__class__ = kind

    def __getattr__(self, name: str) -> Any:
        return self._seen(getattr(self._module, name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, unwrapped(value))

    def __delattr__(self, name: str) -> None:
        delattr(self._module, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._module(*args, **kwargs)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """`to(nn.Module)` is the module, `to(nn.graph.GraphModule)` its settings; anything else is
        the module's own `to`."""
        return self._module.to(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """An error, unless it is called for the state dict of a module around it."""
        if args or "destination" in kwargs:
            return self._module.state_dict(*args, **kwargs)
        file, line = user_frame(2)
        path = self._path
        raise GraphError(
            f"{file}:{line}: {path} is a module of a graph, and has no state_dict() of its own. "
            "Call state_dict() on the module that the graph was given, which is "
            f"{path}.to(nn.Module), or graph.state_dict() for all that a run goes on from."
        )

    def _seen(self, value: Any, name: str) -> Any:
        return view(value, f"{self._path}.{name}") if isinstance(value, torch.nn.Module) else value

    # what Python looks up in the class

    def __getitem__(self, key: Any) -> Any:
        return self._seen(self._module[key], str(key))  # type: ignore[index]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._module[key] = unwrapped(value)  # type: ignore[index,operator]

    def __delitem__(self, key: Any) -> None:
        del self._module[key]  # type: ignore[attr-defined,operator]

    def __len__(self) -> int:
        return len(self._module)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._module)  # type: ignore[call-overload, no-any-return]

    def __contains__(self, item: Any) -> bool:
        return unwrapped(item) in self._module  # type: ignore[operator]

    def __bool__(self) -> bool:
        return bool(self._module)

    def __eq__(self, other: object) -> bool:
        return bool(self._module == unwrapped(other))

    def __hash__(self) -> int:
        return hash(self._module)

    def __repr__(self) -> str:
        return repr(self._module)

    def __dir__(self) -> list[str]:
        return dir(self._module)

    def __copy__(self) -> Any:
        return copy.copy(self._module)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._module, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return unwrapped, (self._module,)


def view(module: torch.nn.Module, path: str) -> Any:
    """The view of a module, or of that which a view stands for."""
    return ModuleView(unwrapped(module), path)


def unwrapped(value: Any) -> Any:
    """The module that a view stands for; anything else as it is."""
    return value._module if type(value) is ModuleView else value
