"""A device that runs nothing and checks every step.

It checks for each step:

- it is the next step of the program;
- every address is in the memory that the step names, and that memory is large enough for the tensors of its ops;
- addresses and numbers are multiples of what kernels assume (alignment, divisibility);
- the values that its ops read were written by an earlier step and not overwritten since;
- it does not write what it reads, unless its ops work in place.

At the end of a run it checks that all results were written.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

import torch

from gflow.dialects.program import (
    AtenStep,
    DeviceCode,
    LaunchStep,
    Place,
    Program,
    TensorRef,
    TritonKernel,
)
from gflow.dialects.program.accesses import Access, Accesses, Unit

from ..device import DeviceError, Span
from ..executable import Executable
from ..steps.host_step import HostStep
from ..tensors import DTYPES, extent
from .device import Launch
from .recording import Recorder

#: the divisor of addresses and numbers that kernels assume to be divisible
_ALIGNMENT = 16
#: the most programs of a launch along each dimension of its grid
_GRID = ((1 << 31) - 1, 65_535, 65_535)
#: the most bytes of a launch's parameters
_PARAMETERS = 32_764


class FakeDevice(Recorder):
    """Checks the runs of one program. runs: how many have ended without an error."""

    def __init__(self, accesses: Accesses) -> None:
        super().__init__()
        self.accesses = accesses
        self.runs = 0
        self._program: Program | None = None
        self._next = 0
        self._unit_at: dict[int, Unit] = {}
        for unit in accesses.units:
            self._unit_at |= dict.fromkeys(range(unit.begin, unit.end), unit)
        self._memory: dict[tuple[str, int], _Memory] = {}

    # -- the interface of devices

    def check(self, program: Program) -> None:
        self._program = program

    def load(self, kernel: TritonKernel, config: int, code: DeviceCode | None) -> None:
        if config >= len(kernel.configs):
            raise DeviceError(f"kernel {kernel.name} has no config {config}")

    def launch(self, launch: Launch) -> None:
        self.begin(self._launch, launch)

    def call(self, call: HostStep) -> None:
        self.begin(self._call, call)

    def mark(self) -> float:
        return 0.0

    # -- checks

    def _launch(self, launch: Launch) -> None:
        step, kernel = launch.step, launch.kernel
        with self._step(step) as unit:
            if any(not 1 <= n <= most for n, most in zip(step.grid, _GRID)):
                raise DeviceError(f"a grid of {step.grid} programs is none that a device takes")
            size = 8 * len(launch.words)
            if size > _PARAMETERS:
                raise DeviceError(f"{size} bytes of parameters; a launch takes {_PARAMETERS}")
            named = zip(kernel.parameters.items(), step.args, launch.words, strict=False)
            for (name, kind), value, word in named:
                if name in kernel.multiples and int(word) % _ALIGNMENT:
                    raise DeviceError(f"{name} is {int(word)}, promised to be a multiple of 16")
                if isinstance(value, Place):
                    self._address(name, value, int(word))
                    self._named(name, value, unit)
                elif kind.startswith("*"):
                    raise DeviceError(f"{name} is an address, and the number {value} is given")
                elif kind in ("i32", "i64") and not -(1 << (int(kind[1:]) - 1)) <= value < 1 << (
                    int(kind[1:]) - 1
                ):
                    raise DeviceError(f"{name} is {value}, which is no {kind}")

    def _call(self, call: HostStep) -> None:
        with self._step(call.step) as unit:
            for n, (ref, tensor) in enumerate(zip(call.refs(), call.bound(), strict=True)):
                if ref.type.numel:
                    self._address(f"tensor {n}", ref.place, tensor.data_ptr())
                    self._named(f"tensor {n}", ref.place, unit)
                    self._inside(f"tensor {n}", ref)

    @contextlib.contextmanager
    def _step(self, step: LaunchStep | AtenStep) -> Iterator[Unit]:
        """The checks that all kinds of steps share, before and after a step."""
        assert self._program is not None
        steps, n = self._program.steps, self._next
        if n == 0:
            self._begin_run()
        if steps[n] is not step:
            raise DeviceError(f"step {n} is due: {steps[n].label}")
        unit = self._unit_at.get(n)
        if unit is None:
            raise DeviceError("no op of the IR has this step")
        if n == unit.begin:
            self._begin_unit(unit)
        yield unit
        if n == unit.end - 1:
            for write in unit.writes:
                self._mark(write)
        self._next = (n + 1) % len(steps)
        if self._next == 0:
            self._end_run()

    def _begin_run(self) -> None:
        self._memory = {(s.space, s.index): _Memory(s) for s in self.spans}
        for space, values in (
            ("arg", self.accesses.arguments),
            ("constant", self.accesses.constants),
        ):
            for index, value in enumerate(values):
                memory = self._memory.get((space, index))
                if memory is not None:
                    memory.write(0, memory.span.size, value)

    def _end_run(self) -> None:
        for value, place in self.accesses.returned:
            memory = self._memory.get((place.space, place.index))
            if memory is not None and memory.span.size:
                self._is_there(f"{place.space} {place.index}", memory, 0, memory.span.size, value)
        self.runs += 1

    def _begin_unit(self, unit: Unit) -> None:
        for read in unit.reads:
            self._inside("what is read", read.ref)
            memory, low, high = self._range(read.ref)
            self._is_there("what is read", memory, low, high, read.value)
        for n, write in enumerate(unit.writes):
            self._inside("what is written", write.ref)
            for m, other in enumerate(unit.writes[:n]):
                # parts of one value, which begin apart, may lie between each other
                parts = write.value == other.value and write.ref.place != other.ref.place
                if not parts and _meet(write, other):
                    raise DeviceError(f"results {m} and {n} are written to the same memory")
            for m, read in enumerate(unit.reads):
                if _meet(write, read) and not ((m, n) in unit.in_place and _same(read, write)):
                    raise DeviceError(f"result {n} is written over operand {m}, which is read")
        arena = self._memory[("arena", 0)]
        for low, high in unit.scratch:
            for access in (*unit.reads, *unit.writes):
                place = access.ref.place
                first, last = place.offset, place.offset + _bytes(access.ref)
                if place.space == "arena" and first < high and low < last:
                    raise DeviceError("scratch overlaps what is read or written")
            arena.write(low, high, _NOTHING)

    def _mark(self, write: Access) -> None:
        memory, low, high = self._range(write.ref)
        memory.write(low, high, write.value)

    def _range(self, ref: TensorRef) -> tuple[_Memory, int, int]:
        memory = self._memory[(ref.place.space, ref.place.index)]
        return memory, ref.place.offset, ref.place.offset + _bytes(ref)

    def _address(self, name: str, place: Place, address: int) -> None:
        """Check that an address is that of the place it stands for."""
        memory = self._memory.get((place.space, place.index))
        if memory is None:
            raise DeviceError(f"{name} is in {place.space} {place.index}, which there is none of")
        span = memory.span
        if address != span.begin + place.offset and span.size:
            at = (
                f"{address - span.begin} bytes into"
                if 0 <= address - span.begin < span.size
                else "not in"
            )
            raise DeviceError(f"{name} is {at} {_name(span)}; byte {place.offset} was planned")
        if not 0 <= place.offset <= span.size:
            raise DeviceError(f"{name} is at byte {place.offset} of {_name(span)}, of {span.size}")

    def _named(self, name: str, place: Place, unit: Unit) -> None:
        """Check that a place is one that the step's ops access."""
        if place.space == "status":
            return
        if place.space == "arena" and any(
            low <= place.offset <= high for low, high in unit.scratch
        ):
            return
        for access in (*unit.reads, *unit.writes):
            known = access.ref.place
            if known[:2] == place[:2] and 0 <= place.offset - known.offset <= _bytes(access.ref):
                return
        where = f"byte {place.offset} of {place.space} {place.index}"
        raise DeviceError(f"{name} is {where}, of which its ops know nothing")

    def _inside(self, what: str, ref: TensorRef) -> None:
        """Check that a tensor is within its memory."""
        memory = self._memory.get((ref.place.space, ref.place.index))
        if memory is None:
            raise DeviceError(f"{what} is in {ref.place.space} {ref.place.index}, which there is none of")  # fmt: skip
        last = ref.place.offset + _bytes(ref)
        if ref.place.offset < 0 or last > memory.span.size:
            raise DeviceError(
                f"{what} ({ref.type}) ends at byte {last} of {_name(memory.span)}, of {memory.span.size}"
            )

    def _is_there(self, what: str, memory: _Memory, low: int, high: int, value: int) -> None:
        found = memory.values(low, high)
        if found - {value}:
            where = f"bytes {low} to {high} of {_name(memory.span)}"
            if found == {_NOTHING}:
                raise DeviceError(f"{what} was never written: {where}")
            raise DeviceError(f"{what} was overwritten, or is not all there: {where}")


#: memory that holds no value
_NOTHING = -1


class _Memory:
    """Which value each byte of some memory holds; runs of bytes, in order."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self._starts: list[int] = [0]
        self._values: list[int] = [_NOTHING]

    def write(self, low: int, high: int, value: int) -> None:
        if low >= high:
            return
        first = bisect_left(self._starts, low)
        after = bisect_right(self._starts, high)
        behind = self._values[after - 1]
        if after > 0 and self._starts[after - 1] == high:
            after -= 1  # a run begins right there
            self._starts[first:after] = [low]
            self._values[first:after] = [value]
        else:
            self._starts[first:after] = [low, high]
            self._values[first:after] = [value, behind]

    def values(self, low: int, high: int) -> set[int]:
        """The values that some bytes hold."""
        if low >= high:
            return set()
        first = bisect_right(self._starts, low) - 1
        after = bisect_left(self._starts, high)
        return set(self._values[first:after])


def _bytes(ref: TensorRef) -> int:
    return extent(ref.type, ref.strides) * ref.type.itemsize


def _meet(a: Access, b: Access) -> bool:
    p, q = a.ref.place, b.ref.place
    return (
        p[:2] == q[:2]
        and p.offset < q.offset + _bytes(b.ref)
        and q.offset < p.offset + _bytes(a.ref)
    )


def _same(read: Access, write: Access) -> bool:
    return read.ref.place == write.ref.place and _bytes(read.ref) == _bytes(write.ref)


def _name(span: Span) -> str:
    return "the arena" if span.space == "arena" else f"{span.space} {span.index}"


def dry_run(program: Program, accesses: Accesses, calls: int = 3) -> FakeDevice:
    """Run a program `calls` times on a fake device, with tensors of arbitrary contents.

    Raises:
        DeviceError: a step violates a rule. The message names the step.
    """
    device = FakeDevice(accesses)
    run = Executable(program, device)
    args = [_blank(a.type, a.strides) for a in program.arguments]
    for _ in range(calls):
        run(args)
    return device


def _blank(ty: Any, strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(ty.shape, strides, dtype=DTYPES[ty.dtype])
