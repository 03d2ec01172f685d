"""What programs run on, as far as an executable is concerned: a device that loads their native steps.

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

#: the address of a place that never moves; None for the others
FixedAddress = Callable[[Place], int | None]


class DeviceError(RuntimeError):
    """A device is not there, is another one than code was made for, or has failed."""


@record
class Span:
    """Memory that steps may touch: `size` bytes from address `begin`, which are the arena, or argument,
    result or constant `index`."""

    space: Space
    index: int
    begin: int
    size: int


class Part(Protocol):
    """One step, or several in a row, that run as one.

    label: the op's name and source. count: how many steps it is. has_run: whether it has run since `prepare`; False
    where the host cannot tell. torn: whether it may have written into arguments without having run to its end.
    """

    @property
    def label(self) -> str:
        """The op's name and source, for messages."""

    @property
    def count(self) -> int:
        """How many steps it is."""

    @property
    def has_run(self) -> bool:
        """Whether it has run since `prepare`; False where the host cannot tell."""

    @property
    def torn(self) -> bool:
        """Whether it may have written into arguments without having run to its end."""

    def prepare(self) -> None:
        """It is to run once more."""

    def run(self) -> None:
        """Run it, or begin it where the device does not make the host wait.

        Raises:
            IndexError, RuntimeError, …: a check failed, or what PyTorch raises; with the author's line.
            DeviceError: the device has failed.
        """

    def undo(self) -> None:
        """Put back what the latest run has taken from outside the program: the state of a random generator."""

    def each(self) -> Iterator[tuple[Step, Callable[[], None]]]:
        """Its steps, and what runs each alone."""


class Code(Protocol):
    """The native steps of a program for one size, with the addresses and numbers that they are given."""

    def patch(self, space: str, index: int, address: int) -> None:
        """A space's value `index` lies at `address` from now on."""

    def parts(self, call: Callable[[Step], HostStep]) -> Iterable[Part]:
        """All steps of the program, in order. call: of a step that is not native."""


class Loaded(Protocol):
    """The native steps of a program, loaded."""

    def at(self, n: N) -> Code:
        """The steps with the numbers that a size of `n` makes."""


class Binding(Protocol):
    """Brings a program's arguments to where its steps can use them."""

    def bind(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors on the device for all arguments; copies of some may be under way.

        Raises:
            DeviceError: one is on another device.
        """

    def finish(self) -> None:
        """Bring back what was written to copies."""


class Graph(Protocol):
    """A call's steps as one thing to begin. problem: why there will be none; "" if there is no reason."""

    problem: str

    def run(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The results of a call as one; None: it is to run step by step."""

    def drop(self) -> None:
        """The memory that it was made for is gone."""


class Device(Protocol):
    """Loads programs, and keeps time.

    where: the PyTorch device that tensors lie on. asynchronous: whether steps only begin in a call, so that the
    host learns later of checks that failed. checks: whether it wants to be told of memory, by `placed`.
    """

    where: torch.device
    asynchronous: bool
    checks: bool

    def check(self, program: Program) -> None:
        """Raises DeviceError: the program is not for this device."""

    def code(self, program: Program, fixed: FixedAddress, look: Callable[[], None]) -> Loaded:
        """The native steps of a program. look: raises what a check has reported, where it has run.

        Raises:
            DeviceError: code of a step is missing.
        """

    def binding(self, program: Program) -> Binding | None:
        """None: arguments are used where they lie."""

    def graph(self, steps: Any, wanted: bool) -> Graph | None:
        """None: calls always run step by step. steps: the executable."""

    def report(self, words: int) -> torch.Tensor:
        """Zeros of the host (int64) that steps can write to, and the host read at any time."""

    def placed(self, spans: Sequence[Span]) -> None:
        """The steps to come work in this memory."""

    def section(self) -> AbstractContextManager[Any]:
        """Around a call: it is PyTorch's current device, and no signal's handler leaves it half begun."""

    def follow(self, stream: int | None) -> int | None:
        """The current stream, which waits for what is on `stream`, if it is another one; None: there are none."""

    def mark(self) -> Any:
        """A moment among the steps, for `seconds`."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks; waits for the later one."""

    def synchronize(self) -> None:
        """Wait for all that was begun."""
