"""Detects changes of Python objects by version numbers of CPython.

CPython gives a dict a new, unique version number at each change of its keys or values (PEP 509). An object's header
has pointers to its class and its `__dict__`, a function has pointers to its code and defaults, and a tensor to its
hooks. One call of NumPy reads these words of thousands of objects. Comparing all of their items would take ten times as
long, and read several cache lines of each.
"""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import FunctionType
from typing import Any

import numpy as np
import torch

from gflow.runtime.steps.words import Words

#: whether dicts have version numbers. From CPython 3.13 on, assignments to attributes don't change them
AVAILABLE = sys.implementation.name == "cpython" and sys.version_info < (3, 13)
#: whose attributes are words; not subclasses, which may have attributes of their own
_Owner = FunctionType | torch.Tensor
_KINDS: dict[type, str] = {
    FunctionType: "function",
    torch.Tensor: "tensor",
    torch.nn.Parameter: "tensor",
}
#: byte offsets of an object's class, and of a dict's version number
_CLASS, _NUMBER = 8, 24
#: byte offset of the `__dict__` of an object of a Python class; other classes have `__dictoffset__`
_OWN = -24


class Unchanged:
    """A snapshot of dicts, of the class and the `__dict__` of objects, and of attributes of functions and tensors.

    Args:
        attributes: functions and tensors, with names of attributes for which `is_a_word`.

    Raises:
        ValueError: an object's `__dict__` is not where CPython keeps it.
        TypeError: an object has no `__dict__`.
    """

    def __init__(
        self,
        dicts: Sequence[dict[Any, Any]],
        objects: Sequence[Any] = (),
        attributes: Sequence[tuple[_Owner, str]] = (),
    ) -> None:
        self.dicts, self._objects = list(dicts), list(objects)
        self._held = [(owner, getattr(owner, name)) for owner, name in attributes]
        # references keep the objects alive, so their addresses are not reused
        self._kinds, self._own = [*map(type, objects)], [*map(vars, objects)]
        at = [id(d) + _NUMBER for d in self.dicts]
        at += [id(held) + _CLASS for held in objects]
        at += [id(held) + _place_of_dict(kind) for held, kind in zip(objects, self._kinds)]
        at += [id(owner) + _places(_kind_of(owner))[name] for owner, name in attributes]
        self._words = Words(np.array(at, np.int64), 8)
        self._take(self._words.read())
        headers = [*map(id, self._kinds), *map(id, self._own)]
        headers += [_word_of(value) for _, value in self._held]
        if self._was[len(self.dicts) :].tolist() != headers:
            raise ValueError("an object has its __dict__ elsewhere")

    def same(self) -> bool:
        """Whether nothing has changed since the snapshot, or since the last accepted `changed`."""
        return bool(self._words.read().tobytes() == self._bytes)

    def changed(self) -> tuple[list[int], Callable[[], None]] | None:
        """The indices of the dicts that have changed, and a function that accepts their current versions as the new
        snapshot; None if an object has another class or `__dict__`, or a function or tensor another attribute."""
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


@cache
def _places(kind: str) -> dict[str, int]:
    """The byte offsets of attributes in a "function" or a "tensor", found in one."""

    owner: Any
    if kind == "function":
        names = ["__code__", "__defaults__", "__kwdefaults__", "__name__"]

        def probe(a: Any = (), *, b: Any = ()) -> None: ...

        owner, probe.__name__, probe.__qualname__ = probe, "a name", "another name"
    elif kind == "tensor":
        names = ["_backward_hooks", "_post_accumulate_grad_hooks"]
        owner = torch.empty(0, device="cpu", requires_grad=True)
        for name in names:
            setattr(owner, name, OrderedDict())
    else:
        return {}
    words = (ctypes.c_ssize_t * (type(owner).__basicsize__ // 8)).from_address(id(owner))
    found = {}
    for name in names:
        at = [8 * n for n, word in enumerate(words) if word == id(getattr(owner, name))]
        if len(at) == 1:
            found[name] = at[0]
    return found


def _kind_of(owner: Any) -> str:
    return _KINDS.get(type(owner), "")


def _word_of(value: Any) -> int:
    """What is in the word of an attribute: a null pointer for None."""
    return 0 if value is None else id(value)


def is_a_word(owner: Any, name: str) -> bool:
    """Whether an attribute is that of a function or a tensor, in a word whose place is known."""
    if not AVAILABLE or name not in _places(_kind_of(owner)):
        return False
    word = ctypes.c_ssize_t.from_address(id(owner) + _places(_kind_of(owner))[name]).value
    return word == _word_of(getattr(owner, name))


def unchanged(
    dicts: Sequence[dict[Any, Any]],
    objects: Sequence[Any] = (),
    attributes: Sequence[tuple[_Owner, str]] = (),
) -> Unchanged | None:
    """A snapshot of these objects (see `Unchanged`); None if this Python has no version numbers, or an object has no
    `__dict__`."""
    if not AVAILABLE or not (dicts or objects or attributes):
        return None
    try:
        return Unchanged(dicts, objects, attributes)
    except (ValueError, TypeError):  # an object has no __dict__
        return None
