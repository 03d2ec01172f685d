"""Reads of attributes of objects, and of their classes."""

from __future__ import annotations

import abc
import functools
import inspect
from types import FunctionType, MemberDescriptorType
from typing import Any

import torch

from .reach import MISSING, Reach, of_library
from .settings import module_of

#: attributes of every class
_OF_CLASSES = {"__module__", "__qualname__", "__name__", "__doc__", "__dict__", "__class__"}
#: methods that run although no code names them, like those of Python's operators
_UNNAMED = {"forward", "build"}
#: special methods that change or create an object, and special attributes of classes
_CHANGING = {
    "__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__del__", "__reduce__",
    "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__", "__sizeof__", "__annotations__",
    "__dataclass_fields__", "__match_args__", "__slots__", "__weakref__",
}  # fmt: skip
#: special methods that run when an object or a subclass is created, or when the last reference to an object goes
_MAKING = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__del__"}
#: special methods that convert an object to text
_WRITTEN = {"__repr__", "__str__", "__format__"}
#: names whose use calls these
_WRITING = {"repr", "str", "format", "print", "f-string"}
#: attributes of functions and classes that describe them
DESCRIBING = {"__name__", "__qualname__", "__doc__"}
#: functions that ask an abstract class for the classes that are registered with it
_CLASSES = {"isinstance", "issubclass"}
#: the attribute by which `typing` marks protocols
_PROTOCOL = "_is_protocol"
#: types of attributes that a class returns as they are, or as their function; a class derived from one may compute
_STABLE = (FunctionType, property, staticmethod)
#: attributes of the class of graphs
_OF_GRAPHS = ("_state", "config", "_seen")


def read_attributes(r: Reach, value: Any, path: str, all_of_them: bool) -> None:
    """Attributes of an object, in its dict and in slots. all_of_them: also those that no code names."""
    own = getattr(value, "__dict__", None)
    if type(own) is dict:
        for name in list(own):
            if (all_of_them or name in r.names) and not (is_graph(value) and name in _OF_GRAPHS):
                r.item(own, name, f"{path}.{name}")
        r.add("names", own, all_of_them, frozenset(own), path)
        if value.__dict__ is own:
            r.add("attribute", value, "__dict__", own, f"{path}.__dict__")
    kind: Any = type(value)
    for name, hidden in _slots(kind):
        if not (all_of_them or name in r.names):
            continue
        if hidden is None:
            read_attribute(r, value, name, f"{path}.{name}")
        else:
            read = functools.partial(_in_slot, hidden, value)
            part = read()
            r.add(
                "call",
                read,
                functools.partial(_put_in_slot, hidden, value, part),
                part,
                f"{path}.{name}",
            )
            r.visit(part, f"{path}.{name}")


def read_attribute(r: Reach, value: Any, name: str, path: str) -> None:
    """An attribute that is not stored in a dict, or not in a permanent one; it may be missing."""
    part = getattr(value, name, MISSING)
    if part is MISSING:
        r.add("missing", value, name, part, path)
    else:
        r.add("attribute", value, name, part, path)
        r.visit(part, path)


def read_constructor(r: Reach, kind: type, path: str) -> None:
    """The methods that run when code creates an object of a class. Modules are created before."""
    if issubclass(kind, torch.nn.Module):
        return
    for base in kind.__mro__:
        if not of_library(module_of(base)):
            if "__del__" in vars(base):
                r.finalized.append(path)
            for name in _MAKING & vars(base).keys():
                r.visit(vars(base)[name], f"{path}.{name}", root=True)


def _runs(r: Reach, name: str) -> bool:
    """Whether a method may run although no code names it."""
    if name in _WRITTEN:
        return not _WRITING.isdisjoint(r.names)
    if name in ("__setattr__", "__delattr__"):
        return r.assigning
    special = name.startswith("__") and name.endswith("__") and name not in _CHANGING
    return special or name in _UNNAMED


def read_class(r: Reach, kind: type, path: str) -> None:
    """Attributes of a class and its bases, outside of libraries, and the methods that run without being named."""
    if ("class", id(kind)) in r.seen:
        return
    r.seen["class", id(kind)] = kind
    if type(kind) is not type:
        read_class(r, type(kind), f"type of {path}")
    done: set[str] = set()
    r.add("attribute", kind, "__mro__", kind.__mro__, kind.__qualname__)
    for name in () if of_library(module_of(kind)) else DESCRIBING & r.own_names:
        r.add("attribute", kind, name, getattr(kind, name), f"{kind.__qualname__}.{name}")
    if _is_protocol(kind) and not _CLASSES.isdisjoint(r.names):
        r.asked.update(n for n in (*vars(kind), *inspect.get_annotations(kind)) if n[:1] != "_")
    if isinstance(kind, abc.ABCMeta) and not _CLASSES.isdisjoint(r.names):
        read = functools.partial(_registered, kind)
        r.add("call", read, None, read(), f"{kind.__qualname__}.register()")
    for base in kind.__mro__:
        if of_library(module_of(base)):
            continue
        r.add("names", vars(base), base, frozenset(vars(base)), base.__qualname__)
        for name, part in list(vars(base).items()):
            if name in _OF_CLASSES or not (name in r.names or _runs(r, name)):
                continue
            if name in done and "super" not in r.names:
                continue
            owner = (
                base if name in done else kind
            )  # `super()` finds methods that this class overrides
            done.add(name)
            where = f"{owner.__qualname__}.{name}"
            if _is_stable(part):
                r.add("attribute", owner, name, getattr(owner, name), where)
            else:
                put = functools.partial(setattr, base, name, part)
                r.add("call", functools.partial(vars(base).get, name), put, part, where)
            r.visit(part, where)


def _is_protocol(kind: type) -> bool:
    """Whether a class is a protocol, without the code of its metaclass, which may refuse names."""
    return next((bool(vars(c)[_PROTOCOL]) for c in kind.__mro__ if _PROTOCOL in vars(c)), False)


def _registered(kind: abc.ABCMeta) -> tuple[int, ...]:
    """The classes that are registered with an abstract class."""
    registry, *_ = abc._get_dump(kind)  # type: ignore[attr-defined]
    return tuple(sorted(id(ref()) for ref in registry))


def _is_stable(part: Any) -> bool:
    """Whether a class returns the same object for a name each time, without running user code."""
    return type(part) in _STABLE or not hasattr(type(part), "__get__")


def is_graph(value: Any) -> bool:
    return isinstance(getattr(type(value), "build", None), FunctionType) and "_state" in vars(value)


@functools.lru_cache(maxsize=4096)
def _slots(kind: Any) -> tuple[tuple[str, MemberDescriptorType | None], ...]:
    """The names of a class's slots.

    With a name stands the slot itself if a class derived from the one that has it gives the name another meaning: a
    property, or another slot. Code reaches such a slot through its class (`Base.name.__get__`, `super().name`).
    """
    found: list[tuple[str, MemberDescriptorType | None]] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            private = name.startswith("__") and not name.endswith("__")
            key = f"_{base.__name__.lstrip('_')}{name}" if private else name
            slot = vars(base).get(key)
            if inspect.getattr_static(kind, key, None) is slot:
                found.append((key, None))
            elif isinstance(slot, MemberDescriptorType):
                found.append((key, slot))
    return tuple(found)


def _in_slot(slot: MemberDescriptorType, holder: Any) -> Any:
    try:
        return slot.__get__(holder)
    except AttributeError:  # nothing is in it
        return MISSING


def _put_in_slot(slot: MemberDescriptorType, holder: Any, part: Any) -> None:
    if part is not MISSING:
        slot.__set__(holder, part)
    elif _in_slot(slot, holder) is not MISSING:
        slot.__delete__(holder)
