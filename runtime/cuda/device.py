"""What a program for CUDA runs on, as far as the runtime is concerned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from gflow.dialects.program import DeviceCode, LaunchStep, Program, Space, TritonKernel

from ..aten_step import AtenCall


class DeviceError(RuntimeError):
    """A device is not there, is another one than code was made for, or has failed."""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Span:
    """Memory that steps may touch: `size` bytes from address `begin`, which are the arena, or argument,
    result or constant `index`."""

    space: Space
    index: int
    begin: int
    size: int


class Device(Protocol):
    """Loads code, runs launches in order.

    where: the PyTorch device that tensors lie on. captures: whether `capture` is there. checks: whether it
    wants to be told of memory, by `placed`.
    """

    where: torch.device
    captures: bool
    checks: bool

    def check(self, program: Program) -> None:
        """Raises DeviceError: the program is not for this device."""

    def load(self, kernel: TritonKernel, config: int, code: DeviceCode | None) -> Any:
        """What `Launch.function` is to be."""

    def report(self, words: int) -> torch.Tensor:
        """Zeros of the host (int64) that kernels can write to, and the host read at any time."""

    def placed(self, spans: Sequence[Span]) -> None:
        """The steps to come work in this memory."""

    def launch(self, launch: Launch) -> None:
        """Begin a launch on the current stream."""

    def call(self, call: AtenCall) -> None:
        """Run an ATen call on the current stream."""

    def current(self) -> AbstractContextManager[Any]:
        """Makes it PyTorch's current device."""

    def stream(self) -> int:
        """PyTorch's current stream."""

    def wait_for(self, stream: int) -> None:
        """What comes on the current stream waits for what is on another one by now."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """What `run` begins on the current stream, as one thing to begin again and again."""

    def mark(self) -> Any:
        """A moment on the current stream, for `seconds`."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks; waits for the later one."""

    def wait(self, mark: Any) -> None:
        """Wait until a mark is reached."""

    def synchronize(self) -> None:
        """Wait for all that was begun."""
