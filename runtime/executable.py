"""Runs a `Program` on a device: its memory, the binding of a call, its steps in order. A call is atomic.

    numbers of a size                   cached for the latest sizes, a frame each (`frames.py`)
    arena, constants                    set once, and again when the arena's block moves
    arguments and results of a call     set when their addresses differ from those of the previous call
        → addresses in the device's code, tensors of calls
    parts of steps                      run in order; after an interrupt either finished or undone

In steady state nothing is allocated, and on an asynchronous device the host does not wait.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import length_hint
from threading import get_ident
from typing import Any

import torch

from gflow.dialects.extents import N
from gflow.dialects.program import (
    AtenStep,
    CollectiveStep,
    EngineStep,
    Place,
    Program,
    ShardStep,
    Step,
    WaitStep,
)

from .arena import Arena
from .checks import CheckReport
from .cpu.device import CPU
from .device import Device, DeviceError, Span
from .distributed.agreement import agree
from .distributed.groups import Groups
from .distributed.pieces import any_held, gather, piece_of
from .distributed.steps import CollectiveCall, InFlight, ShardCall, WaitCall
from .engines.handed import handed_over
from .engines.step import EngineCall, Model
from .frames import Frame
from .interrupts import HalfDone, held
from .results import Block, ResultPool
from .sizes import check
from .steps.aten_step import AtenCall
from .steps.host_step import HostStep
from .tensors import extent

#: the number of sizes whose frames are cached
_FRAMES = 256
#: bytes of result buffers that are cached for all sizes; twice those of the latest size if these are more
_SMALL = 1 << 26
#: bytes of arguments and results to which calls of PyTorch may keep references while another size runs
_HELD = 1 << 20


#: a part of a call: its name, start and end, in seconds of `time.perf_counter`
HostSpan = tuple[str, float, float]


class Executable:
    """A program that is ready to run on a device. Calls are serialized by the arena's lock.

    On an asynchronous device, a call begins the steps on PyTorch's current stream. With `GFLOW_CUDA_SYNC=1` in the
    environment it waits for each step, and an error of the device names the step.

    done: whether the latest call is complete.
    """

    def __init__(
        self,
        program: Program,
        device: Device = CPU,
        arena: Arena | None = None,
        *,
        kept_results: int = 4,
        graphs: bool = True,
    ) -> None:
        """
        Args:
            arena: shared with executables that don't run at the same time; by default a new one.
            kept_results: how many buffers of each result are reused.
            graphs: whether the steps may become one graph, if the device supports that.

        Raises:
            DeviceError: the program is not for this device, or code is missing.
            ValueError: the text of a kernel is not valid MLIR.
        """
        device.check(program)
        self.program, self.device = program, device
        self._groups = Groups(program.mesh)
        self._kept_results = kept_results
        with device.section():
            self.constants = [
                torch.frombuffer(bytearray(c or b"\0"), dtype=torch.uint8).clone().to(device.where)
                for c in program.constants
            ]
            self._checks = CheckReport(program, device)
            look = partial(self._checks.look, at_once=True)
            self.code: Any = device.code(program, self._fixed_address, look)
        self._looks = device.asynchronous and bool(program.checks)
        self._aliased = [(i, r.alias) for i, r in enumerate(program.results) if r.alias is not None]
        self.binding = device.binding(program)
        self._arena = (arena or Arena()).on(device.where)
        self._memory: torch.Tensor | None = None  # the arena's block
        self._targets = [r.alias or 0 for r in program.results]
        self._ranked = any(isinstance(s, CollectiveStep) for s in program.steps)
        self._flying, self._agreed = InFlight(), False
        arguments = [*enumerate(program.arguments)]
        self._divided = [i for i, a in arguments if a.pieces is not None]
        self._wholes = [i for i, a in arguments if a.pieces is None]
        self._compiled: dict[int, Model] = {}  # steps of other engines, for all sizes
        self._frames: OrderedDict[N, Frame] = OrderedDict()
        self._pooled: OrderedDict[N, Frame] = OrderedDict()  # those with result buffers
        #: results that only another program reads: a buffer of the largest size serves all sizes
        self.inner: frozenset[int] = frozenset()
        #: results that share a buffer (`join_results`), and the bytes of those of each thread's latest call
        self.joined: frozenset[int] = frozenset()
        self._taken: dict[int, tuple[torch.Tensor, Block]] = {}
        #: the pools of joined and inner results, and of results whose shape is the same for all sizes
        self._shared: dict[tuple[int, bool], tuple[int, ResultPool]] = {}
        self._bound = True  # whether the addresses that were set are consistent
        self._frame = self._new_frame(0 if program.size is None else program.size.lowest)
        self._graph = device.graph(self, graphs)
        self.done = False
        self._arena.join(self)

    # -- set-up

    def _host_step(
        self, n: N, handed: Mapping[int, tuple[EngineStep, int]], step: Step
    ) -> HostStep:
        """A step that the host runs in calls of size `n`, bound to memory. handed: see `handed_over`."""
        call: HostStep
        if isinstance(step, CollectiveStep):
            call = CollectiveCall(step, self._groups, self._flying)
        elif isinstance(step, WaitStep):
            call = WaitCall(step, self._flying)
        elif isinstance(step, ShardStep):
            call = ShardCall(step, self._groups)
        elif isinstance(step, EngineStep):
            own = [k for given, k in handed.values() if given is step]
            call = EngineCall(step, n, self._compiled, own)
        elif isinstance(step, AtenStep):
            call = AtenCall(step)
        else:
            raise DeviceError(f"{self.program.name} has a step for another device: {step.label}")
        return call

    def _new_frame(self, n: N) -> Frame:
        """The frame for calls of size `n`."""
        if self.program.size is not None:
            check(self.program.size, n)
        handed = handed_over(self.program, n)
        host_step = partial(self._host_step, n, handed)
        frame = Frame(self.program, self.code.at(n), n, host_step, self.constants, handed)
        if len(self._frames) >= _FRAMES:
            dropped, oldest = self._frames.popitem(last=False)
            self._pooled.pop(dropped, None)
            oldest.unbind()
        self._frames[n] = frame
        return frame

    def _have_buffers(self, frame: Frame, inference: bool) -> None:
        """Give the frame buffers for its results; the least recently used frames' buffers are dropped."""
        given = (inference, self._shared, self.inner, self.joined)
        frame.make_pools(self._kept_results, self.device.where, *given)
        self._pooled[frame.n] = frame
        allowed = max(_SMALL, 2 * frame.result_bytes)
        held = sum(f.result_bytes for f in self._pooled.values())
        while held > allowed and len(self._pooled) > 1:
            _, oldest = self._pooled.popitem(last=False)
            held -= oldest.result_bytes
            oldest.drop_buffers()

    def _fixed_address(self, place: Place) -> int | None:
        """The address of a place that never moves."""
        if place.space == "constant":
            return self.constants[place.index].data_ptr() + place.offset
        return self._checks.address(place) if place.space == "status" else None

    def _forget(self) -> None:
        """Set all addresses anew at the next call: the previous call was interrupted while setting them."""
        for frame in self._frames.values():
            frame.unplace()
        self._memory, self._bound = None, True

    # -- memory

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arena that the program needs."""
        return self.program.arena_bytes

    @property
    def arena(self) -> torch.Tensor:
        """The memory of values between steps: a flat uint8 tensor."""
        with self.device.section(), self._arena.lock:
            return self._settle()

    def use_arena(self, arena: Arena) -> None:
        """Run in `arena`, or its sibling on the device, from now on."""
        arena = arena.on(self.device.where)
        if arena is not self._arena:
            with self._arena.lock:
                self._arena.leave(self)
                self._arena = arena
                arena.join(self)

    def close(self) -> None:
        """Release the arena, until the next call."""
        self._arena.leave(self)

    def join_results(self, results: Collection[int]) -> list[int]:
        """Let results that only another program of ours reads share a buffer: after a call, who holds `take_whole()`
        holds them.

        Returns:
            Those that share it. None do where the device or an engine chooses the memory of results.
        """
        if self._graph is None and not any(isinstance(s, EngineStep) for s in self.program.steps):
            self.joined = frozenset(i for i in results if self.program.results[i].alias is None)
            for frame in self._frames.values():
                frame.drop_buffers()
                frame.unplace()
        return sorted(self.joined)

    def take_whole(self) -> tuple[torch.Tensor, Block]:
        """The bytes of the joined results of this thread's latest call, and where in them these are."""
        return self._taken.pop(get_ident())

    def let_go(self) -> None:
        """Drop all references to the arena's block; the next call uses the new one."""
        self._memory = None
        if self._graph is not None:
            self._graph.drop()
        for frame in self._frames.values():
            frame.unbind()

    def _settle(self) -> torch.Tensor:
        """The arena's block, with the frame's addresses set for it."""
        if self._memory is None:
            self._arena.join(self)
            self._memory = self._arena.memory()
            if self._graph is not None:
                self._graph.drop()
        if self._frame.memory is not self._memory:
            self._frame.settle(self._memory)
        return self._memory

    # -- calls

    def __call__(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run once. On an asynchronous device, results are valid for later work on the same stream.

        Args:
            args: the function's arguments in order, with the types and strides of `program.arguments`; the caller must
                check them.

        Returns:
            The results in order; an aliased one is the argument that was updated.

        Raises:
            ValueError: the number of arguments is wrong, or the program is for other sizes.
            IndexError, RuntimeError, …: a check failed; on an asynchronous device possibly in an earlier call, which
                the message names.
            DeviceError: an argument is on another device, or the device has failed.
            HalfDone: a step has failed after arguments were written.
        """
        self.done = False
        with self.device.section(), self._arena.lock:
            gradients = torch.is_grad_enabled()
            try:  # no_grad() takes longer than a small program
                torch._C._set_grad_enabled(False)
                self._enter(args)
                if self._divided or any_held():
                    args = self._pieces(args)
                results = None if self._graph is None else self._graph.run(args)
                if results is None:
                    results = self._bind(args)
                    self.run_steps()
                if self._frame.handed:
                    self._take_handed(results)
                if self.binding is not None:
                    results = self._finished(args, results)
                self._bound = self.done = True
            finally:
                torch._C._set_grad_enabled(gradients)
        return results

    def timed(
        self, args: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[tuple[float, float]], list[HostSpan]]:
        """Run once, step by step.

        Returns:
            The results; start and end of each step by the device's clock (in
            seconds of `time.perf_counter`, as if the first step had begun when the host began it); and spans of the
            host's time: arguments, clock (the overhead of this function), steps, results.
        """
        device, entered = self.device, time.perf_counter()
        with device.section(), self._arena.lock, torch.no_grad():
            self._enter(args)
            args = self._pieces(args)
            results = self._bind(args)
            device.ready()
            bound = time.perf_counter()
            runs = [run for _, run in self.steps()]
            start, marks = time.perf_counter(), [device.mark()]
            for run in runs:
                run()
                marks.append(device.mark())
            at = [start + device.seconds(marks[0], mark) for mark in marks]
            ran = max(at[-1], start)
            self._checks.look()
            self._take_handed(results)
            results = self._finished(args, results)
        done = max(time.perf_counter(), ran)
        spans = [("arguments", entered, bound), ("clock", bound, start), ("steps", start, ran)]
        return results, list(pairwise(at)), [*spans, ("results", ran, done)]

    def profile(self, args: Sequence[torch.Tensor]) -> list[tuple[Step, float]]:
        """Run once, step by step. Returns each step and its seconds."""
        _, times, _ = self.timed(args)
        return [(step, end - start) for step, (start, end) in zip(self.program.steps, times)]

    def steps(self) -> Iterator[tuple[Step, Callable[[], None]]]:
        """Each step with a function that runs it, for the bound arguments."""
        for part in self._frame.parts:
            yield from part.each()

    def synchronize(self) -> None:
        """Wait for all calls.

        Raises:
            IndexError, RuntimeError, …: a check failed in one of them, which the message names.
            DeviceError: the device has failed.
        """
        with self.device.section(), self._arena.lock:
            self.device.synchronize()
            self._checks.look()

    @property
    def host_uses(self) -> frozenset[tuple[str, int]]:
        """The arguments and results, as ("arg", number) and ("result", number), that steps of the host access."""
        return self._frame.host_uses

    @property
    def no_graph(self) -> str | None:
        """Why calls don't run as one graph; "" if they do, or will after the first calls. None: the device has no
        graphs."""
        return None if self._graph is None else self._graph.problem

    @property
    def graph_copies(self) -> str:
        """Which results calls copy out of their graph, and why; "" where they copy none."""
        copied = [] if self._graph is None else self._graph.copied
        if not copied or self.no_graph:
            return ""
        why = self._graph.fixed or "steps of PyTorch access them"  # type: ignore[union-attr]
        return f"{len(copied)} of {len(self.program.results)} results are copied out of it: {why}"

    # -- parts of a call, for graphs too

    def _enter(self, args: Sequence[torch.Tensor]) -> None:
        """Prepare for a call."""
        given, wanted = len(args), len(self.program.arguments)
        if given != wanted:
            raise ValueError(f"'{self.program.name}' takes {wanted} arguments, {given} were given")
        if self._looks:
            self._checks.look()
        if self._ranked:
            self._meet()
        if not self._bound:
            self._forget()
        self._bound = False
        size = self.program.size
        if size is not None and (n := size.of(args)) != self._frame.n:
            if self._frame.held > _HELD:
                self._frame.release()
            known = self._frames.get(n)
            if known is None:
                known = self._new_frame(n)
            else:
                self._frames.move_to_end(n)
            self._frame = known
        if self._frame.memory is None:
            self._settle()
        if self.device.asynchronous:
            # the arena and the buffers of results may still be in use on another stream
            self._arena.stream = self.device.follow(self._arena.stream)

    def _meet(self) -> None:
        """Before a run, ranks compare their collectives, once, and wait for those of an earlier run."""
        if not self._agreed:
            agree(self.program, self._groups)
            self._agreed = True
        self._flying.drain()
        self._flying.failed = None

    def _pieces(self, args: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The arguments, with this rank's shards of those that the program has sharded. An argument that is sharded
        for another program is gathered."""
        mine = list(args)
        gather([args[i] for i in self._wholes])
        for i in self._divided:
            known = self.program.arguments[i]
            if known.part:
                mine[i] = mine[i].view(-1)
            elif known.type.numel > 1 and tuple(mine[i].shape) == known.type.shape:
                continue  # the caller passes shards
            elif known.pieces is not None:
                group = self._groups.of(known.pieces)
                mine[i] = piece_of(mine[i], group, known.type.numel)
        return mine

    def _bind(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Set the addresses of arguments and of new results. Returns the results."""
        bound = args if self.binding is None else self.binding.bind(args)
        results = self.take_results(bound)
        self.place(bound, results)
        self._bound = True
        return results

    def take_results(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Memory for the results; for aliased ones that of their argument."""
        targets = self._targets
        results = [*map(args.__getitem__, targets)] if args else [torch.Tensor()] * len(targets)
        frame = self._frame
        inference = torch.is_inference_mode_enabled()
        if not frame.fresh:
            return results
        if frame.pools is None or frame.inference is not inference:
            self._have_buffers(frame, inference)
        elif len(self._pooled) > 1:
            self._pooled.move_to_end(frame.n)
        for i, pool in frame.pools or ():
            results[i] = pool.take()
        if frame.block is not None:
            whole = frame.block.take()
            self._taken[get_ident()] = whole, frame.block
            for i, part in zip(frame.joined, frame.block.parts(whole)):
                results[i] = part
        return results

    def place(self, args: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Set the addresses of arguments and results in native steps and calls."""
        self._frame.place(args, results)
        if self.device.checks:
            self.device.placed(self._spans(args, results))

    def run_steps(self) -> None:
        """Run all parts.

        Raises:
            HalfDone: one has failed after arguments were written.
        """
        parts = self._frame.parts
        if self.device.asynchronous:
            self.device.ready()
        for part in parts:
            part.prepare()
        left = iter(parts)
        try:
            for part in left:
                part.run()
            self.done = True
        except BaseException as error:
            try:
                self._complete(len(parts) - length_hint(left), error)
            finally:
                self._flying.drain()
            raise

    def _complete(self, begun: int, error: BaseException) -> None:
        """After an exception in the middle: if arguments were written, run the rest.

        An exception may come between any two bytecodes (Ctrl-C, a time limit), so possibly no step has failed. A call
        of PyTorch that may or may not have ended is repeated, since it reads nothing that it writes. On an
        asynchronous device, no step is begun twice.

        Args:
            begun: how many parts were begun. `done` says whether the call is complete.

        Raises:
            HalfDone: a step has failed after arguments were written.
        """
        with held():
            parts, at, torn = self._frame.parts, begun, False
            if begun and not parts[begun - 1].has_run:
                at, torn = begun - 1, parts[begun - 1].torn
            if at <= self._frame.first_write and not torn:
                for part in reversed(parts[:begun]):
                    part.undo()
                return
            if self.device.asynchronous:
                if isinstance(error, Exception) and not isinstance(error, DeviceError):
                    raise HalfDone(self.program.name, parts[at].label, error) from error
                return
            try:
                for k, part in enumerate(parts[at:]):
                    if k == 0 and at < begun:
                        part.undo()
                    part.run()
            except Exception as failure:
                raise HalfDone(self.program.name, part.label, failure) from failure
            self.done = True

    def _finished(
        self, args: Sequence[torch.Tensor], results: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The results for the caller. Values that were written to copies of arguments are copied back."""
        if self.binding is not None and self.binding.finish():
            for i, alias in self._aliased:
                results[i] = args[alias]
        return results

    def _take_handed(self, results: list[torch.Tensor]) -> None:
        """Add results that engines have created in their own memory."""
        calls = {id(c.step): c for c in self._frame.moving + self._frame.staying}
        for i, (step, n) in self._frame.handed.items():
            call = calls[id(step)]
            assert isinstance(call, EngineCall)
            results[i] = call.take(n)

    def _spans(self, bound: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> list[Span]:
        """All memory that steps may access."""
        assert self._memory is not None
        found = [Span("arena", 0, self._memory.data_ptr(), self.arena_bytes)]
        for i, (argument, tensor) in enumerate(zip(self.program.arguments, bound)):
            size = extent(argument.type, tensor.stride()) * argument.type.itemsize
            found.append(Span("arg", i, tensor.data_ptr(), size))
        for i in self._frame.fresh:
            found.append(Span("result", i, results[i].data_ptr(), results[i].nbytes))
        for i, tensor in enumerate(self.constants):
            found.append(Span("constant", i, tensor.data_ptr(), tensor.nbytes))
        return found + self._checks.spans()

    def __repr__(self) -> str:
        return f"Executable({self.program.name}, {self.program.target}, {self.device.where})"
