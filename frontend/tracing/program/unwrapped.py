"""The modules behind a graph's views of them."""

from __future__ import annotations

import copy
from typing import Any


class View:
    """Represents `_held`, under the name `_path`; see `views`."""

    __slots__ = ("__weakref__", "_held", "_path")
    _held: Any
    _path: str

    def __init__(self, held: Any, path: str) -> None:
        object.__setattr__(self, "_held", held)
        object.__setattr__(self, "_path", path)

    def __eq__(self, other: object) -> bool:
        return bool(self._held == unwrapped(other))

    def __repr__(self) -> str:
        return repr(self._held)

    def __dir__(self) -> list[str]:
        return dir(self._held)

    def __copy__(self) -> Any:
        return copy.copy(self._held)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._held, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return unwrapped, (self._held,)


def unwrapped(value: Any) -> Any:
    """The module, list or dict behind a view; any other value itself."""
    return value._held if issubclass(type(value), View) else value
