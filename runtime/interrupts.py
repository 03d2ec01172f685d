"""Sections in which signal handlers are delayed, so that their exceptions do not leave work half done.

Python runs handlers between any two bytecodes of the main thread; that of Ctrl-C raises KeyboardInterrupt there. In a
section, handlers run at its end, or where it calls `deliver`. A second signal runs the delayed handlers at once: a user
who presses Ctrl-C again does not want to wait.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class HalfDone(RuntimeError):
    """A step failed after other steps had written into arguments: the arguments have neither the values from before the
    call nor those from after it."""

    def __init__(self, name: str, step: str, failure: BaseException) -> None:
        self.name, self.failure = name, failure
        super().__init__(
            f"{name}: a step failed after parameters or buffers had been updated: {failure}\n  in {step}"
        )


_Handler = Callable[[int, FrameType | None], Any]
#: delayed handlers, with their signals
waiting: list[tuple[_Handler, int]] = []
_main = threading.main_thread()


def deliver() -> None:
    """Run the delayed handlers."""
    while waiting:
        handler, number = waiting.pop(0)
        handler(number, None)


def _later(handler: _Handler) -> _Handler:
    def handle(number: int, frame: FrameType | None) -> None:
        if waiting:
            waiting.clear()
            handler(number, frame)
        else:
            waiting.append((handler, number))

    return handle


@contextmanager
def held(numbers: tuple[signal.Signals, ...] | None = None) -> Iterator[None]:
    """Delay handlers that are written in Python. numbers: the signals; None for all."""
    if threading.current_thread() is not _main:
        yield
        return
    found: dict[int, Any] = {}
    every: Iterable[int] = signal.valid_signals() if numbers is None else numbers
    for number in every:
        handler = signal.getsignal(number)
        if callable(handler):
            found[number] = handler
    try:
        for number, handler in found.items():
            signal.signal(number, _later(handler))
        yield
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)
        deliver()
