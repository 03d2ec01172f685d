"""Measures single steps of a program on a device."""

from __future__ import annotations

import copy
import gc
import math
import statistics
from collections.abc import Iterator

import torch

from gflow.dialects.program import AtenStep, LaunchStep, Place, Program

from ..arena import Arena
from ..device import DeviceError
from ..executable import Executable
from ..tensors import DTYPES
from .device import Launcher

#: bytes that are overwritten before each run to evict the step's data from the caches
_CACHES = 256 << 20
#: the element types of a kernel's parameters that get random numbers; others get zeros, which are valid indices
_FLOATS = {
    "*fp16": torch.float16, "*bf16": torch.bfloat16, "*fp32": torch.float32, "*fp64": torch.float64,
}  # fmt: skip


class StepTimer:
    """Times single steps on random operands: the median of several runs, in seconds.

    Floating-point operands are uniform in [0, 1): a GPU multiplies zeros faster. Integers are 0. All steps share one
    arena and the arguments.

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
        self._arena = Arena(device.where)
        with device.current():
            self._args = [
                torch.empty_strided(
                    a.type.shape, a.strides, dtype=DTYPES[a.type.dtype], device=device.where
                )
                for a in program.arguments
            ]
            for a in self._args:
                _fill(a)
            size = _CACHES if cold and device.where.type == "cuda" else 0
            self._other = torch.empty(size, dtype=torch.uint8, device=device.where)

    def __call__(self, step: LaunchStep | AtenStep) -> float:
        """The time of a step, in seconds; infinite if the device cannot run it."""
        try:
            return self._measured(step)
        finally:  # an executable refers to itself; its results are device memory
            gc.collect(1)

    def _measured(self, step: LaunchStep | AtenStep) -> float:
        alone = copy.copy(self.program)
        alone.steps, device = [step], self.device
        try:
            run = Executable(alone, device, self._arena, graphs=False)
        except (DeviceError, AttributeError):  # a library's call that this PyTorch does not have
            return math.inf
        with torch.no_grad(), device.current():
            try:
                if isinstance(step, LaunchStep):
                    self._randomize(run.arena, step)
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

    def _randomize(self, arena: torch.Tensor, step: LaunchStep) -> None:
        """Fill the operands of a launch that lie in the arena. A library's call that is compared with it reads the
        same memory, and is measured after it."""
        arena.zero_()
        for place, kind, size in _operands(self.program, step):
            dtype = _FLOATS.get(kind)
            if place.space == "arena" and dtype is not None:
                first = place.offset
                _fill(arena[first : first + size - size % dtype.itemsize].view(dtype))


def _operands(program: Program, step: LaunchStep) -> Iterator[tuple[Place, str, int]]:
    """The places among a launch's arguments, with the parameter's type and the bytes that may be accessed."""
    kinds = program.triton[step.kernel].parameters.values()
    places = [(v, kind) for v, kind in zip(step.args, kinds, strict=True) if isinstance(v, Place)]
    for (place, kind), size in zip(places, step.reach):
        yield place, kind, size


def _fill(tensor: torch.Tensor) -> None:
    """Random floating-point numbers of [0, 1), or zeros."""
    if tensor.is_floating_point() and tensor.dtype in _FLOATS.values():
        tensor.uniform_()
    else:
        tensor.zero_()
