"""Reads of containers, arrays, and objects that are no modules, functions or classes."""

from __future__ import annotations

import functools
import operator
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

from gflow.tracing.context.location import is_installed

from ..data.containers import contents, length
from .of_classes import is_graph, read_attribute, read_attributes, read_class
from .reach import MOST_ITEMS, Reach, is_plain, of_library
from .settings import (
    MOST_BYTES,
    MOST_BYTES_ONCE,
    checksum,
    is_array,
    is_constant,
    module_of,
    putting_back,
    value_of,
)

#: modules of the standard library whose objects hold values that are compared; other objects of libraries are not
#: inspected
_HOLDERS = (
    "argparse", "types", "collections", "concurrent", "configparser", "_thread", "threading", "queue", "weakref",
    "_weakrefset", "multiprocessing", "csv", "tempfile",
)  # fmt: skip
#: those whose objects store these values under private names
_WRAPPERS = (
    "collections", "concurrent", "configparser", "threading", "queue", "weakref", "_weakrefset", "multiprocessing",
    "csv", "tempfile",
)  # fmt: skip


def read_container(r: Reach, value: Any, path: str) -> None:
    """Items of a list, tuple, dict, set or deque; of a large one its length."""
    if isinstance(value, dict):
        # as a dict, since attribute access may import a library's submodules
        parts = (*dict.keys(value), *dict.values(value))
        named = [(f"{path}[{k!r}]", v) for k, v in dict.items(value) if not is_plain(v)]
    else:
        parts = contents(value)
        named = [(f"{path}[{n}]", v) for n, v in enumerate(parts) if not is_plain(v)]
    if len(parts) > MOST_ITEMS:
        r.add("size", value, None, length(value), path)
        return
    if not isinstance(value, (tuple, frozenset)):
        kind = "dict" if isinstance(value, dict) else "list"
        r.add(kind, value, None, parts, path)
        if isinstance(value, OrderedDict):  # it has an order of its own
            order = Order(value)
            r.add("list", order, None, tuple(order), path)
        r.reached.append(value)
    for name, part in named:
        r.visit(part, name)
    if isinstance(value, defaultdict):
        r.visit(value.default_factory, f"{path}.default_factory")
    if type(value) not in (list, tuple, dict, set, frozenset, deque):
        read_attributes(r, value, path, False)
        read_class(r, type(value), path)


def read_object(r: Reach, value: Any, path: str) -> None:
    """An object of any other kind: what is read of it depends on who wrote its class."""
    kind = type(value)
    root = module_of(kind).partition(".")[0]
    if isinstance(value, threading.local):
        _of_threads(r, value, path)
        return
    if isinstance(value, BaseException):
        read_attribute(r, value, "args", f"{path}.args")
    if isinstance(value, weakref.WeakSet):
        r.add("call", value.__len__, None, len(value), path)
    if root == "torch" and not is_graph(value):
        _stateful(r, value, path)
        return
    if of_library(module_of(kind)) and root not in _HOLDERS and not is_graph(value):
        _public(r, value, path)
        return
    r.reached.append(value)
    home = sys.modules.get(module_of(kind))
    if is_installed(getattr(home, "__dict__", {}).get("__file__") or ""):
        _public(r, value, path)
    # a class with its own attribute access may return anything
    computed = hasattr(kind, "__getattr__") and not is_graph(value)
    computed |= any(_wraps(base) for base in kind.__mro__)
    read_attributes(r, value, path, computed or r.computed_by_user)
    r.add("class", value, None, kind, path)
    read_class(r, kind, path)


def _public(r: Reach, value: Any, path: str) -> None:
    """Values and items in public attributes of a library's object, and in private containers of some objects of
    the standard library, such as the callbacks of `contextlib.ExitStack`."""
    own = getattr(value, "__dict__", None)
    standard = module_of(type(value)).partition(".")[0] in sys.stdlib_module_names
    for name, part in list(own.items()) if r.closely and type(own) is dict else []:
        where = f"{path}.{name}"
        if name.startswith("_") and (not standard or "cache" in name or is_plain(part)):
            continue
        if is_plain(part):
            r.add("item", own, name, part, where)
        elif type(part) in (list, set, deque) and len(part) <= MOST_ITEMS:
            r.add("list", part, None, tuple(part), where)
        elif type(part) is dict and len(part) <= MOST_ITEMS:
            r.add("dict", part, None, (*part.keys(), *part.values()), where)


def _stateful(r: Reach, value: Any, path: str) -> None:
    """An object of PyTorch that is no tensor and no module, such as an optimizer, its schedule, a distribution."""
    for base in type(value).__mro__:
        for name, part in vars(base).items():
            part = part.fget if isinstance(part, property) else part
            if isinstance(part, FunctionType) and name in r.names:
                r.codes.setdefault(part.__code__, part.__globals__)
    r.reached.append(value)
    read_attributes(r, value, path, False)


def _of_threads(r: Reach, value: threading.local, path: str) -> None:
    """Thread-local attributes."""
    r.reached.append(value)
    names = None if r.computed_by_user else frozenset(r.names)
    held = _names_of_thread(value, names)
    read = functools.partial(_names_of_thread, value, names)
    r.add("call", read, functools.partial(_forget, value, read, held), held, path)
    for name in held:
        read_attribute(r, value, name, f"{path}.{name}")
    read_class(r, type(value), path)


def read_array(r: Reach, value: Any, path: str, size: int) -> None:
    """Memory that is compared by its bytes, unless it is too large."""
    if is_array(value):
        r.arrays.append((path, value))
        if value.dtype == object and value.size <= MOST_ITEMS:
            objects = Elements(value)
            r.add("list", objects, None, tuple(objects), path)
            for n, part in enumerate(objects):
                r.visit(part, f"{path}[{n}]")
    if size <= MOST_BYTES or (r.closely and size <= MOST_BYTES_ONCE):
        read = value_of(value) if size <= MOST_BYTES else functools.partial(checksum, value)
        assert read is not None
        r.add("call", read, putting_back(value), read(), path)
    if size > MOST_BYTES and not is_constant(value):
        r.large.append((path, size))


def read_getter(r: Reach, value: Any, path: str) -> None:
    """An object that reads attributes of other objects by names that it stores."""
    made, parts = value.__reduce__()
    if isinstance(made, functools.partial):  # with keywords
        r.visit(made.keywords, path)
        parts = (*made.args, *parts)
    names = parts if isinstance(value, operator.attrgetter) else parts[:1]
    r.asked.update(part for name in names for part in name.split("."))
    r.visit(parts, path)


def _wraps(kind: type) -> bool:
    module = module_of(kind)
    return module.partition(".")[0] in _WRAPPERS and module != "collections.abc"


class _Listed:
    """What an object holds, compared as a list. It is restored elsewhere, so `clear` and `extend` do nothing."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        pass

    def extend(self, parts: Iterable[Any]) -> None:
        pass


class Order(_Listed):
    """The keys of an ordered dict, by which their order can be restored."""

    def __iter__(self) -> Iterator[Any]:
        return iter(OrderedDict.keys(self.held))

    def extend(self, parts: Iterable[Any]) -> None:
        for key in parts:
            OrderedDict.move_to_end(self.held, key)


class Elements(_Listed):
    """The elements of a NumPy array of objects."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.held.flat)


def _names_of_thread(value: threading.local, names: frozenset[str] | None) -> frozenset[str]:
    """The attributes of a `threading.local` in this thread that the code names."""
    return frozenset(vars(value) if names is None else vars(value).keys() & names)


def _forget(
    value: threading.local, read: Callable[[], frozenset[str]], kept: frozenset[str]
) -> None:
    """Remove the attributes of a `threading.local` that were added since."""
    for name in read() - kept:
        delattr(value, name)
