"""Runs a `Program` for CUDA: launches and ATen calls on PyTorch's current stream, in an arena of its
caching allocator; as one CUDA graph once that is possible (`capture.py`).

In steady state nothing is allocated and nothing waits for the device.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from gflow.dialects.program import AtenStep, LaunchStep, Place, Program, Step, TensorRef

from ..arena import Arena
from ..aten_step import AtenCall
from ..interrupts import HalfDone, held
from ..results import ResultPool
from ..tensors import DTYPES, extent, view_bytes, view_tensor
from .binding import Binding
from .capture import Graphs
from .checks import CheckReport
from .device import Device, DeviceError, Launch, Span
from .launches import LaunchTable

_log = logging.getLogger("gflow")
_CTRL_C = (signal.SIGINT,)


class CudaExecutable:
    """A program that is ready to run on a device. Calls are serialized by a lock.

    With `GFLOW_CUDA_SYNC=1` in the environment each step is waited for, and an error of the device names
    the step that it is of; else it surfaces at some later one.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        arena: Arena | None = None,
        *,
        kept_results: int = 4,
        graphs: bool = True,
    ) -> None:
        """
        Args:
            arena: shared with executables that don't run at the same time; one of its own without it.
            kept_results: how many buffers of each result are kept, to be used again.
            graphs: whether the steps may become one CUDA graph.

        Raises:
            DeviceError: the program is not for this device, or code is missing.
        """
        device.check(program)
        self.program, self.device = program, device
        self._arena = (arena or Arena()).on(device.where)
        self._memory: torch.Tensor | None = None
        with device.current():
            self.constants = [_constant(c, device.where) for c in program.constants]
            self._checks = CheckReport(program, device)
            self._table = LaunchTable(program, device, self._fixed_address)
        self._pools = [
            None
            if r.alias is not None
            else ResultPool(r.type.shape, DTYPES[r.type.dtype], kept_results, device.where)
            for r in program.results
        ]
        self.binding = Binding(program, device)
        self._addresses = [-1] * len(program.arguments)
        self._result_addresses = [-1] * len(program.results)
        self._args: Sequence[torch.Tensor] = ()
        self._results: Sequence[torch.Tensor] = ()
        self._plan = list(self._items())
        self._calls = [item for item in self._plan if isinstance(item, AtenCall)]
        self._moving = [c for c in self._calls if _moves(c)]
        self._sync = os.environ.get("GFLOW_CUDA_SYNC", "0") not in ("", "0")
        self.done = False  # whether the latest call has taken place
        self._graphs = Graphs(self, graphs and not self._sync)
        self._arena.join(self)

    # -- set-up

    @property
    def arena_bytes(self) -> int:
        """What the program needs of an arena."""
        return self.program.arena_bytes

    @property
    def arena(self) -> torch.Tensor:
        """The memory that values have between steps."""
        with self._arena.lock, self.device.current():
            return self._settle()

    @property
    def no_graph(self) -> str:
        """Why calls don't run as one CUDA graph; "" if they do, or will once they have run."""
        return self._graphs.problem

    def use_arena(self, arena: Arena) -> None:
        """Run in `arena`, or its sibling on the device, from now on."""
        arena = arena.on(self.device.where)
        if arena is not self._arena:
            with self._arena.lock:
                self._arena.leave(self)
                self._arena = arena
                arena.join(self)

    def synchronize(self) -> None:
        """Wait for all calls.

        Raises:
            IndexError, RuntimeError, …: a check failed in one of them, which the message names.
            DeviceError: the device has failed.
        """
        with self._arena.lock, self.device.current():
            self.device.synchronize()
            self._checks.look()

    def close(self) -> None:
        """Give back the arena, until the next call."""
        self._arena.leave(self)

    def let_go(self) -> None:
        """Drop what refers to the arena's block; the next call finds the new one."""
        self._memory = None
        self._graphs.drop()
        for call in self._calls:
            call.unbind()
        self._addresses = [-1] * len(self._addresses)

    def _settle(self) -> torch.Tensor:
        """The arena's block, with all addresses in it."""
        if self._memory is None:
            self._arena.join(self)
        memory = self._arena.memory()
        if memory is not self._memory:
            self._memory = memory
            self._table.patch("arena", 0, memory.data_ptr())
            self._addresses = [-1] * len(self._addresses)
            self._graphs.drop()
            for call in self._calls:
                if not _moves(call):
                    call.bind(self._locate)
        return memory

    def _fixed_address(self, place: Place) -> int | None:
        if place.space == "constant":
            return self.constants[place.index].data_ptr() + place.offset
        if place.space == "status":
            return self._checks.address(place)
        return None

    def _items(self) -> Iterator[Launch | AtenCall]:
        launches = iter(self._table.launches)
        for step in self.program.steps:
            if isinstance(step, LaunchStep):
                yield next(launches)
            elif isinstance(step, AtenStep):
                yield AtenCall(step)
            else:
                raise DeviceError(
                    f"{self.program.name} has a step for another device: {step.label}"
                )

    def _locate(self, ref: TensorRef) -> torch.Tensor:
        space, index, _ = ref.place
        if space == "arena":
            assert self._memory is not None
            return view_bytes(self._memory, ref)
        if space == "constant":
            return view_bytes(self.constants[index], ref)
        return view_tensor(self._args[index] if space == "arg" else self._results[index], ref)

    # -- calls

    def __call__(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Begin a run; as with PyTorch's own ops, results are there for what comes on the same stream.

        Args:
            args: the function's arguments in order, with the types and strides of
                `program.arguments`; that they have them is for the caller to see to.

        Returns:
            The results in order; an aliased one is the argument that was updated.

        Raises:
            ValueError: the number of arguments is wrong.
            IndexError, RuntimeError, …: a check failed in an earlier call, which the message names.
            DeviceError: an argument is on another device, or the device has failed.
        """
        self.done = False
        # steps only begin here, and take next to no time: Ctrl-C waits until all have
        with held(_CTRL_C), self._arena.lock, torch.no_grad(), self.device.current():
            self._enter(args)
            results = self._graphs.run(args)
            if results is None:
                bound = self.bind(args)
                results = self.take_results(bound)
                self.place(bound, results)
                self.run_steps()
            found = self._finished(args, results)
            self.done = True
        return found

    def timed(
        self, args: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[tuple[float, float]]]:
        """Run once, step by step; returns the results, and when each step began and ended, in
        seconds from the first one's beginning, by the device's clock."""
        with self._arena.lock, torch.no_grad(), self.device.current():
            self._enter(args)
            bound = self.bind(args)
            results = self.take_results(bound)
            self.place(bound, results)
            marks = [self.device.mark()]
            for item in self._plan:
                self._begin(item)
                marks.append(self.device.mark())
            at = [self.device.seconds(marks[0], mark) for mark in marks]
            self._checks.look()
            return self._finished(args, results), list(itertools.pairwise(at))

    def profile(self, args: Sequence[torch.Tensor]) -> list[tuple[Step, float]]:
        """Run once, step by step; returns each step and its seconds."""
        _, times = self.timed(args)
        return [(step, end - start) for step, (start, end) in zip(self.program.steps, times)]

    def steps(self) -> Iterator[tuple[Step, Callable[[], None]]]:
        """Each step with a function that begins it, for the arguments that are bound."""
        for step, item in zip(self.program.steps, self._plan):
            yield step, partial(self._begin, item)

    def _enter(self, args: Sequence[torch.Tensor]) -> None:
        if len(args) != len(self.program.arguments):
            raise ValueError(
                f"'{self.program.name}' takes {len(self.program.arguments)} arguments, "
                f"{len(args)} were given"
            )
        self._checks.look()
        self._settle()
        stream = self.device.stream()
        if stream != self._arena.stream:
            # the arena and the buffers of results may still be in use over there
            if self._arena.stream is not None:
                self.device.wait_for(self._arena.stream)
            self._arena.stream = stream

    def _finished(
        self, args: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        self.binding.finish()
        return [
            value if r.alias is None else args[r.alias]
            for r, value in zip(self.program.results, results)
        ]

    # -- parts of a call, for graphs too

    def bind(self, args: Sequence[torch.Tensor], copied: Sequence[int] = ()) -> list[torch.Tensor]:
        """The arguments as kernels get them. copied: those that may not be used where they lie."""
        self.binding.copied = set(copied)
        return self.binding.bind(args)

    def bind_again(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The same for arguments that lie where they did at the last `bind`, but for copied ones."""
        return self.binding.bind_again(args)

    def take_results(self, bound: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Memory for the results; of aliased ones their argument's."""
        return [
            pool.take() if pool is not None else bound[r.alias or 0]
            for r, pool in zip(self.program.results, self._pools)
        ]

    def place(self, bound: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Put the addresses of arguments and results into the launches and ATen calls."""
        moved = self._move("arg", bound, self._addresses)
        moved |= self._move("result", results, self._result_addresses)
        if moved:
            self._args, self._results = bound, results
            for call in self._moving:
                call.bind(self._locate)
            self._args, self._results = (), ()
        if self.device.checks:
            self.device.placed(self._spans(bound, results))

    def _spans(self, bound: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> list[Span]:
        """All memory that steps may touch."""
        assert self._memory is not None
        found = [Span("arena", 0, self._memory.data_ptr(), self.arena_bytes)]
        for i, (argument, tensor) in enumerate(zip(self.program.arguments, bound)):
            size = extent(argument.type, tensor.stride()) * argument.type.itemsize
            found.append(Span("arg", i, tensor.data_ptr(), size))
        for i, (result, tensor) in enumerate(zip(self.program.results, results)):
            if result.alias is None:
                found.append(Span("result", i, tensor.data_ptr(), tensor.nbytes))
        for i, tensor in enumerate(self.constants):
            found.append(Span("constant", i, tensor.data_ptr(), tensor.nbytes))
        return found + self._checks.spans()

    def run_steps(self) -> None:
        """Begin all steps.

        Raises:
            HalfDone: one has failed after others that write into arguments.
        """
        for n, item in enumerate(self._plan):
            try:
                self._begin(item)
            except DeviceError:
                raise
            except Exception as failure:
                if n <= self.program.first_write:
                    raise
                raise HalfDone(self.program.name, item.step.label, failure) from failure

    def _begin(self, item: Launch | AtenCall) -> None:
        try:
            if isinstance(item, AtenCall):
                self.device.call(item)
            else:
                self.device.launch(item)
            if self._sync:
                self.device.synchronize()
                self._checks.look(at_once=True)
        except DeviceError as error:
            raise DeviceError(self._explained(item, error)) from None

    def _explained(self, item: Launch | AtenCall, error: DeviceError) -> str:
        kernel = f"kernel {item.step.kernel}, " if isinstance(item, Launch) else ""
        if self._sync:
            return f"{error}\n  in {kernel}{item.step.label}"
        return (
            f"{error}\n  seen at {kernel}{item.step.label}; an earlier step may have caused it: "
            "GFLOW_CUDA_SYNC=1 in the environment waits for each step, and finds it"
        )

    def _move(self, space: str, tensors: Sequence[torch.Tensor], addresses: list[int]) -> bool:
        """Write the addresses of tensors that moved; returns whether any did."""
        moved = False
        for i, tensor in enumerate(tensors):
            address = tensor.data_ptr()
            if address != addresses[i]:
                moved = True
                addresses[i] = address
                self._table.patch(space, i, address)
        return moved

    def __repr__(self) -> str:
        return f"CudaExecutable({self.program.name}, {self.program.target}, {self.device.where})"


def _moves(call: AtenCall) -> bool:
    """Whether it is on tensors that may move between runs."""
    return any(r.place.space in ("arg", "result") for r in call.refs())


def _constant(data: bytes, where: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8).to(where)
