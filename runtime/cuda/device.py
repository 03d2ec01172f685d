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


class Launcher(Device, Protocol):
    """Loads kernels, begins launches in order. captures: whether `capture` is there."""

    captures: bool

    def load(self, kernel: TritonKernel, config: int, code: DeviceCode | None) -> Any:
        """What `Launch.function` is to be."""

    def launch(self, launch: Launch) -> None:
        """Begin a launch on the current stream."""

    def call(self, call: HostStep) -> None:
        """Run a call on the current stream."""

    def current(self) -> AbstractContextManager[Any]:
        """Makes it PyTorch's current device."""

    def stream(self) -> int:
        """PyTorch's current stream."""

    def wait_for(self, stream: int) -> None:
        """What comes on the current stream waits for what is on another one by now."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """What `run` begins on the current stream, as one thing to begin again and again."""

    def wait(self, mark: Any) -> None:
        """Wait until a mark is reached."""
