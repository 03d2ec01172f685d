"""What the executables of all devices share: a program with its memory, and what a call binds to it.

    arena, constants                    set once, and again where the arena's block moves
    arguments and results of a call     set where they lie elsewhere than at the call before
        → addresses in the table of steps, tensors of ATen calls

`cpu/executable.py` and `cuda/executable.py` add how the steps run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn, Protocol

import torch

from gflow.dialects.program import AtenStep, Place, Program, Step, TensorRef

from .arena import Arena
from .aten_step import AtenCall
from .results import ResultPool
from .sizes import fixed, fixed_ref
from .tensors import DTYPES, view_bytes, view_tensor


class Table(Protocol):
    """The launches of a program, with the addresses that they are given."""

    def patch(self, space: str, index: int, address: int) -> None:
        """A space's value `index` lies at `address` from now on."""


class BoundProgram(ABC):
    """A program, its memory, and addresses. Calls are serialized by the arena's lock.

    done: whether the latest call has taken place.
    """

    _table: Table

    def __init__(
        self, program: Program, where: torch.device, arena: Arena | None, kept_results: int
    ) -> None:
        """
        Args:
            where: the device of the arena, of constants and of results.
            arena: shared with executables that don't run at the same time; one of its own without it.
            kept_results: how many buffers of each result are kept, to be used again.
        """
        self.program = program
        self.constants = [
            torch.frombuffer(bytearray(c or b"\0"), dtype=torch.uint8).to(where)
            for c in program.constants
        ]
        self._where, self._kept_results = where, kept_results
        self._arena = (arena or Arena()).on(where)
        self._memory: torch.Tensor | None = None  # the arena's block that addresses point into
        self._n = -1  # the size that all numbers are for
        self._pools = self._result_pools() if program.size is None else []
        self._addresses = [-1] * len(program.arguments)
        self._result_addresses = [-1] * len(program.results)
        self._args: Sequence[torch.Tensor] = ()
        self._results: Sequence[torch.Tensor] = ()
        self._moving: list[AtenCall] = []  # calls on tensors that may move between runs
        self._staying: list[AtenCall] = []  # calls on tensors in the arena and on constants
        self.done = False

    # -- what a device adds

    def _current(self) -> AbstractContextManager[object]:
        """The device is PyTorch's current one in here."""
        return nullcontext()

    def _block_moved(self) -> None:  # noqa: B027 - the CPU makes nothing of it
        """The arena's block is another one, or gone: what was made of its address is to be dropped."""

    @abstractmethod
    def __call__(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run once; returns the results in order, of aliased ones their argument."""

    @abstractmethod
    def timed(
        self, args: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[tuple[float, float]]]:
        """Run once, step by step; returns the results, and when each step began and ended, in seconds."""

    @abstractmethod
    def steps(self) -> Iterator[tuple[Step, Callable[[], None]]]:
        """Each step with a function that begins it, for the arguments that are bound."""

    # -- memory

    @property
    def arena_bytes(self) -> int:
        """What the program needs of an arena."""
        return self.program.arena_bytes

    @property
    def arena(self) -> torch.Tensor:
        """The memory that values have between steps."""
        with self._arena.lock, self._current():
            return self._settle()

    def use_arena(self, arena: Arena) -> None:
        """Run in `arena`, or its sibling on the device, from now on."""
        arena = arena.on(self._where)
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
        self._block_moved()
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
            self._block_moved()
            for call in self._staying:
                call.bind(self._locate, self._n)
        return memory

    def _result_pools(self) -> list[ResultPool | None]:
        return [
            None
            if r.alias is not None
            else ResultPool(
                fixed(r.type.shape, self._n), DTYPES[r.type.dtype], self._kept_results, self._where
            )
            for r in self.program.results
        ]

    def _fixed_address(self, place: Place) -> int | None:
        """The address of a place that never moves."""
        if place.space == "constant":
            return self.constants[place.index].data_ptr() + place.offset
        return None

    def _aten_call(self, step: AtenStep) -> AtenCall:
        call = AtenCall(step)
        moves = any(r.place.space in ("arg", "result") for r in call.refs())
        (self._moving if moves else self._staying).append(call)
        return call

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

    # -- parts of a call

    def take_results(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Memory for the results; of aliased ones their argument's."""
        return [
            pool.take() if pool is not None else args[r.alias or 0]
            for r, pool in zip(self.program.results, self._pools)
        ]

    def place(self, args: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Put the addresses of arguments and results into the launches and ATen calls."""
        moved = self._move("arg", args, self._addresses)
        moved |= self._move("result", results, self._result_addresses)
        if moved:
            self._args, self._results = args, results
            for call in self._moving:
                call.bind(self._locate, self._n)
            self._args, self._results = (), ()

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

    def _wrong_count(self, given: int) -> NoReturn:
        raise ValueError(
            f"'{self.program.name}' takes {len(self.program.arguments)} arguments, {given} were given"
        )

    def profile(self, args: Sequence[torch.Tensor]) -> list[tuple[Step, float]]:
        """Run once, step by step; returns each step and its seconds."""
        _, times = self.timed(args)
        return [(step, end - start) for step, (start, end) in zip(self.program.steps, times)]
