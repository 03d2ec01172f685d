"""Names of other libraries that mean something else in one thread for a while.

PyTorch looks some functions up in its modules and classes at every call. While a graph is traced, some of them do
something else, in the thread that traces only: every other thread gets the original, and at the end all do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

#: what is replaced now: (owner, name, the original or _MISSING, the replacement), the oldest first
_active: list[tuple[Any, str, Any, Any]] = []
_MISSING = object()
#: the name of threads of gflow's own that run beside a trace and import nothing
BESIDE = "gflow: progress"


def here_only(original: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is `other` in the thread that makes it, and `original` in all others.

    It is `original` everywhere once `replaced` took it back: a module that was imported meanwhile may have kept it,
    as `from torch.compiler import is_compiling` does.
    """
    owner, thread = threading.get_ident(), threading.get_ident

    def call(*args: Any, **kwargs: Any) -> Any:
        applies = thread() == owner and not call._over  # type: ignore[attr-defined]
        return (other if applies else original)(*args, **kwargs)

    call._over = False  # type: ignore[attr-defined]
    # TorchDynamo, which runs in other threads, reads this for a function to look into in place of the wrapper
    call._torchdynamo_inline = original  # type: ignore[attr-defined]
    return call


@contextlib.contextmanager
def replaced(*names: tuple[Any, str, Any]) -> Iterator[None]:
    """Give names of modules or classes, (owner, name, value), other values, and take them back at the end.

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
            put_back()  # once more: an interrupt may have ended the first


@contextlib.contextmanager
def originals() -> Iterator[None]:
    """The names that are replaced now have their original values within, for code that reads them once and keeps
    what it finds: the import of a library, or tables of functions. A replacement that ended within stays away."""
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
