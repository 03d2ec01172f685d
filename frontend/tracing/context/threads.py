"""Replaces names of other libraries in one thread for a while.

PyTorch looks some functions up in its modules and classes at every call. While a graph is traced, some of them are
replaced in the thread that traces. Other threads get the original, and afterwards all threads do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

#: active replacements: (owner, name, the original or _MISSING, the replacement), the oldest first
_active: list[tuple[Any, str, Any, Any]] = []
_MISSING = object()
#: the name of gflow's own threads, which run concurrently with a trace and import nothing
BESIDE = "gflow: progress"


def here_only(original: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `other` in the thread that creates it, and `original` in all others.

    It calls `original` everywhere once `replaced` has ended: a module that was imported meanwhile may have kept it
    (`from torch.compiler import is_compiling`).
    """
    owner, thread = threading.get_ident(), threading.get_ident

    def call(*args: Any, **kwargs: Any) -> Any:
        applies = thread() == owner and not call._over  # type: ignore[attr-defined]
        return (other if applies else original)(*args, **kwargs)

    call._over = False  # type: ignore[attr-defined]
    # TorchDynamo, which may run in other threads, inlines this function instead of the wrapper
    call._torchdynamo_inline = original  # type: ignore[attr-defined]
    return call


@contextlib.contextmanager
def replaced(*names: tuple[Any, str, Any]) -> Iterator[None]:
    """Within, names of modules or classes, as (owner, name, value), have other values; afterwards they are restored.

    A name that an owner only inherits is deleted again.
    """
    entries = [
        (owner, name, vars(owner).get(name, _MISSING), value) for owner, name, value in names
    ]

    def put_back() -> None:
        _active[:] = [e for e in _active if all(e is not mine for mine in entries)]
        for owner, name, original, value in entries:
            _set(owner, name, original)
            function = value.__func__ if isinstance(value, staticmethod) else value
            if hasattr(function, "_over"):
                function._over = True

    try:
        for owner, name, _, value in entries:
            setattr(owner, name, value)
        _active.extend(entries)
        yield
    finally:
        try:
            put_back()
        finally:
            put_back()  # repeated, since an interrupt may have ended the first attempt


@contextlib.contextmanager
def originals() -> Iterator[None]:
    """Within, all names that are replaced have their original values, for code that reads them once and keeps them:
    the import of a library, or tables of functions. A replacement that ends within is not restored afterwards."""
    entries = list(_active)
    try:
        for owner, name, original, _ in reversed(entries):
            _set(owner, name, original)
        yield
    finally:
        for entry in entries:
            if any(e is entry for e in _active):
                owner, name, _, value = entry
                setattr(owner, name, value)


def _set(owner: Any, name: str, original: Any) -> None:
    if original is not _MISSING:
        setattr(owner, name, original)
    elif name in vars(owner):
        delattr(owner, name)
