"""Names of other libraries that mean something else in one thread for a while.

PyTorch looks some functions up in its modules and classes at every call. While a graph is traced, some of them do
something else, in the thread that traces only: every other thread gets the original, and at the end all do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


def here_only(original: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is `other` in the thread that makes it, and `original` in all others."""
    owner, thread = threading.get_ident(), threading.get_ident

    def call(*args: Any, **kwargs: Any) -> Any:
        return (other if thread() == owner else original)(*args, **kwargs)

    # TorchDynamo, which runs in other threads, reads this for a function to look into in place of the wrapper
    call._torchdynamo_inline = original  # type: ignore[attr-defined]
    return call


@contextlib.contextmanager
def replaced(*names: tuple[Any, str, Any]) -> Iterator[None]:
    """Give names of modules or classes, (owner, name, value), other values, and take them back at the end.

    A name that an owner only inherits is deleted again.
    """
    missing = object()
    originals = [vars(owner).get(name, missing) for owner, name, _ in names]
    try:
        for owner, name, value in names:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), original in zip(names, originals):
            if original is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
