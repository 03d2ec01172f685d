"""What views of a graph's modules stand for."""

from __future__ import annotations

from typing import Any


class View:
    """Stands for `_held`, under the name `_path`; see `views`."""

    __slots__ = ("__weakref__", "_held", "_path")
    _held: Any
    _path: str

    def __init__(self, held: Any, path: str) -> None:
        object.__setattr__(self, "_held", held)
        object.__setattr__(self, "_path", path)


def unwrapped(value: Any) -> Any:
    """The module, list or dict that a view stands for; anything else as it is."""
    return value._held if issubclass(type(value), View) else value
