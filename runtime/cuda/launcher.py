"""The base of devices that launch kernels: how they load programs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from gflow.dialects.program import Program

from ..device import FixedAddress
from ..interrupts import Held
from .binding import Arguments
from .capture import Graphs, Steps
from .device import Launcher
from .launches import LaunchTable

_CTRL_C = (int(signal.SIGINT),)


class Section(Held):
    """A call on a device: the device is PyTorch's current one. Ctrl-C is handled at the end: steps are only launched
    here, which takes little time."""

    __slots__ = ("_current",)

    def __init__(self, current: AbstractContextManager[Any]) -> None:
        super().__init__(_CTRL_C)
        self._current = current

    def __enter__(self) -> None:
        super().__enter__()
        try:
            self._current.__enter__()
        except BaseException:
            super().__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._current.__exit__(None, None, None)
        finally:
            super().__exit__()


class LaunchingDevice(Launcher):
    """The methods of `Launcher` that are the same for all devices."""

    asynchronous = True

    def code(self, program: Program, fixed: FixedAddress, look: Callable[[], None]) -> LaunchTable:
        return LaunchTable(program, self, fixed, look)

    def binding(self, program: Program) -> Arguments:
        return Arguments(program, self)

    def graph(self, steps: Steps, wanted: bool) -> Graphs:
        return Graphs(steps, self, wanted)

    def section(self) -> Section:
        return Section(self.current())

    def follow(self, stream: int | None) -> int:
        now = self.stream()
        if stream is not None and stream != now:
            self.wait_for(stream)
        return now

    def release_memory(self) -> None:
        """Does nothing: kernels are compiled in other processes, and buffers are on the device."""
