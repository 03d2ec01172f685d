"""Measures single steps of a program on a device."""

from __future__ import annotations

import copy
import math
import statistics

import torch

from gflow.dialects.program import AtenStep, LaunchStep, Program

from ..device import DeviceError
from ..executable import Executable
from ..tensors import DTYPES
from .device import Launcher

#: bytes that are overwritten before each run to evict the step's data from the caches
_CACHES = 256 << 20


class StepTimer:
    """Times single steps on tensors of zeros: the median of several runs, in seconds.

    cold: whether the caches are evicted before each run.
    """

    def __init__(
        self,
        program: Program,
        device: Launcher,
        *,
        runs: int = 15,
        warm_up: int = 3,
        cold: bool = True,
    ) -> None:
        self.program, self.device, self.runs, self.warm_up = program, device, runs, warm_up
        with device.current():
            self._args = [
                torch.empty_strided(
                    a.type.shape, a.strides, dtype=DTYPES[a.type.dtype], device=device.where
                ).zero_()
                for a in program.arguments
            ]
            size = _CACHES if cold and device.where.type == "cuda" else 0
            self._other = torch.empty(size, dtype=torch.uint8, device=device.where)

    def __call__(self, step: LaunchStep | AtenStep) -> float:
        """The time of a step, in seconds; infinite if the device cannot run it."""
        alone = copy.copy(self.program)
        alone.steps, device = [step], self.device
        try:
            run = Executable(alone, device, graphs=False)
        except (DeviceError, AttributeError):  # a library's call that this PyTorch does not have
            return math.inf
        with torch.no_grad(), device.current():
            run.arena.zero_()
            try:
                for _ in range(self.warm_up):
                    run(self._args)
                device.synchronize()
            except (DeviceError, RuntimeError):  # out of memory; a library says what it cannot do
                return math.inf
            ((_, begin),) = list(run.steps())
            marks = []
            for _ in range(self.runs):
                self._other.zero_()
                before = device.mark()
                begin()
                marks.append((before, device.mark()))
            return statistics.median(device.seconds(a, b) for a, b in marks)
