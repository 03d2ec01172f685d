"""The CPU as a device: arguments are used in place, and steps are synchronous."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from gflow.dialects.program import Program

from ..device import DeviceError, FixedAddress, Span
from . import llvm
from .table import KernelTable


class Cpu:
    """Runs kernels by a table of generated code, on PyTorch's threads; see `Device`."""

    where = torch.device("cpu")
    asynchronous = checks = False
    _nothing = nullcontext()

    def check(self, program: Program) -> None:
        """Raises DeviceError: the program was compiled for another target."""
        if program.target != "cpu":
            raise DeviceError(f"{program.name} is compiled for {program.target}, not for the CPU")

    def code(self, program: Program, fixed: FixedAddress, look: Callable[[], None]) -> KernelTable:
        """The program's kernels in machine code, as a table of steps."""
        return KernelTable(program, fixed, look)

    def binding(self, program: Program) -> None:
        """None: arguments are used in place."""
        return None

    def graph(self, steps: Any, wanted: bool) -> None:
        """None: a call runs its steps one by one."""
        return None

    def report(self, words: int) -> torch.Tensor:
        """`words` zeros of int64 that kernels write to and the host reads."""
        return torch.zeros(words, dtype=torch.int64, device="cpu")

    def placed(self, spans: Sequence[Span]) -> None:
        """Nothing: `checks` is False, so memory is not followed."""

    def ready(self) -> None:
        """Nothing: any thread can run steps."""

    def section(self) -> nullcontext[None]:
        """A context that does nothing: there is no current device to set."""
        return self._nothing

    def follow(self, stream: int | None) -> None:
        """None: the CPU has no streams."""
        return None

    def mark(self) -> float:
        """The time now, in seconds of `time.perf_counter`."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Seconds between two marks."""
        return end - begin

    def synchronize(self) -> None:
        """Nothing: steps are synchronous."""

    def release_memory(self) -> None:
        """Free the contexts that kernels were parsed in, and return freed heap pages to the system.

        Otherwise the buffers of a program's first step are placed between pages that stay resident and hold nothing: 4
        to 5 MiB for a ResNet-18.
        """
        llvm.release_contexts()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
        if trim is not None:
            trim(0)


CPU = Cpu()
