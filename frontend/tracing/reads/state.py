"""The Python state that a program was compiled for, and whether it is still so."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import torch

from ..data.unchanged import Unchanged, unchanged
from .reads import MISSING, Read, is_plain

_contents = operator.attrgetter("cell_contents")
_requires_grad = operator.attrgetter("requires_grad")
#: dicts of which what is read is compared again one by one; where more change, and that often, by columns
_FEW, _OFTEN = 16, 3


class StateGuard:
    """Holds while all that was read is what it was: objects by identity, plain values by value.

    It runs at every call. From the first call on for which all reads were compared, numbers tell whether dicts and
    classes of objects have changed (`Unchanged`); what was read of a dict that has is compared again. Other reads lie
    in columns. Where something differs there, all is looked at one by one: an equal number in another object is
    the same, and a new attribute that no code names is none of ours.

    names: all that the code may read. tensors: those of which `requires_grad` counts. marks: gives what
    settings of modules the program was compiled for; count: grows when any setting changes.
    """

    def __init__(
        self,
        reads: Iterable[Read],
        names: Iterable[str],
        tensors: Sequence[torch.Tensor],
        marks: Callable[[], Any],
        count: Callable[[], int],
    ) -> None:
        self.names, self.tensors = frozenset(names), list(tensors)
        self._flags = [t.requires_grad for t in self.tensors]
        self._marks, self._count = marks, count
        self._marked, self._counted = marks(), count()
        self._changes: Counter[int] = Counter()  # of dicts, where many have changed at once
        self._take(list(reads))

    def _take(self, reads: list[Read]) -> None:
        self.reads, self._all = reads, _Columns(reads)
        self._told: _Told | None = None
        self._tells = True

    def holds(self) -> bool:
        """Whether a call now runs what was compiled."""
        told = self._told
        if told is not None and not told.unchanged.same():
            found = told.changed()
            if found is None or len(found) > _FEW:
                self._changes.update(found or ())
                told = self._told = None
            elif not all(self._is_as(read, now(read)) for read in chain(*found.values())):
                return False
            else:
                told.take()
        if told is not None:
            return (told.others.same() and self._settings_same()) or self._equal()
        if not self._all_same():
            return self._equal()
        if self._tells:
            told = _Told.make(self.reads, self._changes)
            self._tells = told is not None
            self._told = told if self._all_same() else None  # as it is with these numbers
        return True

    def _all_same(self) -> bool:
        return self._all.same() and self._settings_same()

    def _settings_same(self) -> bool:
        flags = [*map(_requires_grad, self.tensors)]
        return flags == self._flags and self._count() == self._counted

    def _equal(self) -> bool:
        """Look at each. What is equal now is taken for the next call."""
        if [*map(_requires_grad, self.tensors)] != self._flags or self._marks() != self._marked:
            return False
        renewed = []
        for read in self.reads:
            value = now(read)
            if not self._is_as(read, value):
                return False
            renewed.append(read._replace(value=value))
        self._counted = self._count()
        self._take(renewed)
        return True

    def first_change(self) -> str | None:
        """What differs, in words; None if nothing does."""
        for read in self.reads:
            value = now(read)
            if value is MISSING and read.value is not MISSING:
                return f"{read.path} is gone"
            if not self._is_as(read, value):
                if is_plain(value) and is_plain(read.value) and read.kind in ("item", "cell"):
                    return f"{read.path} is {value!r}, and was {read.value!r}"
                return f"{read.path} has changed"
        return None

    def _is_as(self, read: Read, value: Any) -> bool:
        if read.kind == "names":  # new ones, unless the code may read them
            differ = value ^ read.value
            return not differ if read.key is True else self.names.isdisjoint(differ)
        if read.kind == "hooks":
            return bool(value == read.value)
        if read.kind in ("list", "dict"):
            pairs = zip(value, read.value)
            return len(value) == len(read.value) and all(same(a, b) for a, b in pairs)
        return same(value, read.value)


class _Told:
    """Reads of dicts and of objects' classes, of which numbers tell whether they may have changed.

    reads: by dict. others: the columns of all other reads.
    """

    def __init__(self, unchanged: Unchanged, reads: list[list[Read]], others: _Columns) -> None:
        self.unchanged, self._reads, self.others = unchanged, reads, others
        self._hooks = [[(r, _hooks_of(r)) for r in of if r.kind == "hooks"] for of in reads]
        self.take: Callable[[], None] = lambda: None

    @classmethod
    def make(cls, reads: Sequence[Read], changes: Mapping[int, int]) -> _Told | None:
        """changes: how often a dict has changed with many others; one that has often is compared at each call."""
        dicts: dict[int, tuple[Any, list[Read]]] = {}
        objects: dict[int, Any] = {}
        others: list[Read] = []
        for read in reads:
            held = _dicts_of(read)
            if any(changes[id(d)] >= _OFTEN for d in held):
                held = ()
            if held:
                for d in held:
                    dicts.setdefault(id(d), (d, []))[1].append(read)
            elif _tells_class(read):
                objects[id(read.holder)] = read.holder
            else:
                others.append(read)
        made = unchanged([d for d, _ in dicts.values()], [*objects.values()])
        return None if made is None else cls(made, [r for _, r in dicts.values()], _Columns(others))

    def changed(self) -> dict[int, list[Read]] | None:
        """What is read of dicts that have changed, by their ids, until `take`; None if all is to be looked at."""
        found = self.unchanged.changed()
        if found is None:
            return None
        which, self.take = found
        if any(_hooks_of(r) is not hooks for n in which for r, hooks in self._hooks[n]):
            return None  # numbers are those of the dicts that were there
        return {id(self.unchanged.dicts[n]): self._reads[n] for n in which}


def _dicts_of(read: Read) -> Sequence[dict[Any, Any]]:
    """The dicts that a read is of; nothing if it is of something else, too."""
    kind, holder = read.kind, read.holder
    if kind not in ("item", "slot", "names", "size", "dict", "hooks") or not isinstance(
        holder, dict
    ):
        return ()
    if kind != "hooks":
        return (holder,)
    hooks = _hooks_of(read)
    if read.value or not isinstance(
        hooks, dict
    ):  # the order of hooks counts, of which numbers don't tell
        return ()
    return (holder,) if hooks is holder else (holder, hooks)


def _hooks_of(read: Read) -> Any:
    """The dict of hooks that is there now."""
    return read.holder if read.key is None else read.holder.get(read.key)


def _tells_class(read: Read) -> bool:
    """Whether a read is of the class of an object, or of its `__dict__`."""
    of_object = read.kind == "class" or (read.kind == "attribute" and read.key == "__dict__")
    return of_object and type(read.holder).__dictoffset__ != 0


class _Columns:
    """Reads in columns, which `map` goes through without a line of Python."""

    def __init__(self, reads: Iterable[Read]) -> None:
        by_kind: dict[str, list[Read]] = {}
        for read in reads:
            by_kind.setdefault(read.kind, []).append(read)
        items = by_kind.get("item", []) + by_kind.get("slot", [])
        self._dicts = [r.holder for r in items]
        self._keys = [r.key for r in items]
        self._values = [r.value for r in items]
        attributes = by_kind.get("attribute", [])
        self._owners = [r.holder for r in attributes]
        self._attributes = [r.key for r in attributes]
        self._held = [r.value for r in attributes]
        self._cells = [r.holder for r in by_kind.get("cell", [])]
        self._contents = [r.value for r in by_kind.get("cell", [])]
        lists, dicts = by_kind.get("list", []), by_kind.get("dict", [])
        self._lists = [r.holder for r in lists]
        self._mappings = [r.holder for r in dicts]
        self._parts = [p for r in lists for p in r.value]
        self._parts += [p for r in dicts for p in r.value[: len(r.value) // 2]]
        self._parts += [p for r in dicts for p in r.value[len(r.value) // 2 :]]
        names, sizes = by_kind.get("names", []), by_kind.get("size", [])
        self._named = [r.holder for r in names]
        self._last = [*map(next, map(reversed, self._named), repeat(None))]
        self._sized = self._named + [r.holder for r in sizes] + self._lists + self._mappings
        self._sizes = [len(r.value) for r in names] + [r.value for r in sizes]
        self._sizes += [len(r.value) for r in lists] + [len(r.value) // 2 for r in dicts]
        missing = by_kind.get("missing", [])
        self._lacking, self._lacked = [r.holder for r in missing], [r.key for r in missing]
        classes, calls = by_kind.get("class", []), by_kind.get("call", [])
        self._typed, self._types = [r.holder for r in classes], [r.value for r in classes]
        self._calls, self._given = [r.holder for r in calls], [r.value for r in calls]
        hooks = by_kind.get("hooks", [])
        self._unhooked = [r.holder for r in hooks if not r.value and r.key is None]
        self._hooked = [r for r in hooks if r.value]
        self._hooks = [part for r in hooks for part in r.value]
        self._empty = _by_keys([r for r in hooks if not r.value and r.key is not None])

    def same(self) -> bool:
        """Whether all is as it was, by identity."""
        same = operator.is_
        try:
            return (
                all(map(same, map(dict.get, self._dicts, self._keys), self._values))
                and [*map(len, self._sized)] == self._sizes
                and [*map(next, map(reversed, self._named), repeat(None))] == self._last
                and not any(map(hasattr, self._lacking, self._lacked))
                and all(map(same, map(getattr, self._owners, self._attributes), self._held))
                and all(map(same, map(_contents, self._cells), self._contents))
                and all(map(same, self._all_parts(), self._parts))
                and all(map(same, map(type, self._typed), self._types))
                and [read() for read in self._calls] == self._given
                and not any(self._unhooked)
                and not any(
                    any(chain.from_iterable(map(dicts_of, owns))) for dicts_of, owns in self._empty
                )
                and (
                    not self._hooked
                    or [*chain.from_iterable(map(now, self._hooked))] == self._hooks
                )
            )
        except (AttributeError, KeyError, ValueError, RuntimeError):
            return False  # gone, empty, changed by another thread

    def _all_parts(self) -> Any:
        keys = chain.from_iterable(map(dict.keys, self._mappings))
        values = chain.from_iterable(map(dict.values, self._mappings))
        return chain(chain.from_iterable(self._lists), keys, values)


def _by_keys(empty: Sequence[Read]) -> list[tuple[Callable[[Any], Any], list[Any]]]:
    """The owners of dicts of hooks that are empty, by the names of these: what gets them, and the owners. A dict may
    be replaced by another, so its owner is asked."""
    keys: dict[int, list[str]] = {}
    owners = {id(r.holder): r.holder for r in empty}
    for read in empty:
        keys.setdefault(id(read.holder), []).append(read.key)
    groups: dict[tuple[str, ...], list[Any]] = {}
    for at, names in keys.items():
        groups.setdefault(tuple(names), []).append(owners[at])
    # of one name alone, `itemgetter` gives no tuple
    return [(operator.itemgetter(*names, names[0]), owns) for names, owns in groups.items()]


def now(read: Read) -> Any:
    """What would be read now."""
    kind, holder = read.kind, read.holder
    if kind in ("item", "slot"):
        return (
            holder.get(read.key, MISSING)
            if type(holder) is dict
            else dict.get(holder, read.key, MISSING)
        )
    if kind in ("attribute", "missing"):
        return getattr(holder, read.key, MISSING)
    if kind == "cell":
        try:
            return holder.cell_contents
        except ValueError:
            return MISSING
    if kind == "class":
        return type(holder)
    if kind == "call":
        return holder()
    if kind == "size":
        return len(holder)
    if kind == "names":
        return frozenset(holder)
    if kind == "hooks":
        return tuple((holder if read.key is None else holder.get(read.key, {})).items())
    if kind == "dict":
        return (*dict.keys(holder), *dict.values(holder))
    return tuple(holder)


def same(a: Any, b: Any) -> bool:
    """Whether two values are one object, or equal and plain."""
    if a is b:
        return True
    if type(a) is not type(b) or not is_plain(a):
        return False
    if isinstance(a, (tuple, frozenset)):
        return len(a) == len(b) and (all(map(same, a, b)) if isinstance(a, tuple) else bool(a == b))
    if isinstance(a, (float, complex)):  # 0.0 is not -0.0, and nan is nan
        return repr(a) == repr(b)
    return bool(a == b)
