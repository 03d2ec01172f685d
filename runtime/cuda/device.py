"""What launches kernels, as far as tables of launches, bindings and graphs are concerned."""

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
    """One launch, ready to go.

    function: what the device loaded. words: the arguments, 8 bytes each, then the two addresses of scratch
    that Triton's kernels take; addresses in them are patched when tensors move. parameters: address of
    an array with the address of each word, as the driver wants it.
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
