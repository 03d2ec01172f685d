"""What Python's containers hold, whatever a class derived from one says: such a class may have an iterator of its own,
or a length that raises (`Irreps` of e3nn, a tuple)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

_SEQUENCES = (list, tuple, set, frozenset, deque)


def contents(holder: Any) -> tuple[Any, ...]:
    """The elements of a list, tuple, set or deque; of another object, what it gives."""
    base = _base_of(holder, *_SEQUENCES)
    return tuple(holder if base is None else base.__iter__(holder))


def length(holder: Any) -> int:
    """The number of elements of a container; of another object, its length."""
    base = _base_of(holder, dict, *_SEQUENCES)
    return len(holder) if base is None else base.__len__(holder)


class _ByBase:
    """A container of a derived class, with the elements and the length that its base has."""

    def __init__(self, holder: Any) -> None:
        self._holder = holder

    def __len__(self) -> int:
        return length(self._holder)

    def __iter__(self) -> Iterator[Any]:
        return iter(contents(self._holder))


def by_base(holder: Any) -> Any:
    """A container, or a view of it by its base if its class has methods of its own to list its elements."""
    base = _base_of(holder, dict, *_SEQUENCES)
    kind = type(holder)
    own = base and (
        kind.__len__ is not base.__len__
        or (base is not dict and kind.__iter__ is not base.__iter__)
    )
    return _ByBase(holder) if own else holder


def _base_of(holder: Any, *bases: type) -> Any:
    return next((b for b in bases if isinstance(holder, b)), None)
