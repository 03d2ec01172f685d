"""The CPU as a device: arguments are used where they lie, and a step has run when its call returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from gflow.dialects.program import Program

from ..device import DeviceError, FixedAddress, Span
from .table import KernelTable


class Cpu:
    """Runs kernels by a table of generated code, on PyTorch's threads; see `Device`."""

    where = torch.device("cpu")
    asynchronous = checks = False
    _nothing = nullcontext()

    def check(self, program: Program) -> None:
        if program.target != "cpu":
            raise DeviceError(f"{program.name} is compiled for {program.target}, not for the CPU")

    def code(self, program: Program, fixed: FixedAddress, look: Callable[[], None]) -> KernelTable:
        return KernelTable(program, fixed, look)

    def binding(self, program: Program) -> None:
        return None

    def graph(self, steps: Any, wanted: bool) -> None:
        return None

    def report(self, words: int) -> torch.Tensor:
        return torch.zeros(words, dtype=torch.int64)

    def placed(self, spans: Sequence[Span]) -> None:
        pass

    def section(self) -> nullcontext[None]:
        return self._nothing

    def follow(self, stream: int | None) -> None:
        return None

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def synchronize(self) -> None:
        pass


CPU = Cpu()
