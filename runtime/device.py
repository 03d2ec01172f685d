"""The interface of devices: an executable loads and runs the native steps of a program through it.

`cpu/device.py` and `cuda/` implement it. A step is *native* where the device loads code for it, and a *call* where it
takes tensors, as PyTorch's ops and collectives do (`HostStep`). Both become parts, which the executable runs in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from gflow.dialects.extents import N
from gflow.dialects.program import Place, Program, Space, Step
from gflow.dialects.records import record

from .steps.host_step import HostStep

#: returns the address of a place that never moves; None for other places
FixedAddress = Callable[[Place], int | None]


class DeviceError(RuntimeError):
    """A device is missing, is not the one that code was compiled for, or has failed."""


@record
class Span:
    """Memory that steps may access: `size` bytes from address `begin`. It is the arena, or the argument, result or
    constant `index`."""

    space: Space
    index: int
    begin: int
    size: int


class Part(Protocol):
    """One step, or several consecutive ones, that run as a unit.

    label: the op's name and source. count: the number of steps. has_run: whether it has run since `prepare`; False if
    the host cannot tell. torn: whether it may have written into arguments without being complete.
    """

    @property
    def label(self) -> str:
        """The op's name and source, for messages."""

    @property
    def count(self) -> int:
        """The number of steps."""

    @property
    def has_run(self) -> bool:
        """Whether it has run since `prepare`; False if the host cannot tell."""

    @property
    def torn(self) -> bool:
        """Whether it may have written into arguments without being complete."""

    def prepare(self) -> None:
        """Prepare for the next run."""

    def run(self) -> None:
        """Run it, or begin it on an asynchronous device.

        Raises:
            IndexError, RuntimeError, …: a check failed, or what PyTorch raises; with the author's line.
            DeviceError: the device has failed.
        """

    def undo(self) -> None:
        """Restore the state outside of the program that the latest run changed: that of a random generator."""

    def each(self) -> Iterator[tuple[Step, Callable[[], None]]]:
        """Its steps, each with a function that runs it alone."""


class Code(Protocol):
    """The native steps of a program for one size, with their addresses and numbers."""

    def patch(self, space: str, index: int, address: int) -> None:
        """Set the address of value `index` of a space."""

    def parts(self, call: Callable[[Step], HostStep]) -> Iterable[Part]:
        """All steps of the program, in order. call: of a step that is not native."""


class Loaded(Protocol):
    """The native steps of a program, loaded."""

    def at(self, n: N) -> Code:
        """The steps with the numbers for a dynamic size of `n`."""


class Binding(Protocol):
    """Makes a program's arguments accessible to its steps, by copies if needed."""

    def bind(self, args: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Tensors on the device for all arguments; copies of some may be under way.

        Raises:
            DeviceError: one is on another device.
        """

    def finish(self) -> bool:
        """Copy values that steps wrote to copies back to the arguments; returns whether there are any."""


class Graph(Protocol):
    """All steps of a call as one launch. problem: why calls cannot run as a graph; "" if they can. copied: the results
    that are copied out of it. fixed: why those are, that the device's own steps write; "" if none is."""

    problem: str
    copied: list[int]
    fixed: str

    def run(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Run a call as one launch and return its results; None if it has to run step by step."""

    def drop(self) -> None:
        """Discard the graph: the memory that it was captured with is replaced."""


class Device(Protocol):
    """A device: it loads programs and measures time.

    where: the PyTorch device of tensors. asynchronous: whether a call returns before its steps are complete; the host
    then learns later of failed checks. checks: whether `placed` has to be called with the memory of each call.
    """

    where: torch.device
    asynchronous: bool
    checks: bool

    def check(self, program: Program) -> None:
        """Raises DeviceError: the program is not for this device."""

    def code(self, program: Program, fixed: FixedAddress, look: Callable[[], None]) -> Loaded:
        """Load the native steps of a program. look: raises the error that a check has reported.

        Raises:
            DeviceError: code of a step is missing.
        """

    def binding(self, program: Program) -> Binding | None:
        """The binding of a program; None if arguments are used in place."""

    def graph(self, steps: Any, wanted: bool) -> Graph | None:
        """The graph of an executable; None if calls always run step by step. steps: the executable."""

    def report(self, words: int) -> torch.Tensor:
        """Host memory of `words` int64 zeros that steps can write to and the host can read at any time."""

    def placed(self, spans: Sequence[Span]) -> None:
        """State the memory that the next steps may access."""

    def section(self) -> AbstractContextManager[Any]:
        """A context around a call: the device is PyTorch's current one, and signal handlers wait until its end."""

    def ready(self) -> None:
        """Make this thread ready to run steps, within `section`."""

    def follow(self, stream: int | None) -> int | None:
        """The current stream, after making it wait for work on `stream` if that is another one; None without
        streams."""

    def mark(self) -> Any:
        """A timestamp in the sequence of steps, for `seconds`."""

    def seconds(self, begin: Any, end: Any) -> float:
        """The seconds between two marks; waits for the later one."""

    def synchronize(self) -> None:
        """Wait until all begun work is complete."""

    def release_memory(self) -> None:
        """Free memory that compiling and loading left and that loaded programs do not need."""
