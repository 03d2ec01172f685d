"""Containers that replace an optimizer's own while its step is traced, and record reads."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from gflow.errors import GraphTraceError
from gflow.tracing.context.location import is_user_code

from ..data.places import MISSING


def _is_open(cls: type) -> bool:
    """Whether attributes of a class can be set: a Python class, or a mutable one of C."""
    heap, immutable = 1 << 9, 1 << 8
    return cls.__flags__ & (heap | immutable) == heap


class Seen:
    """The reads of one container. `keys`: the keys that were looked up, existing or not; `whole`: whether its size or
    all of its keys were read."""

    def __init__(self) -> None:
        self.keys: set[Any] = set()
        self.whole = False


class SeenDict(dict[Any, Any]):
    """A dict that records which of its keys were read."""

    def __init__(
        self, items: Any = (), make: Callable[[], Any] | None = None, kind: type = dict
    ) -> None:
        super().__init__(items)
        self.seen = Seen()
        self.default_factory, self.kind = make, kind

    @property
    def stands_for(self) -> type:
        """The class of the dict that this one replaces."""
        return self.kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(self.kind, name):
            raise AttributeError(f"{self.kind.__name__!r} object has no attribute {name!r}")
        raise self._refused(f"{name}()")

    def _refused(self, name: str) -> GraphTraceError:
        return GraphTraceError(
            f"an optimizer's step() calls {name} of a {self.kind.__name__}, which a graph does not follow; it follows "
            "those of a plain dict."
        )

    def update(self, *args: Any, **kwargs: Any) -> None:
        """dict.update.

        Raises:
            GraphTraceError: for a `Counter`, whose `update` adds.
        """
        if self.kind is Counter:
            raise self._refused("update()")
        super().update(*args, **kwargs)

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

    def popitem(self, last: bool = True) -> Any:
        """dict.popitem; every key counts as read.

        Raises:
            GraphTraceError: the first item is popped (`OrderedDict`).
        """
        if not last:
            raise self._refused("popitem(last=False)")
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
    """The contents of a mirror, without recording a read."""
    return {key: dict.__getitem__(mirror, key) for key in dict.keys(mirror)}


@contextlib.contextmanager
def watched(objects: list[Any], where: str) -> Iterator[dict[int, set[str]]]:
    """While active, record the names of attributes that this thread reads, by the id of the object. The objects'
    classes stay the same (`type(self) is SGD`), except for their attribute access. where: the beginning of errors.

    Raises:
        GraphTraceError: the author's code reads `__dict__`, which allows unrecorded access to attributes.
    """
    seen: dict[int, set[str]] = {id(o): set() for o in objects}
    thread = threading.get_ident()
    own: list[tuple[type, Any]] = []
    for obj in objects:
        if not _is_open(type(obj)):  # all of its attributes
            seen[id(obj)].update(vars(obj))
    for cls in {type(o): None for o in objects if _is_open(type(o))}:
        plain = cls.__getattribute__

        def read(self: Any, name: str, plain: Any = plain) -> Any:
            if threading.get_ident() == thread and id(self) in seen:
                if name == "__dict__" and is_user_code(sys._getframe(1).f_code):
                    raise GraphTraceError(
                        f"{where}: step() asks for all attributes of {type(self).__name__} at once (__dict__, vars()); "
                        "a graph follows them one by one. Use self.name, getattr() and setattr()."
                    )
                seen[id(self)].add(name)
            return plain(self, name)

        own.append((cls, vars(cls).get("__getattribute__", MISSING)))
        type.__setattr__(cls, "__getattribute__", read)
    try:
        yield seen
    finally:
        for cls, before in own:
            if before is MISSING:
                type.__delattr__(cls, "__getattribute__")
            else:
                type.__setattr__(cls, "__getattribute__", before)


def class_constant(obj: Any, name: str) -> tuple[type, Any] | None:
    """The class of `obj` that has data under a name, and the data; None for methods and descriptors."""
    for cls in type(obj).__mro__:
        if name in vars(cls):
            value = vars(cls)[name]
            if callable(value) or hasattr(type(value), "__get__") or value is MISSING:
                return None
            return cls, value
    return None
