"""Frozen dataclasses whose classes are created quickly.

Before Python 3.13, `dataclass(frozen=True)` compiles each method of a class separately, which takes 0.6 ms per class. A
first call imports 130 such classes, which took a tenth of the first call of a small network. Here only `__init__` is
compiled; the other methods are closures or shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**options: Any) -> Callable[[Any], Any]:
        """Python 3.10 has none."""
        return lambda decorator: decorator


T = TypeVar("T")


@overload
def record(cls: type[T], /) -> type[T]: ...


@overload
def record(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def record(cls: Any = None, /, *, kw_only: bool = False) -> Any:
    """A class decorator with the semantics of `dataclass(frozen=True)`: fields are read-only, compared and hashed.

    A record is a dataclass for `dataclasses.fields`, `replace` and `asdict`. Its base classes and subclasses with
    fields must be records as well.
    """
    if cls is None:
        return lambda found: _made(found, kw_only)
    return _made(cls, kw_only)


def _made(cls: type[T], kw_only: bool) -> type[T]:
    dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    compared = _values([f.name for f in fields if f.compare])
    hashed = _values([f.name for f in fields if (f.compare if f.hash is None else f.hash)])

    def equal(self: Any, other: object) -> Any:
        return compared(self) == compared(other) if type(other) is type(self) else NotImplemented

    def hash_of(self: Any) -> int:
        return hash(hashed(self))

    own = vars(cls)
    methods = {"__init__": _init(cls, fields), "__eq__": equal, "__repr__": _repr}
    if "__eq__" not in own and "__hash__" not in own:
        methods["__hash__"] = hash_of
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    for name, method in (("__setattr__", _refuse_to_assign), ("__delattr__", _refuse_to_delete)):
        setattr(cls, name, method)
    return cls


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads these attributes of an object as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda of: tuple([getattr(of, name) for name in names])


def _init(cls: type, fields: tuple[Field[Any], ...]) -> Any:
    """`__init__(self, …)`, as `dataclass` writes it."""
    known: dict[str, Any] = {"_put_": object.__setattr__, "_missing_": MISSING}
    parameters: list[str] = []
    keywords: list[str] = []
    lines = []
    for f in fields:
        value = f.name
        among = keywords if f.kw_only else parameters
        if f.default_factory is not MISSING:
            known[f"_make_{f.name}"] = f.default_factory
            among.append(f"{f.name}=_missing_")
            value = f"_make_{f.name}() if {f.name} is _missing_ else {f.name}"
        elif f.default is not MISSING:
            known[f"_default_{f.name}"] = f.default
            among.append(f"{f.name}=_default_{f.name}")
        else:
            among.append(f.name)
        lines.append(f" _put_(self, {f.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    made: dict[str, Any] = {}
    signature = ", ".join(["self", *parameters, *(["*", *keywords] if keywords else [])])
    text = "\n".join([f"def __init__({signature}):", *(lines or [" pass"])])
    exec(text, known, made)
    init = made["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _repr(self: Any) -> str:
    shown = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_to_assign(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
