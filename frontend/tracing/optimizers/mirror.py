"""Containers that stand for an optimizer's own while its step is traced, and remember what was read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..data.places import MISSING


class Seen:
    """What was read of one container. `keys`: those asked for, there or not; `whole`: its size or all of
    its keys."""

    def __init__(self) -> None:
        self.keys: set[Any] = set()
        self.whole = False


class SeenDict(dict[Any, Any]):
    """A dict that remembers which of its keys were read."""

    def __init__(self, items: Any = (), make: Callable[[], Any] | None = None) -> None:
        super().__init__(items)
        self.seen = Seen()
        self.default_factory = make

    def __getitem__(self, key: Any) -> Any:
        self.seen.keys.add(key)
        return super().__getitem__(key)

    def __missing__(self, key: Any) -> Any:
        if self.default_factory is None:
            raise KeyError(key)
        value = self.default_factory()
        super().__setitem__(key, value)
        return value

    def __contains__(self, key: Any) -> bool:
        self.seen.keys.add(key)
        return super().__contains__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """dict.get; the key counts as read."""
        self.seen.keys.add(key)
        return super().get(key, default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """dict.setdefault; the key counts as read."""
        self.seen.keys.add(key)
        return super().setdefault(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        """dict.pop; the key counts as read."""
        self.seen.keys.add(key)
        return super().pop(key, *default)

    def popitem(self) -> Any:
        """dict.popitem; every key counts as read."""
        self._all()
        return super().popitem()

    def _all(self) -> None:
        self.seen.whole = True
        self.seen.keys.update(dict.keys(self))

    def __len__(self) -> int:
        self.seen.whole = True
        return super().__len__()

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[Any]:
        self._all()
        return super().__iter__()

    def keys(self) -> Any:
        """dict.keys; every key counts as read."""
        self._all()
        return super().keys()

    def values(self) -> Any:
        """dict.values; every key counts as read."""
        self._all()
        return super().values()

    def items(self) -> Any:
        """dict.items; every key counts as read."""
        self._all()
        return super().items()

    def copy(self) -> Any:
        """A plain dict of the items; every key counts as read."""
        self._all()
        return dict(super().items())

    def __eq__(self, other: object) -> bool:
        self._all()
        return super().__eq__(other)

    def __reversed__(self) -> Iterator[Any]:
        self._all()
        return super().__reversed__()

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (dict, (self.copy(),))

    __hash__ = None  # type: ignore[assignment]


def plain(mirror: dict[Any, Any]) -> dict[Any, Any]:
    """What a mirror holds, without a note that it was read."""
    return {key: dict.__getitem__(mirror, key) for key in dict.keys(mirror)}


@contextlib.contextmanager
def watched(objects: list[Any]) -> Iterator[dict[int, set[str]]]:
    """While active, the names of attributes that are read of each object, by its id."""
    seen: dict[int, set[str]] = {id(o): set() for o in objects}
    originals = [(o, type(o)) for o in objects]
    for obj, cls in originals:

        def read(self: Any, name: str, cls: Any = cls) -> Any:
            seen[id(self)].add(name)
            return cls.__getattribute__(self, name)

        meta: Any = type(cls)
        _set_class(obj, meta(cls.__name__, (cls,), {"__getattribute__": read}))
    try:
        yield seen
    finally:
        for obj, cls in originals:
            _set_class(obj, cls)


def _set_class(obj: Any, cls: type) -> None:
    object.__dict__["__class__"].__set__(obj, cls)


def class_constant(obj: Any, name: str) -> tuple[type, Any] | None:
    """The class of `obj` that holds data under a name, and the data; None for methods and the like."""
    for cls in type(obj).__mro__:
        if name in vars(cls):
            value = vars(cls)[name]
            if callable(value) or hasattr(type(value), "__get__") or value is MISSING:
                return None
            return cls, value
    return None
