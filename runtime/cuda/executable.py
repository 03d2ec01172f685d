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
from contextlib import AbstractContextManager
from functools import partial

import torch

from gflow.dialects.program import AtenStep, LaunchStep, Place, Program, Step

from ..arena import Arena
from ..aten_step import AtenCall
from ..bound_program import BoundProgram
from ..interrupts import HalfDone, held
from ..tensors import extent
from .binding import Binding
from .capture import Graphs
from .checks import CheckReport
from .device import Device, DeviceError, Launch, Span
from .launches import LaunchTable

_log = logging.getLogger("gflow")
_CTRL_C = (signal.SIGINT,)


class CudaExecutable(BoundProgram):
    """A program that is ready to run on a device. Calls are serialized by a lock.

    With `GFLOW_CUDA_SYNC=1` in the environment each step is waited for, and an error of the device names
    the step that it is of; else it surfaces at some later one.
    """

    _table: LaunchTable

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
        self.device = device
        with device.current():
            super().__init__(program, device.where, arena, kept_results)
            self._checks = CheckReport(program, device)
            self._table = LaunchTable(program, device, self._fixed_address)
        self.binding = Binding(program, device)
        self._plan = list(self._items())
        self._sync = os.environ.get("GFLOW_CUDA_SYNC", "0") not in ("", "0")
        self._graphs = Graphs(self, graphs and not self._sync)
        self._arena.join(self)

    # -- set-up

    def _current(self) -> AbstractContextManager[object]:
        return self.device.current()

    def _block_moved(self) -> None:
        self._graphs.drop()

    @property
    def no_graph(self) -> str:
        """Why calls don't run as one CUDA graph; "" if they do, or will once they have run."""
        return self._graphs.problem

    def synchronize(self) -> None:
        """Wait for all calls.

        Raises:
            IndexError, RuntimeError, …: a check failed in one of them, which the message names.
            DeviceError: the device has failed.
        """
        with self._arena.lock, self.device.current():
            self.device.synchronize()
            self._checks.look()

    def _fixed_address(self, place: Place) -> int | None:
        if place.space == "status":
            return self._checks.address(place)
        return super()._fixed_address(place)

    def _items(self) -> Iterator[Launch | AtenCall]:
        launches = iter(self._table.launches)
        for step in self.program.steps:
            if isinstance(step, LaunchStep):
                yield next(launches)
            elif isinstance(step, AtenStep):
                yield self._aten_call(step)
            else:
                raise DeviceError(
                    f"{self.program.name} has a step for another device: {step.label}"
                )

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

    def steps(self) -> Iterator[tuple[Step, Callable[[], None]]]:
        """Each step with a function that begins it, for the arguments that are bound."""
        for step, item in zip(self.program.steps, self._plan):
            yield step, partial(self._begin, item)

    def _enter(self, args: Sequence[torch.Tensor]) -> None:
        if len(args) != len(self.program.arguments):
            self._wrong_count(len(args))
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

    def place(self, args: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        super().place(args, results)
        if self.device.checks:
            self.device.placed(self._spans(args, results))

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

    def __repr__(self) -> str:
        return f"CudaExecutable({self.program.name}, {self.program.target}, {self.device.where})"
