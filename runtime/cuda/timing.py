"""Measures single steps of a program on a device."""

from __future__ import annotations

import copy
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator

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


#: the fewest samples of a step, and the seconds of samples after which no more are taken
_LEAST, _ENOUGH = 3, 0.008
#: a step that takes so many times as long as the fastest one after the fewest samples is not measured more precisely
_SLOWER = 1.5
#: the most seconds for which the device is kept busy while the host begins a step
_AHEAD = 0.02


class StepTimer:
    """Times single steps on random operands: the median of several samples, in seconds of the device.

    The host may take longer to begin a step than the device to run it (PyTorch's attention: 100 us in Python). So the
    device is kept busy until the host has begun all of a step's work; a sample for which that was too short is taken
    again.

    Floating-point operands are uniform in [0, 1): a GPU multiplies zeros faster. Integers are 0. All steps share one
    arena and the arguments.

    runs: the most samples. warm_up: runs before the first sample. cold: whether the caches are evicted before each
    sample.
    """

    def __init__(
        self,
        program: Program,
        device: Launcher,
        *,
        runs: int = 15,
        warm_up: int = 2,
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

    def __call__(self, step: LaunchStep | AtenStep, best: float = math.inf) -> float:
        """The time of a step, in seconds; infinite if the device cannot run it.

        best: the time of the fastest step that it is compared with. A step that is much slower gets few samples.
        """
        try:
            return self._measured(step, best)
        finally:  # an executable refers to itself; its results are device memory
            gc.collect(1)

    def _measured(self, step: LaunchStep | AtenStep, best: float) -> float:
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
            return self._sampled(begin, best)

    def _sampled(self, begin: Callable[[], None], best: float) -> float:
        """The median time of a step. begin: begins it."""
        start = time.perf_counter()
        begin()
        ahead = 2 * (time.perf_counter() - start)
        samples: list[float] = []
        while len(samples) < self.runs and (len(samples) < _LEAST or sum(samples) < _ENOUGH):
            self.device.delay(min(ahead, _AHEAD))
            self._other.zero_()
            before = self.device.mark()
            begin()
            after = self.device.mark()
            waited = self.device.reached(before)  # the device may have waited for the host
            samples.append(self.device.seconds(before, after))
            if waited and ahead < _AHEAD:
                samples.pop()
                ahead *= 2
            elif len(samples) == _LEAST and statistics.median(samples) > _SLOWER * best:
                break
        return statistics.median(samples)

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
