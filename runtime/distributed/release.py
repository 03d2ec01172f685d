"""Tensors that a thread of a process group still references.

A thread of Gloo drops a collective's tensors shortly after `wait()` has returned in the thread that asked for it. If no
Python object holds such a tensor any more, dropping it takes the interpreter's lock, and a thread that asks for the
lock while the interpreter is being finalized ends the process ("terminate called without an active exception", seen
with PyTorch 2.13 in `AsyncAllgatherWork::~AsyncAllgatherWork`). So tensors are held here until the thread is done, and
the end of the process waits for that. Tensors of collectives that PyTorch or the author runs are not known here; for
them the end of a process that took part in collectives gives way to threads that want the lock.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

#: tensors, and the number of references of each before its collective began
_held: list[tuple[torch.Tensor, int]] = []
#: the most seconds that the end of the process waits: threads need microseconds, or milliseconds on a busy machine
_PATIENCE = 1.0
#: whether a collective ran, whose group may be destroyed at the end of the process
_ran = False
#: the seconds for which the interpreter's lock is released at the end of the process
_GIVING_WAY = 0.02


@contextmanager
def used(*tensors: torch.Tensor) -> Iterator[None]:
    """A context for a collective on these tensors that is complete at the end of the context."""
    taken = references(tensors)
    yield
    release(taken)


def references(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """The tensors with their current numbers of references; to be called before a collective begins."""
    global _ran
    _ran = True
    return [(t, t._use_count()) for t in tensors]  # type: ignore[attr-defined]


def release(tensors: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Keep those tensors of a completed collective that its thread still references; drop earlier ones if possible.

    tensors: the result of `references`.
    """
    _held[:] = [(t, before) for t, before in (*_held, *tensors) if _in_use(t, before)]


def _in_use(tensor: torch.Tensor, before: int) -> bool:
    return tensor._use_count() > before  # type: ignore[attr-defined]


def _wait() -> None:
    """Wait until all are released."""
    if _ran or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        time.sleep(_GIVING_WAY)
    end = time.monotonic() + _PATIENCE
    release(())
    while _held and time.monotonic() < end:
        time.sleep(0.001)
        release(())


atexit.register(_wait)
