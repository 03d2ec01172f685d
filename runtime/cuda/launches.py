"""The launches of a program, with their arguments in the form that the driver takes.

Each argument is a word of 8 bytes. Addresses of the arena, of arguments and of results are patched when these move. All
other words are written once.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator

import numpy as np
import torch

from gflow.dialects.extents import N
from gflow.dialects.program import LaunchStep, Place, Program, Step
from gflow.dialects.program.environment import switch

from ..device import DeviceError, FixedAddress
from ..steps.host_step import HostStep
from .device import Launch, Launcher

_FORMATS = {
    "i1": "<?", "u1": "<?", "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I",
    "i64": "<q", "u64": "<Q", "fp16": "<e", "fp32": "<f", "fp64": "<d",
}  # fmt: skip
#: the parameters that Triton adds: scratch memory of the kernel and of a profiler
_EXTRA = 2


def waits() -> bool:
    """Whether the host waits for each step (`GFLOW_CUDA_SYNC`), so that an error names the step that caused it."""
    return switch("GFLOW_CUDA_SYNC", False)


class Begun:
    """A launch or a step of the host, run asynchronously on a device; a `Part`. The host does not know how far it has
    come."""

    count, has_run = 1, False

    def __init__(self, item: Launch | HostStep, table: LaunchTable) -> None:
        self.item, self._table = item, table

    @property
    def label(self) -> str:
        """The op's name and source."""
        return self.item.step.label if isinstance(self.item, Launch) else self.item.label

    @property
    def torn(self) -> bool:
        """Whether a step of the host may have written a part of its results to arguments; False for a launch."""
        return not isinstance(self.item, Launch) and self.item.torn

    def prepare(self) -> None:
        """Prepare a step of the host for another run; a launch needs no preparation."""
        if not isinstance(self.item, Launch):
            self.item.prepare()

    def undo(self) -> None:
        """Restore the random generator that a step of the host drew from; a launch draws from none."""
        if not isinstance(self.item, Launch):
            self.item.undo()

    def run(self) -> None:
        """Launch the step, and wait for it if the table waits for each step.

        Raises:
            DeviceError: the device reports an error. The message names the step where it was seen.
        """
        item, device = self.item, self._table.device
        try:
            if isinstance(item, Launch):
                device.launch(item)
            else:
                device.call(item)
            if self._table.waits:
                device.synchronize()
                self._table.look()
        except DeviceError as error:
            raise DeviceError(self._explained(error)) from None

    def each(self) -> Iterator[tuple[Step, Callable[[], None]]]:
        """The step, with the function that runs it."""
        yield self.item.step, self.run

    def _explained(self, error: DeviceError) -> str:
        kernel = f"kernel {self.item.step.kernel}, " if isinstance(self.item, Launch) else ""
        if self._table.waits:
            return f"{error}\n  in {kernel}{self.label}"
        return (
            f"{error}\n  seen at {kernel}{self.label}; an earlier step may have caused it: "
            "GFLOW_CUDA_SYNC=1 in the environment waits for each step, and finds it"
        )


class LaunchTable:
    """The launches of a program, in order; see `Loaded` and `Code`.

    waits: whether the host waits for each step. moved: the launches with an address that was patched, by that of their
    parameters, until a captured graph has got them.
    """

    def __init__(
        self, program: Program, device: Launcher, fixed: FixedAddress, look: Callable[[], None]
    ) -> None:
        """
        Args:
            fixed: the address of a place that never moves; None for other places.
            look: raises the error that a check on the device has reported.

        Raises:
            DeviceError: the code of a launch is missing, or the program has dynamic dimensions.
        """
        self.device, self.look, self.waits = device, look, waits()
        self._steps = program.steps
        if program.size is not None:
            raise DeviceError(f"{program.name}: sizes that vary are for the CPU so far")
        steps = [s for s in program.steps if isinstance(s, LaunchStep)]
        count = sum(len(s.args) + _EXTRA for s in steps)
        self._words = np.zeros(1 + count, dtype=np.int64)
        first = self._words.ctypes.data
        self._parameters = np.arange(first, first + 8 * (1 + count), 8, dtype=np.int64)
        self._scratch = _scratch(program, steps, device)
        self.launches: list[Launch] = []
        self.moved: dict[int, Launch] = {}
        self._users: dict[tuple[str, int], dict[int, Launch]] = {}
        functions: dict[str, object] = {}
        spots: dict[tuple[str, int], list[tuple[int, int]]] = {}
        used = 0
        for step in steps:
            kernel, key = program.triton[step.kernel], f"{step.kernel}/{step.config}"
            if key not in functions:
                functions[key] = device.load(kernel, step.config, program.device_code.get(key))
            words = self._words[used : used + len(step.args) + _EXTRA]
            kinds = kernel.parameters.values()
            for n, (kind, value) in enumerate(zip(kinds, step.args, strict=True)):
                if not isinstance(value, Place):
                    words[n] = _word(kind, value)
                elif (address := fixed(value)) is not None:
                    words[n] = address
                else:
                    spots.setdefault((value.space, value.index), []).append(
                        (used + n, value.offset)
                    )
            words[-_EXTRA] = self._scratch.data_ptr() if self._scratch is not None else 0
            parameters = self._parameters.ctypes.data + 8 * used
            launch = Launch(step, kernel, functions[key], words, parameters)
            self.launches.append(launch)
            for value in step.args:
                if isinstance(value, Place):
                    users = self._users.setdefault((value.space, value.index), {})
                    users[parameters] = launch
            used += len(words)
        self._patches = {
            key: (np.array([w for w, _ in found]), np.array([o for _, o in found], dtype=np.int64))
            for key, found in spots.items()
        }

    def patch(self, space: str, index: int, address: int) -> None:
        """Set the address of the arena, or of argument or result number `index`."""
        found = self._patches.get((space, index))
        if found is not None:
            self._words[found[0]] = address + found[1]
            self.moved.update(self._users[space, index])

    def users(self, space: str, index: int) -> int:
        """The number of launches that have the address of a value."""
        return len(self._users.get((space, index), ()))

    def at(self, n: N) -> LaunchTable:
        """The table itself: programs with launches have no dynamic dimensions."""
        return self

    def parts(self, call: Callable[[Step], HostStep]) -> Iterator[Begun]:
        """All steps of the program, in order."""
        launches = iter(self.launches)
        for step in self._steps:
            yield Begun(next(launches) if isinstance(step, LaunchStep) else call(step), self)


def size_of(kind: str) -> int:
    """The bytes of a parameter of a kernel."""
    return struct.calcsize(_FORMATS[kind]) if kind in _FORMATS else 8


def _word(kind: str, value: int | float) -> int:
    """A number as the 8-byte word of a parameter.

    Raises:
        DeviceError: the parameter's type is not that of a number.
    """
    if kind not in _FORMATS:
        raise DeviceError(f"a launch gives a number for a parameter of type {kind}")
    number = float(value) if kind.startswith("fp") else int(value)
    raw = struct.pack(_FORMATS[kind], number).ljust(8, b"\0")
    return int.from_bytes(raw, "little", signed=True)


def _scratch(program: Program, steps: list[LaunchStep], device: Launcher) -> torch.Tensor | None:
    """The scratch memory of kernels. All launches share it, since they run one after the other."""
    size = 0
    for step in steps:
        code = program.device_code.get(f"{step.kernel}/{step.config}")
        if code is not None:
            size = max(size, code.scratch * math.prod(step.grid))
    return torch.empty(size, dtype=torch.uint8, device=device.where) if size else None
