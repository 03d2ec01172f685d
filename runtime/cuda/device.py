"""The interface of devices that launch kernels, for tables of launches, bindings and graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from gflow.dialects.program import DeviceCode, LaunchStep, TritonKernel
from gflow.dialects.records import record

from ..device import Device
from ..steps.host_step import HostStep


@record
class Launch:
    """A launch with its arguments.

    function: the loaded function. words: the arguments, 8 bytes each, then the two scratch addresses of Triton's
    kernels; addresses are patched when tensors move. parameters: the address of an array with the address of each word,
    as `cuLaunchKernel` takes it.
    """

    step: LaunchStep
    kernel: TritonKernel
    function: Any
    words: np.ndarray
    parameters: int


class Captured(Protocol):
    """Captured work. fixed: why its launches cannot get other arguments; "" if they can. launch: launches all of it on
    the current stream."""

    fixed: str
    launch: Callable[[], None]

    def update(self, launch: Launch) -> None:
        """Give a launch its present words, from the next `launch` on.

        Raises:
            DeviceError: the device rejects them.
        """


class Launcher(Device, Protocol):
    """A device that loads kernels and launches them in order. captures: whether it supports `capture`."""

    captures: bool

    def load(self, kernel: TritonKernel, config: int, code: DeviceCode | None) -> Any:
        """Load a kernel; returns the value of `Launch.function`."""

    def launch(self, launch: Launch) -> None:
        """Launch a kernel on the current stream, asynchronously."""

    def call(self, call: HostStep) -> None:
        """Run a step of the host, whose work on the device is on the current stream."""

    def current(self) -> AbstractContextManager[Any]:
        """A context manager that makes this PyTorch's current device, and the thread `ready`."""

    def enter(self) -> Any:
        """Make this PyTorch's current device; returns the one before, for `leave`."""

    def ready(self) -> None:
        """Make this thread ready to load and launch kernels on the current device."""

    def leave(self, before: Any) -> None:
        """Make the device before the current one again."""

    def stream(self) -> int:
        """The handle of PyTorch's current stream."""

    def wait_for(self, stream: int) -> None:
        """Make the current stream wait for the work that is on another stream now."""

    def capture(self, run: Callable[[], None]) -> Captured:
        """Capture the work that `run` puts on the current stream."""

    def copy_seconds(self, nbytes: int) -> float:
        """The least seconds that the device takes to copy as many bytes; 0 if unknown."""

    def delay(self, seconds: float) -> None:
        """Keep the current stream busy for at least so many seconds, without access to memory."""

    def reached(self, mark: Any) -> bool:
        """Whether the device has reached a mark; False where steps run as they are begun."""

    def wait(self, mark: Any) -> None:
        """Block until a mark is reached."""
