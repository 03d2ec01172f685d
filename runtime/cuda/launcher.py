"""The base of devices that launch kernels: how they load programs."""

from __future__ import annotations

import signal
from collections.abc import Callable

from gflow.dialects.program import Program

from ..device import FixedAddress
from ..interrupts import hold, release
from .binding import Arguments
from .capture import Graphs, Steps
from .device import Launcher
from .launches import LaunchTable

_CTRL_C = int(signal.SIGINT)


class Current:
    """A context in which a device is PyTorch's current one, and the thread ready to launch; entered once."""

    __slots__ = ("_before", "_device")

    def __init__(self, device: Launcher) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._before = self._device.enter()
        try:
            self._device.ready()
        except BaseException:
            self._device.leave(self._before)
            raise

    def __exit__(self, *error: object) -> None:
        self._device.leave(self._before)


class Section:
    """A call on a device, which is PyTorch's current one. Ctrl-C is handled at the end: steps are only launched here,
    which takes little time."""

    __slots__ = ("_before", "_device", "_handler")

    def __init__(self, device: Launcher) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._handler = hold(_CTRL_C)
        try:
            self._before = self._device.enter()
        except BaseException:
            release(_CTRL_C, self._handler)
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._device.leave(self._before)
        finally:
            release(_CTRL_C, self._handler)


class LaunchingDevice(Launcher):
    """The methods of `Launcher` that are the same for all devices."""

    asynchronous = True

    def code(self, program: Program, fixed: FixedAddress, look: Callable[[], None]) -> LaunchTable:
        return LaunchTable(program, self, fixed, look)

    def binding(self, program: Program) -> Arguments:
        return Arguments(program, self)

    def graph(self, steps: Steps, wanted: bool) -> Graphs:
        return Graphs(steps, self, wanted)

    def current(self) -> Current:
        return Current(self)

    def section(self) -> Section:
        return Section(self)

    def follow(self, stream: int | None) -> int:
        now = self.stream()
        if stream is not None and stream != now:
            self.wait_for(stream)
        return now

    def release_memory(self) -> None:
        """Does nothing: kernels are compiled in other processes, and buffers are on the device."""
