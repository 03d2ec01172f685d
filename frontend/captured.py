"""What a function reads besides its arguments, as far as it can be seen from outside."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch


def captured(target: Any) -> list[Any]:
    """Modules and tensors in a callable's closure, globals, bound object and partial arguments, those
    in lists, tuples and dicts too; of functions that it calls as well. A module is its own."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    for part in _walk(target, seen):
        found.setdefault(id(part), part)
    return list(found.values())


def _walk(value: Any, seen: set[int]) -> Iterator[Any]:
    if isinstance(value, (torch.nn.Module, torch.Tensor)):
        yield value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    for part in _parts(value):
        yield from _walk(part, seen)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, FunctionType):
        if value.__module__ and value.__module__.partition(".")[0] in ("torch", "gflow"):
            return
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        names = value.__globals__
        yield from (names[name] for name in value.__code__.co_names if name in names)
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
    elif isinstance(value, MethodType):
        yield value.__func__
        yield value.__self__
        yield from vars(value.__self__).values() if hasattr(value.__self__, "__dict__") else ()
    elif isinstance(value, functools.partial):
        yield value.func
        yield from value.args
        yield from value.keywords.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    elif isinstance(value, Mapping) and len(value) < 1000:
        yield from value.values()
    elif callable(value) and not isinstance(value, type):
        call = getattr(type(value), "__call__", None)  # noqa: B004
        if isinstance(call, FunctionType):
            yield MethodType(call, value)
