"""`type()` of values that represent others while a graph is traced.

A dynamic size is a `torch.SymInt`, a number of the call a subclass of one, and an optimizer's dict a mirror. Code that
asks for their types (`type(n) is int`) gets those of an eager call; `isinstance` asks for `__class__`, which they have
themselves. The name is replaced in the globals of the modules that ask: user modules, installed libraries, and
PyTorch's layers.
"""

from __future__ import annotations

import builtins
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch

from ...context.location import owner_of
from ...context.watched_calls import KnownModules, globals_of_modules

#: PyTorch's symbolic numbers → their types in an eager call
_NUMBERS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
#: libraries that PyTorch computes symbolic sizes with
_SYMBOLIC = ("sympy", "mpmath")


def _type_of(value: object) -> type:
    """The type that a value has in an eager call. Classes of gflow that represent others have `stands_for`."""
    kind = type(value)
    for symbolic, number in _NUMBERS.items():
        if issubclass(kind, symbolic):
            return number
    if kind.__module__.startswith("gflow.") and hasattr(kind, "stands_for"):
        return value.stands_for  # type: ignore[attr-defined, no-any-return]
    return kind


_OF_METACLASSES = ("__new__", "__init__", "__setattr__", "__delattr__", "__repr__", "__dir__")


class _Type:
    """Replaces `type`. A class whose type is `type` itself gets this object, so that `type(C) is type` holds."""

    def __init__(self, applies: Callable[[], bool]) -> None:
        self._applies = applies
        # found before those of `object`, as metaclasses call them (`type.__new__(...)`)
        vars(self).update((name, getattr(type, name)) for name in _OF_METACLASSES)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or not self._applies():
            return type(*args, **kwargs)
        kind = _type_of(args[0])
        return self if kind is type else kind

    def __getattr__(self, name: str) -> Any:
        return getattr(type, name)

    def __getitem__(self, item: Any) -> Any:
        return type[item]

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, type)

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, type)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (type,)

    def __or__(self, other: Any) -> Any:
        return type | other

    def __ror__(self, other: Any) -> Any:
        return other | type

    def __eq__(self, other: object) -> bool:
        return other is self or other is type

    def __hash__(self) -> int:
        return hash(type)


@contextlib.contextmanager
def real_types(importers: Iterable[dict[str, Any]] = ()) -> Iterator[None]:
    """While active, `type` gives this thread's code the types of an eager call.

    importers: globals of more modules, or of functions, whose code may ask.
    """
    owner, over = threading.get_ident(), False
    stand_in: Any = _Type(lambda: not over and threading.get_ident() == owner)
    places = [*{id(names): names for names in (*_asking(), *importers)}.values()]
    try:
        for names in places:
            names.setdefault("type", stand_in)
        yield
    finally:
        over = True
        for _ in range(2):  # repeated, since an interrupt may end the first attempt
            for names in places:
                if names.get("type") is stand_in:
                    del names["type"]


#: whether the code of modules may ask for types
_ASKING: KnownModules = {}


def _asking() -> Iterator[dict[str, Any]]:
    """The globals of the modules whose code may ask for types."""
    return globals_of_modules(_ASKING, _may_ask)


def _may_ask(name: str, module: ModuleType) -> bool:
    if name.startswith("torch.nn."):
        return True
    if module is builtins or name.partition(".")[0] in _SYMBOLIC:
        return False
    file = vars(module).get("__file__")
    if not isinstance(file, str):
        return name == "__main__"
    return file.endswith(".py") and owner_of(file) == "user"
