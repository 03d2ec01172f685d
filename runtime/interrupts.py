"""Sections in which signal handlers are delayed, so that their exceptions do not leave work half done.

Python runs handlers between any two bytecodes of the main thread; that of Ctrl-C raises KeyboardInterrupt there. In a
section, handlers run at its end, or where it calls `deliver`. A second signal runs the delayed handlers at once: a user
who presses Ctrl-C again does not want to wait.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import signal
import threading
from collections.abc import Callable, Iterable
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
_main = [threading.main_thread().ident]  # in a child of fork(), the thread that called it
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: _main.__setitem__(0, threading.get_ident()))
#: those of `signal` convert each number and handler to an enum, which takes longer than a small program
_getsignal, _setsignal = _signal.getsignal, _signal.signal


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


class Held:
    """The context manager of `held`; entered once."""

    __slots__ = ("_found", "_numbers")

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = numbers
        self._found: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.get_ident() != _main[0]:
            return
        found = self._found
        for number in self._numbers:
            handler = _getsignal(number)
            if callable(handler):
                found[number] = handler
        try:
            for number, handler in found.items():
                _setsignal(number, _later(handler))
        except BaseException:  # of a handler that was not replaced yet
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        if self._found:
            for number, handler in self._found.items():
                _setsignal(number, handler)
            deliver()


def hold(number: int) -> Any:
    """Delay the handler of one signal; returns it for `release`, or None where there is none in Python to delay."""
    handler = _getsignal(number)
    if threading.get_ident() != _main[0] or not callable(handler):
        return None
    _setsignal(number, _later(handler))
    return handler


def release(number: int, handler: Any) -> None:
    """Undo a `hold`, and run the handlers that were delayed."""
    if handler is not None:
        _setsignal(number, handler)
        if waiting:
            deliver()


def held(numbers: tuple[int, ...] | None = None) -> Held:
    """Delay handlers that are written in Python. numbers: the signals; None for all."""
    return Held(signal.valid_signals() if numbers is None else numbers)
