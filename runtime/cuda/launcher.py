"""The base of devices that launch kernels: how they load programs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gflow.dialects.program import Program

from ..device import FixedAddress
from ..interrupts import held
from .binding import Arguments
from .capture import Graphs, Steps
from .device import Launcher
from .launches import LaunchTable

_CTRL_C = (signal.SIGINT,)


class LaunchingDevice(Launcher):
    """The methods of `Launcher` that are the same for all devices."""

    asynchronous = True

    def code(self, program: Program, fixed: FixedAddress, look: Callable[[], None]) -> LaunchTable:
        return LaunchTable(program, self, fixed, look)

    def binding(self, program: Program) -> Arguments:
        return Arguments(program, self)

    def graph(self, steps: Steps, wanted: bool) -> Graphs:
        return Graphs(steps, self, wanted)

    @contextmanager
    def section(self) -> Iterator[None]:
        # steps are only launched here, which takes little time: Ctrl-C is handled after the last launch
        with held(_CTRL_C), self.current():
            yield

    def follow(self, stream: int | None) -> int:
        now = self.stream()
        if stream is not None and stream != now:
            self.wait_for(stream)
        return now

    def release_memory(self) -> None:
        """Does nothing: kernels are compiled in other processes, and buffers are on the device."""
