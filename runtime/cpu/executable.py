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

from gflow.dialects.program import AtenStep, Program, Step

from ..arena import Arena
from ..aten_step import AtenCall
from ..bound_program import BoundProgram
from ..interrupts import HalfDone, held
from ..results import ResultPool
from ..sizes import check
from .table import KernelTable, Segment, has_run, prepare

#: sizes whose result buffers are kept
_SIZES = 8
_CPU = torch.device("cpu")


class Executable(BoundProgram):
    """A program that is ready to run.

    Calls are serialized by a lock: the arena belongs to one call at a time.
    """

    _table: KernelTable

    def __init__(
        self, program: Program, arena: Arena | None = None, *, kept_results: int = 4
    ) -> None:
        """
        Args:
            arena: shared with executables that don't run at the same time; one of its own without it.
            kept_results: how many buffers of each result are kept, to be used again.
        """
        super().__init__(program, _CPU, arena, kept_results)
        self._pools_of: OrderedDict[int, list[ResultPool | None]] = OrderedDict()
        self._table = KernelTable(program, self._fixed_address)
        self._plan = list(self._segments())
        self._native = [item for item in self._plan if isinstance(item, Segment)]
        self._first_write = self._parts_before(program.first_write)
        self._bound = True  # what is written of addresses fits together
        self._arena.join(self)

    # -- set-up

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

    def _parts_before(self, step: int) -> int:
        """How many parts of the plan end before a step of the program begins."""
        ends, steps = [], 0
        for item in self._plan:
            steps += 1 if isinstance(item, AtenCall) else int(item.words[2] - item.words[1])
            ends.append(steps)
        return sum(end <= step for end in ends)

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
            self._wrong_count(len(args))
        if not self._bound:
            self._forget()
        self._bound = False
        size = self.program.size
        if size is not None and (n := int(args[size.argument])) != self._n:
            self._resize(n)
        self._settle()
        results = self.take_results(args)
        self.place(args, results)
        self._bound = True
        return results

    def _forget(self) -> None:
        """Set everything anew at this call: the one before was given up while it set addresses."""
        self._n, self._memory = -1, None
        self._addresses = [-1] * len(self._addresses)
        self._result_addresses = [-1] * len(self._result_addresses)
