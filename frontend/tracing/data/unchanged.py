"""Whether Python objects are as they were, told by numbers that CPython changes with them.

CPython gives a dict a new number at each change of its keys or values (PEP 509), no number twice. An object's header
tells its class and its `__dict__`. One call of NumPy reads these of thousands of objects; each lies in one cache line.
Asking for all of their items would take ten times as long, and several lines of each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gflow.runtime.steps.words import Words

#: whether dicts have such numbers. In CPython 3.13 assignments to attributes don't change them any more
AVAILABLE = sys.implementation.name == "cpython" and sys.version_info < (3, 13)
#: bytes from the beginning of an object to its class, and of a dict to its number
_CLASS, _NUMBER = 8, 24
#: of an object of a Python class to its `__dict__`; else the class tells
_OWN = -24


class Unchanged:
    """Dicts, and objects of which the class and the `__dict__` count, as they are when this is made.

    Raises:
        ValueError: an object's `__dict__` is not where CPython keeps it.
        TypeError: an object has none.
    """

    def __init__(self, dicts: Sequence[dict[Any, Any]], objects: Sequence[Any] = ()) -> None:
        self.dicts, self._objects = list(dicts), list(objects)
        # what is kept leaves its address to nothing else
        self._kinds, self._own = [*map(type, objects)], [*map(vars, objects)]
        at = [id(d) + _NUMBER for d in self.dicts]
        at += [id(held) + _CLASS for held in objects]
        at += [id(held) + _place_of_dict(kind) for held, kind in zip(objects, self._kinds)]
        self._words = Words(np.array(at, np.int64), 8)
        self._take(self._words.read())
        headers = [*map(id, self._kinds), *map(id, self._own)]
        if self._was[len(self.dicts) :].tolist() != headers:
            raise ValueError("an object has its __dict__ elsewhere")

    def same(self) -> bool:
        """Whether nothing has changed since this was made, or since `changed` was taken."""
        return bool(self._words.read().tobytes() == self._bytes)

    def changed(self) -> tuple[list[int], Callable[[], None]] | None:
        """The numbers of the dicts that have changed, and what takes them as they were found from now on; None if an
        object has another class or another `__dict__`."""
        now = self._words.read()
        which = np.flatnonzero(now != self._was)
        if len(which) and which[-1] >= len(self.dicts):
            return None
        return which.tolist(), partial(self._take, now)

    def _take(self, now: Any) -> None:
        self._was, self._bytes = now, now.tobytes()


def _place_of_dict(kind: type) -> int:
    offset = kind.__dictoffset__
    return offset if offset > 0 else _OWN


def unchanged(dicts: Sequence[dict[Any, Any]], objects: Sequence[Any] = ()) -> Unchanged | None:
    """What tells whether these are as they are now; None where this Python cannot tell by numbers."""
    if not AVAILABLE or not (dicts or objects):
        return None
    try:
        return Unchanged(dicts, objects)
    except (ValueError, TypeError):  # of no __dict__
        return None
