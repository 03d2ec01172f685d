"""The Python state for which a program was compiled, and whether it is unchanged."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import torch

from ..data.containers import by_base, contents, length
from ..data.unchanged import Unchanged, is_a_word, unchanged
from .reach import MISSING, Read, is_plain

_contents = operator.attrgetter("cell_contents")
_requires_grad = operator.attrgetter("requires_grad")
#: up to how many changed dicts are compared read by read; and after how many larger changes a dict is always compared,
#: by columns
_FEW, _OFTEN = 16, 3


class StateGuard:
    """Checks that all values that were read are unchanged: objects by identity, plain values by equality.

    It runs at every call. After the first call for which all reads were compared, version numbers tell whether dicts
    and classes of objects have changed (`Unchanged`), and only the reads of a changed dict are compared again. Other
    reads are compared in columns. If a column differs, all reads are compared one by one: an equal number in another
    object is no change, nor is a new attribute that no code names.

    Args:
        reads: the values that were read.
        names: all names that the code may read.
        tensors: tensors whose `requires_grad` is compared.
        marks: gives the settings of modules for which the program was compiled.
        count: a number that increases when any setting changes.
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
        self._changes: Counter[int] = (
            Counter()
        )  # by dict, how often it has changed together with many others
        self._take(list(reads))

    def _take(self, reads: list[Read]) -> None:
        self.reads, self._all = reads, _Columns(reads)
        self._versioned: _Versioned | None = None
        self._tells = True

    def holds(self) -> bool:
        """Whether the program is valid for a call now."""
        versioned = self._versioned
        if versioned is not None and not versioned.unchanged.same():
            found = versioned.changed()
            if found is None or len(found) > _FEW:
                self._changes.update(list(found or ()))  # of a mapping, it would add the values
                versioned = self._versioned = None
            elif not all(self._is_as(read, now(read)) for read in chain(*found.values())):
                return False
            else:
                versioned.take()
        if versioned is not None:
            return (versioned.others.same() and self._settings_same()) or self._equal()
        if not self._all_same():
            return self._equal()
        if self._tells:
            versioned = _Versioned.make(self.reads, self._changes)
            self._tells = versioned is not None
            self._versioned = (
                versioned if self._all_same() else None
            )  # nothing changed before the version numbers were read
        return True

    def _all_same(self) -> bool:
        return self._all.same() and self._settings_same()

    def _settings_same(self) -> bool:
        flags = [*map(_requires_grad, self.tensors)]
        return flags == self._flags and self._count() == self._counted

    def _equal(self) -> bool:
        """Compare all reads one by one. Equal values replace the old ones for the next call."""
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
        """The first difference as text; None if there is none."""
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
        if read.kind == "names":  # a new name is no change, unless the code may read it
            differ = value ^ read.value
            return not differ if read.key is True else self.names.isdisjoint(differ)
        if read.kind == "hooks":
            return bool(value == read.value)
        if read.kind in ("list", "dict"):
            pairs = zip(value, read.value)
            return len(value) == len(read.value) and all(same(a, b) for a, b in pairs)
        return same(value, read.value)


class _Versioned:
    """Reads of dicts, of objects' classes and of functions, for which words of CPython tell whether they may have
    changed.

    Args:
        reads: for each dict.
        others: the columns of all other reads.
    """

    def __init__(self, unchanged: Unchanged, reads: list[list[Read]], others: _Columns) -> None:
        self.unchanged, self._reads, self.others = unchanged, reads, others
        self._hooks = [[(r, _hooks_of(r)) for r in of if r.kind == "hooks"] for of in reads]
        self.take: Callable[[], None] = lambda: None

    @classmethod
    def make(cls, reads: Sequence[Read], changes: Mapping[int, int]) -> _Versioned | None:
        """Partition reads by how they are compared; None if version numbers are not available.

        changes: how often a dict has changed together with many others; one that has often done so is compared at each
        call.
        """
        dicts: dict[int, tuple[Any, list[Read]]] = {}
        objects: dict[int, Any] = {}
        attributes: list[tuple[Any, str]] = []
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
            elif read.kind == "attribute" and is_a_word(read.holder, read.key):
                attributes.append((read.holder, read.key))
            else:
                others.append(read)
        made = unchanged([d for d, _ in dicts.values()], [*objects.values()], attributes)
        return None if made is None else cls(made, [r for _, r in dicts.values()], _Columns(others))

    def changed(self) -> dict[int, list[Read]] | None:
        """The reads of dicts that have changed, by the ids of the dicts. `take` accepts the change. None if all reads
        must be compared."""
        found = self.unchanged.changed()
        if found is None:
            return None
        which, self.take = found
        if any(_hooks_of(r) is not hooks for n in which for r, hooks in self._hooks[n]):
            return None  # the version numbers belong to the dicts that were replaced
        return {id(self.unchanged.dicts[n]): self._reads[n] for n in which}


def _dicts_of(read: Read) -> Sequence[dict[Any, Any]]:
    """The dicts on which a read depends; empty if it depends on something else, too."""
    kind, holder = read.kind, read.holder
    if kind not in ("item", "slot", "names", "size", "keys", "dict", "hooks") or not isinstance(
        holder, dict
    ):
        return ()
    if kind != "hooks":
        return (holder,)
    hooks = _hooks_of(read)
    if read.value or not isinstance(
        hooks, dict
    ):  # the order of hooks counts, which does not change version numbers
        return ()
    return (holder,) if hooks is holder else (holder, hooks)


def _hooks_of(read: Read) -> Any:
    """The current dict of hooks."""
    return read.holder if read.key is None else read.holder.get(read.key)


def _tells_class(read: Read) -> bool:
    """Whether a read is the class of an object, or its `__dict__`."""
    of_object = read.kind == "class" or (read.kind == "attribute" and read.key == "__dict__")
    return of_object and type(read.holder).__dictoffset__ != 0


class _Columns:
    """Reads in columns, which `map` compares in C."""

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
        lists = by_kind.get("list", []) + by_kind.get("keys", [])
        dicts = by_kind.get("dict", [])
        self._lists = [by_base(r.holder) for r in lists]
        self._mappings = [r.holder for r in dicts]
        self._parts = [p for r in lists for p in r.value]
        self._parts += [p for r in dicts for p in r.value[: len(r.value) // 2]]
        self._parts += [p for r in dicts for p in r.value[len(r.value) // 2 :]]
        names, sizes = by_kind.get("names", []), by_kind.get("size", [])
        self._named = [r.holder for r in names]
        self._last = [*map(next, map(reversed, self._named), repeat(None))]
        self._sized = [*self._named, *(by_base(r.holder) for r in sizes), *self._lists]
        self._sized += map(by_base, self._mappings)
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
        self._comparisons = [*self._compared()]

    def same(self) -> bool:
        """Whether all reads are unchanged, by identity."""
        try:
            for same in self._comparisons:  # noqa: SIM110 (a generator costs more than its loop)
                if not same():
                    return False
            return True
        except (AttributeError, KeyError, ValueError, RuntimeError):
            return False  # removed, without a value, or changed by another thread

    def _compared(self) -> Iterator[Callable[[], bool]]:
        """The comparisons of the columns that are not empty."""
        same = operator.is_
        if self._dicts:
            yield lambda: all(map(same, map(dict.get, self._dicts, self._keys), self._values))
        if self._sized:
            yield lambda: [*map(len, self._sized)] == self._sizes
        if self._named:
            yield lambda: [*map(next, map(reversed, self._named), repeat(None))] == self._last
        if self._lacking:
            yield lambda: not any(map(hasattr, self._lacking, self._lacked))
        if self._owners:
            yield lambda: all(map(same, map(getattr, self._owners, self._attributes), self._held))
        if self._cells:
            yield lambda: all(map(same, map(_contents, self._cells), self._contents))
        if self._lists or self._mappings:
            yield lambda: all(map(same, self._all_parts(), self._parts))
        if self._typed:
            yield lambda: all(map(same, map(type, self._typed), self._types))
        if self._calls:
            yield lambda: [read() for read in self._calls] == self._given
        if self._unhooked:
            yield lambda: not any(self._unhooked)
        if self._empty:
            yield (
                lambda: (
                    not any(
                        any(chain.from_iterable(map(dicts_of, owns)))
                        for dicts_of, owns in self._empty
                    )
                )
            )
        if self._hooked:
            yield lambda: [*chain.from_iterable(map(now, self._hooked))] == self._hooks

    def _all_parts(self) -> Any:
        keys = chain.from_iterable(map(dict.keys, self._mappings))
        values = chain.from_iterable(map(dict.values, self._mappings))
        return chain(chain.from_iterable(self._lists), keys, values)


def _by_keys(empty: Sequence[Read]) -> list[tuple[Callable[[Any], Any], list[Any]]]:
    """The owners of empty dicts of hooks, grouped by the names of these dicts: a getter, and the owners. A dict may be
    replaced by another, so it is read from its owner."""
    keys: dict[int, list[str]] = {}
    owners = {id(r.holder): r.holder for r in empty}
    for read in empty:
        keys.setdefault(id(read.holder), []).append(read.key)
    groups: dict[tuple[str, ...], list[Any]] = {}
    for at, names in keys.items():
        groups.setdefault(tuple(names), []).append(owners[at])
    # with a single name, `itemgetter` returns no tuple
    return [(operator.itemgetter(*names, names[0]), owns) for names, owns in groups.items()]


def now(read: Read) -> Any:
    """The current value of a read."""
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
        return length(holder)
    if kind == "names":
        return frozenset(holder)
    if kind == "hooks":
        return tuple((holder if read.key is None else holder.get(read.key, {})).items())
    if kind == "dict":
        return (*dict.keys(holder), *dict.values(holder))
    return contents(holder)


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same object, or equal and plain."""
    if a is b:
        return True
    if type(a) is not type(b) or not is_plain(a):
        return False
    if isinstance(a, (tuple, frozenset)):
        return len(a) == len(b) and (all(map(same, a, b)) if isinstance(a, tuple) else bool(a == b))
    if isinstance(a, (float, complex)):  # 0.0 differs from -0.0, and nan equals nan
        return repr(a) == repr(b)
    return bool(a == b)
