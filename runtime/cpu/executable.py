"""Runs a `Program`: an arena, a flat table of kernel launches, ATen calls between them.

Everything that does not change between calls is set up once: the words of every kernel with their
addresses, tensors for ATen steps. A call patches the addresses of arguments that moved and of
results (and of the arena, where executables share one that grew), then runs the table; native steps
in a row are one call into generated code, which shares PyTorch's OpenMP threads.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import length_hint

import torch

from gflow.dialects.program import AtenStep, Place, Program, Step, TensorRef

from ..arena import Arena
from ..aten_step import AtenCall
from ..interrupts import HalfDone, held
from ..results import ResultPool
from ..sizes import check, fixed, fixed_ref
from ..tensors import DTYPES, view_bytes, view_tensor
from .table import KernelTable, Segment, has_run, prepare

#: sizes whose result buffers are kept
_SIZES = 8


class Executable:
    """A program that is ready to run.

    Calls are serialized by a lock: the arena belongs to one call at a time.
    """

    def __init__(
        self, program: Program, arena: Arena | None = None, *, kept_results: int = 4
    ) -> None:
        """
        Args:
            arena: shared with executables that don't run at the same time; one of its own without it.
            kept_results: how many buffers of each result are kept, to be used again.
        """
        self.program = program
        self._arena = arena or Arena()
        self._arena.join(self)
        self._memory: torch.Tensor | None = None  # the arena's block that addresses point into
        self.constants = [
            torch.frombuffer(bytearray(c or b"\0"), dtype=torch.uint8) for c in program.constants
        ]
        self._kept_results = kept_results
        self._n = -1  # the size that all numbers are for
        self._pools: list[ResultPool | None] = []
        self._pools_of: OrderedDict[int, list[ResultPool | None]] = OrderedDict()
        if program.size is None:
            self._pools = self._result_pools()
        self._table = KernelTable(program, self._fixed_address)
        self._addresses = [-1] * len(program.arguments)
        self._result_addresses = [-1] * len(program.results)
        self._args: Sequence[torch.Tensor] = ()
        self._results: Sequence[torch.Tensor] = ()
        self._moving: list[AtenCall] = []  # calls on tensors that may move between runs
        self._staying: list[AtenCall] = []  # calls on tensors in the arena and on constants
        self._plan = list(self._segments())
        self._native = [item for item in self._plan if isinstance(item, Segment)]
        self._first_write = self._parts_before(program.first_write)
        self._bound = True  # what is written of addresses fits together
        self.done = False  # whether the latest call has taken place

    # -- set-up

    def _result_pools(self) -> list[ResultPool | None]:
        return [
            None
            if r.alias is not None
            else ResultPool(fixed(r.type.shape, self._n), DTYPES[r.type.dtype], self._kept_results)
            for r in self.program.results
        ]

    def _resize(self, n: int) -> None:
        """Set all numbers that depend on the size."""
        assert self.program.size is not None
        check(self.program.size, n)
        self._n = n
        pools = self._pools_of.pop(n, None)
        self._pools = self._pools_of[n] = pools or self._result_pools()
        if len(self._pools_of) > _SIZES:
            self._pools_of.popitem(last=False)
        self._table.resize(n)
        self._memory = None  # so that all addresses are set anew
        self._addresses = [-1] * len(self._addresses)
        self._result_addresses = [-1] * len(self._result_addresses)

    @property
    def arena_bytes(self) -> int:
        """What the program needs of an arena."""
        return self.program.arena_bytes

    @property
    def arena(self) -> torch.Tensor:
        """The memory that values have between steps."""
        with self._arena.lock:
            return self._settle()

    def use_arena(self, arena: Arena) -> None:
        """Run in `arena` from now on."""
        if arena is not self._arena:
            with self._arena.lock:
                self._arena.leave(self)
                self._arena = arena
                arena.join(self)

    def close(self) -> None:
        """Give back the arena, until the next call."""
        self._arena.leave(self)

    def let_go(self) -> None:
        """Drop what refers to the arena's block; the next call finds the new one."""
        self._memory = None
        for call in (*self._staying, *self._moving):
            call.unbind()

    def _settle(self) -> torch.Tensor:
        """The arena's block, with all addresses in it."""
        if self._memory is None:
            self._arena.join(self)
        memory = self._arena.memory()
        if memory is not self._memory:
            self._memory = memory
            self._table.patch("arena", 0, memory.data_ptr())
            self._addresses = [-1] * len(self._addresses)
            for call in self._staying:
                call.bind(self._locate, self._n)
        return memory

    def _fixed_address(self, place: Place) -> int | None:
        if place.space == "constant":
            return self.constants[place.index].data_ptr() + place.offset
        return None

    def _segments(self) -> Iterator[Segment | AtenCall]:
        """Runs of native steps, and the ATen calls between them."""
        begin = end = 0  # rows of the kernel table
        for step in self.program.steps:
            if not isinstance(step, AtenStep):
                end += 1
                continue
            if begin < end:
                yield self._table.segment(begin, end)
                begin = end
            yield self._aten_call(step)
        if begin < end:
            yield self._table.segment(begin, end)

    def _aten_call(self, step: AtenStep) -> AtenCall:
        call = AtenCall(step)
        if any(r.place.space in ("arg", "result") for r in call.refs()):
            self._moving.append(call)
        else:
            self._staying.append(call)
        return call

    def _parts_before(self, step: int) -> int:
        """How many parts of the plan end before a step of the program begins."""
        ends, steps = [], 0
        for item in self._plan:
            steps += 1 if isinstance(item, AtenCall) else int(item.words[2] - item.words[1])
            ends.append(steps)
        return sum(end <= step for end in ends)

    def _locate(self, ref: TensorRef) -> torch.Tensor:
        if self.program.size is not None:
            ref = fixed_ref(ref, self._n)
        space, index, _ = ref.place
        if space == "arena":
            assert self._memory is not None
            return view_bytes(self._memory, ref)
        if space == "constant":
            return view_bytes(self.constants[index], ref)
        return view_tensor(self._args[index] if space == "arg" else self._results[index], ref)

    # -- calls

    def __call__(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run once.

        Args:
            args: the function's arguments in order, with the types and strides of
                `program.arguments`; that they have them is for the caller to see to.

        Returns:
            The results in order; an aliased one is the argument that was updated.

        Raises:
            ValueError: the number of arguments is wrong, or the program is for other sizes.
        """
        self.done = False
        with self._arena.lock, torch.no_grad():
            results = self._bind(args)
            threads = self._threads()
            for segment in self._native:
                prepare(segment, threads)
            left = iter(self._plan)
            try:
                for item in left:
                    if isinstance(item, AtenCall):
                        item.run()
                    else:
                        self._table.finish(item)
                self.done = True
            except BaseException as error:
                self._complete(len(self._plan) - length_hint(left), error)
                raise
        return results

    def _complete(self, begun: int, error: BaseException) -> None:
        """After an exception in the middle: where arguments were written, run what is left.

        An exception may come between any two bytecodes (Ctrl-C, a time limit), so that no step has failed. An
        ATen step is run again that may or may not have ended; it reads nothing that it writes.

        begun: how many parts of the plan were begun. `done` says whether the call has taken place.

        Raises:
            HalfDone: a step has failed after arguments were written.
        """
        with held():
            at = begun
            if begun:
                item = self._plan[begun - 1]
                if not (item.has_run if isinstance(item, AtenCall) else has_run(item)):
                    at -= 1
            partly = at < begun and isinstance(item, AtenCall) and item.writes and item.to_arguments
            if at <= self._first_write and not partly:
                for call in self._plan[:begun]:
                    if isinstance(call, AtenCall) and call.draws:
                        call.undo_draw()
                        break
                return
            try:
                for k, item in enumerate(self._plan[at:]):
                    if not isinstance(item, AtenCall):
                        self._table.finish(item)
                        continue
                    if item.draws and k == 0 and at < begun:
                        item.undo_draw()
                    item.run()
            except Exception as failure:
                step = item.step.label if isinstance(item, AtenCall) else "a kernel"
                raise HalfDone(self.program.name, step, failure) from failure
            self.done = True

    def profile(self, args: Sequence[torch.Tensor]) -> list[tuple[Step, float]]:
        """Run once, step by step, as a call does; returns each step and its seconds."""
        _, times = self.timed(args)
        return [(step, end - start) for step, (start, end) in zip(self.program.steps, times)]

    def timed(
        self, args: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[tuple[float, float]]]:
        """Run once, step by step; returns the results, and when each step began and ended, in
        seconds of `time.perf_counter`."""
        with self._arena.lock, torch.no_grad():
            results = self._bind(args)
            times = []
            for _, run in self.steps():
                start = time.perf_counter()
                run()
                times.append((start, time.perf_counter()))
        return results, times

    def steps(self) -> Iterator[tuple[Step, Callable[[], None]]]:
        """Each step with a function that runs it, for the arguments that are bound."""
        calls = iter([item for item in self._plan if isinstance(item, AtenCall)])
        row = 0
        for step in self.program.steps:
            if isinstance(step, AtenStep):
                yield step, next(calls).run
            else:
                segment, threads = self._table.segment(row, row + 1), self._threads()
                yield step, partial(self._table.run, segment, threads)
                row += 1

    def _threads(self) -> int:
        return min(torch.get_num_threads(), self.program.max_threads)

    def _bind(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Put the addresses of arguments and of fresh results into place; returns the results."""
        if len(args) != len(self.program.arguments):
            raise ValueError(
                f"'{self.program.name}' takes {len(self.program.arguments)} arguments, "
                f"{len(args)} were given"
            )
        if not self._bound:
            self._forget()
        self._bound = False
        size = self.program.size
        if size is not None and (n := int(args[size.argument])) != self._n:
            self._resize(n)
        self._settle()
        results = [
            pool.take() if pool is not None else args[r.alias or 0]
            for r, pool in zip(self.program.results, self._pools)
        ]
        moved = self._move("arg", args, self._addresses)
        moved |= self._move("result", results, self._result_addresses)
        if moved:
            self._args, self._results = args, results
            for call in self._moving:
                call.bind(self._locate, self._n)
            self._args, self._results = (), ()
        self._bound = True
        return results

    def _forget(self) -> None:
        """Set everything anew at this call: the one before was given up while it set addresses."""
        self._n, self._memory = -1, None
        self._addresses = [-1] * len(self._addresses)
        self._result_addresses = [-1] * len(self._result_addresses)

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
