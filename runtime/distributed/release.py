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

#: tensors, and how many references each had before its collective began
_held: list[tuple[torch.Tensor, int]] = []
#: seconds that the end of the process waits: threads need microseconds, on a busy machine milliseconds
_PATIENCE = 1.0
#: whether a collective ran; its group may be destroyed at the end of the process
_ran = False
#: seconds in which a thread that wants the interpreter's lock is given it
_GIVING_WAY = 0.02


@contextmanager
def used(*tensors: torch.Tensor) -> Iterator[None]:
    """Within, a collective that is complete at the end runs on the tensors."""
    taken = references(tensors)
    yield
    release(taken)


def references(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """The tensors with the references that each has now; to be taken before a collective begins."""
    global _ran
    _ran = True
    return [(t, t._use_count()) for t in tensors]  # type: ignore[attr-defined]


def release(tensors: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Hold those tensors of a collective that is complete which its thread still refers to. Earlier ones go where their
    threads are done.

    tensors: as `references` gave them.
    """
    _held[:] = [(t, before) for t, before in (*_held, *tensors) if _in_use(t, before)]


def _in_use(tensor: torch.Tensor, before: int) -> bool:
    return tensor._use_count() > before  # type: ignore[attr-defined]


def _wait() -> None:
    """Until all are released."""
    if _ran or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        time.sleep(_GIVING_WAY)
    end = time.monotonic() + _PATIENCE
    release(())
    while _held and time.monotonic() < end:
        time.sleep(0.001)
        release(())


atexit.register(_wait)
