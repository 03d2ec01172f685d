"""A GPU, through the CUDA driver and PyTorch."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence

import torch

from gflow.dialects.program import DeviceCode, Program, TritonKernel
from gflow.dialects.program.form import unpacked
from gflow.dialects.records import record

from ..device import DeviceError, Span
from ..steps.host_step import HostStep
from .device import Launch
from .driver import Driver, driver
from .graph import CudaGraph
from .launcher import LaunchingDevice

#: cycles a second, of the fastest GPUs
_CLOCK = 3e9


@record
class _Loaded:
    """A kernel on the device: its function, threads and shared memory of a block."""

    function: int
    threads: int
    shared: int


class Gpu(LaunchingDevice):
    """A CUDA device. Kernels with the same code are loaded once."""

    def __init__(self, where: torch.device, library: Driver | None = None) -> None:
        """
        Args:
            where: a `cuda` device; PyTorch's current one if it has no index.

        Raises:
            DeviceError: there is none.
        """
        self._driver = library or driver()
        if not torch.cuda.is_available():
            raise DeviceError(
                "PyTorch finds no GPU (torch.cuda.is_available() is False); what is compiled for CUDA "
                "needs one, and a PyTorch that is built for it"
            )
        index = torch.cuda.current_device() if where.index is None else where.index
        self.where, self._index = torch.device("cuda", index), index
        self.captures, self.checks = True, False
        torch.cuda.init()
        self._context = self._driver.context(index)
        self._functions: dict[str, _Loaded] = {}
        self._capturing: dict[int, CudaGraph] = {}  # by stream
        self._bandwidth = _bandwidth(self.where)

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability, for example (9, 0)."""
        return torch.cuda.get_device_capability(self.where)

    def check(self, program: Program) -> None:
        kind, _, arch = program.target.partition(":")
        if kind != "cuda":
            raise DeviceError(f"{program.name} is compiled for {program.target}, not for CUDA")
        if not runs_on(int(arch), self.capability):
            major, minor = self.capability
            raise DeviceError(
                f"{program.name} is compiled for compute capability {int(arch) // 10}.{int(arch) % 10}; "
                f"{torch.cuda.get_device_name(self.where)} has {major}.{minor}: compile or save it with "
                f"target='cuda:{major}{minor}'"
            )

    def load(self, kernel: TritonKernel, config: int, code: DeviceCode | None) -> _Loaded:
        if code is None:
            raise DeviceError(
                f"there is no machine code for kernel {kernel.name} with config {config}"
            )
        found = self._functions.get(code.image)
        if found is None:
            most = getattr(
                torch.cuda.get_device_properties(self.where), "shared_memory_per_block_optin", 0
            )
            if most and code.shared > most:
                raise DeviceError(
                    f"kernel {kernel.name} wants {code.shared} bytes of shared memory a block; "
                    f"{torch.cuda.get_device_name(self.where)} has {most}"
                )
            image = unpacked(code.image)
            with self.current():
                _, function = self._driver.load(image, code.entry, code.shared)
            found = self._functions[code.image] = _Loaded(function, 32 * code.warps, code.shared)
        return found

    def report(self, words: int) -> torch.Tensor:
        return torch.zeros(words, dtype=torch.int64, pin_memory=True)

    def placed(self, spans: Sequence[Span]) -> None:
        pass

    def launch(self, launch: Launch) -> None:
        f, stream = launch.function, self.stream()
        self._driver.launch(
            f.function, launch.step.grid, f.threads, f.shared, stream, launch.parameters
        )
        if self._capturing and (graph := self._capturing.get(stream)) is not None:
            graph.note(launch, stream)

    def call(self, call: HostStep) -> None:
        try:
            call.run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if "CUDA error" in str(error):
                raise DeviceError(str(error).split("\n")[0]) from None
            raise

    def enter(self) -> int:
        return torch.cuda._exchange_device(self._index)

    def ready(self) -> None:
        self._driver.enter(self._context)  # a thread has none until CUDA's runtime gives it one

    def leave(self, before: int) -> None:
        torch.cuda._maybe_exchange_device(before)

    def stream(self) -> int:
        return torch._C._cuda_getCurrentRawStream(self._index)

    def wait_for(self, stream: int) -> None:
        torch.cuda.current_stream(self.where).wait_stream(
            torch.cuda.ExternalStream(stream, device=self.where)
        )

    def capture(self, run: Callable[[], None]) -> CudaGraph:
        graph = CudaGraph(self._driver)
        before = torch.cuda.current_stream(self.where)
        # a stream of this device: PyTorch's default is a stream of the device that captured first
        stream = torch.cuda.Stream(self.where)
        self._capturing[stream.cuda_stream] = graph
        try:
            with torch.cuda.graph(graph.graph, stream=stream, capture_error_mode="thread_local"):
                run()
        finally:  # a failed capture leaves its own stream as the current one
            del self._capturing[stream.cuda_stream]
            torch.cuda.set_stream(before)
        graph.instantiate()
        return graph

    def copy_seconds(self, nbytes: int) -> float:
        return 2 * nbytes / self._bandwidth

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def delay(self, seconds: float) -> None:
        torch.cuda._sleep(int(seconds * _CLOCK))

    def reached(self, mark: torch.cuda.Event) -> bool:
        return mark.query()

    def wait(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()

    def synchronize(self) -> None:
        try:
            torch.cuda.synchronize(self.where)
        except RuntimeError as error:
            raise DeviceError(str(error).split("\n")[0]) from None


def _bandwidth(where: torch.device) -> float:
    """The bytes a second of a device's memory: two transfers a clock on its bus; infinite if PyTorch does not tell."""
    found = torch.cuda.get_device_properties(where)
    clock, width = (getattr(found, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    return 2 * 1e3 * clock * width / 8 or math.inf  # in kHz and bits


def runs_on(arch: int, capability: tuple[int, int]) -> bool:
    """Whether code for an architecture (80) runs on a device: of the same major version, not older; from
    9.0 on Triton uses what exactly one version has."""
    major, minor = divmod(arch, 10)
    if major >= 9:
        return capability == (major, minor)
    return capability[0] == major and capability[1] >= minor


_open: weakref.WeakValueDictionary[torch.device, Gpu] = weakref.WeakValueDictionary()


def gpu(where: torch.device) -> Gpu:
    """The device with this index. It is opened once; its kernels are unloaded when the process ends."""
    index = where.index
    if index is None and torch.cuda.is_available():
        index = torch.cuda.current_device()
    key = torch.device("cuda", index) if index is not None else where
    found = _open.get(key)
    if found is None:
        found = _open[key] = Gpu(key)
    return found
