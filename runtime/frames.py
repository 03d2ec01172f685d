"""Frames: a program's steps with the numbers of one dynamic size, and the addresses in them.

A program without a dynamic size has one frame. Other programs keep a frame for each of the latest sizes. A call of a
known size evaluates no numbers: it only sets the addresses that differ from the latest call of that size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress, count
from math import prod
from operator import ne
from weakref import ref as weak

import torch

from gflow.dialects.extents import N
from gflow.dialects.program import Program, Step, TensorRef

from .device import Code, Part
from .results import Block, ResultPool
from .sizes import fixed
from .steps.host_step import HostStep
from .tensors import DTYPES, addresses_of, view_bytes, view_tensor

#: shape, strides, and offset in bytes from the beginning of a place
_Numbers = tuple[tuple[int, ...], tuple[int, ...], int]


class Frame:
    """The steps of a program for a size of `n`, bound to memory.

    parts: the parts that run, in order. moving, staying: the host steps whose tensors may move between runs, and those
    whose tensors are all in the arena and constants. held: bytes of arguments and results that host steps reference.
    memory: the block of the arena that addresses point into. fresh: the results that are no updates of arguments, nor
    memory of an engine. host_uses: the arguments and results that host steps read or write. pools: the buffers of
    results that have one each, by number, None where there are none; joined, block: the others, which share one.
    """

    def __init__(
        self,
        program: Program,
        code: Code,
        n: N,
        host_step: Callable[[Step], HostStep],
        constants: Sequence[torch.Tensor],
        handed: Mapping[int, tuple[Step, int]] | None = None,
    ) -> None:
        """handed: the results that need no buffer: by their numbers, the steps that allocate them, and the numbers of
        these steps' outputs."""
        self.handed = handed or {}
        self.n, self._program, self._code, self._constants = n, program, code, constants
        self.moving: list[HostStep] = []
        self._uses: list[
            frozenset[tuple[str, int]]
        ] = []  # the moving places that each of `moving` reads or writes
        self.staying: list[HostStep] = []
        self.held = 0

        def bound(step: Step) -> HostStep:
            call = host_step(step)
            refs = [r for r in call.refs() if r.place.space in ("arg", "result")]
            uses = frozenset((r.place.space, r.place.index) for r in refs)
            self.held += sum(prod(fixed(r.type.shape, n)) * r.type.itemsize for r in refs)
            (self.moving if uses else self.staying).append(call)
            if uses:
                self._uses.append(uses)
            return call

        self.parts: list[Part] = list(code.parts(bound))
        self.host_uses = frozenset().union(*self._uses)
        self.first_write = self._parts_before(program.first_write)
        self.pools: list[tuple[int, ResultPool]] | None = None
        self._apart: list[int] = []
        self.joined: list[int] = []
        self.block: Block | None = None
        self._first = 0, 0  # a joined result with elements, and its offset in the block
        self.inference = False
        self._fresh = [
            (i, fixed(r.type.shape, n), DTYPES[r.type.dtype])
            for i, r in enumerate(program.results)
            if r.alias is None and i not in self.handed
        ]
        self.fresh = [i for i, _, _ in self._fresh]
        shapes = [program.results[i].type.shape for i in self.fresh]
        self._fixed = {i for i, s in zip(self.fresh, shapes) if all(type(d) is int for d in s)}
        self.result_bytes = 0  # of the buffers that other frames do not share
        self._numbers: dict[
            int, _Numbers
        ] = {}  # addresses of the program's own places, which do not move
        self._args: Sequence[torch.Tensor] = ()
        self._results: Sequence[torch.Tensor] = ()
        self._moved: set[int] = set()  # arguments whose address differs from the previous call
        self.unplace()

    def _parts_before(self, step: int) -> int:
        """The number of parts before a step of the program."""
        ends, steps = 0, 0
        for part in self.parts:
            steps += part.count
            ends += steps <= step
        return ends

    def make_pools(
        self,
        kept: int,
        where: torch.device,
        inference: bool,
        shared: dict[tuple[int, bool], tuple[int, ResultPool]],
        inner: frozenset[int],
        joined: frozenset[int],
    ) -> None:
        """Create buffers for the results.

        Args:
            kept: how many buffers of each result are reused.
            inference: whether they are made in inference mode; autograd cannot save such tensors.
            shared: the pools, with the result's number, of results whose shape is the same in all frames, by the number
                and `inference`; and those of inner and joined results, whose buffers all frames use.
            inner: results that may have larger storages than they need.
            joined: results that share a buffer.
        """

        def of_all(i: int, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ResultPool]:
            found = shared.get((i, inference))
            if found is None:
                found = shared[i, inference] = i, ResultPool(shape, dtype, kept, where)
            return found

        self.inference, self.pools, self.result_bytes = inference, [], 0
        self._apart = [i for i in self.fresh if i not in joined]
        self.joined, self.block = [i for i in self.fresh if i in joined], None
        if self.joined:
            kinds = [(shape, dtype) for i, shape, dtype in self._fresh if i in joined]
            _, pool = of_all(self.joined[0], (), torch.uint8)
            self.block = Block(kinds, kept, where, pool.buffers)
            placed = zip(self.joined, kinds, self.block.offsets)
            # an empty tensor has no address
            self._first = next(
                ((i, at) for i, (shape, _), at in placed if prod(shape)), (self.joined[0], 0)
            )
        for i, shape, dtype in self._fresh:
            if i in joined:
                continue
            if i in self._fixed:
                self.pools.append(of_all(i, shape, dtype))
            elif i in inner:
                _, pool = of_all(i, shape, dtype)
                self.pools.append((i, ResultPool(shape, dtype, kept, where, pool.buffers)))
            else:
                self.result_bytes += dtype.itemsize * prod(shape)
                self.pools.append((i, ResultPool(shape, dtype, kept, where)))

    # -- addresses

    def unplace(self) -> None:
        """Mark all addresses as unset."""
        self.memory: torch.Tensor | None = None
        self._there: dict[int, torch.Tensor] = {}  # tensors in the arena and in constants
        # in arguments, each with its argument
        self._views: dict[int, tuple[weak[torch.Tensor], torch.Tensor]] = {}
        self._addresses: list[int] = [-1] * len(self._program.arguments)
        self._result_addresses: list[int] = [-1] * len(self.fresh)
        self._placed = False

    def unbind(self) -> None:
        """Drop the references to all tensors."""
        self.unplace()
        for call in (*self.staying, *self.moving):
            call.unbind()

    def release(self) -> None:
        """Drop the references to arguments and results of the latest call. Native steps keep the addresses, which are
        compared with those of the next call."""
        for call in self.moving:
            call.unbind()
        self._views = {}
        self._placed = False

    def drop_buffers(self) -> None:
        """Drop the buffers of results until the next call."""
        self.pools = self.block = None
        self.release()

    def settle(self, memory: torch.Tensor) -> None:
        """Set the addresses in the arena for the block `memory`."""
        self.unplace()
        self._code.patch("arena", 0, memory.data_ptr())
        self.memory = memory
        for call in self.staying:
            call.bind(self._locate, self.n)

    def place(self, args: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Set the addresses of arguments and results in native steps and host steps."""
        at = addresses_of(args)
        fresh = self._addresses_of(results)
        same = at == self._addresses
        if same and self._placed and fresh == self._result_addresses:
            return
        patch = self._code.patch
        self._moved = set()
        if not same:
            for i in compress(count(), map(ne, at, self._addresses)):
                if not at[i] and args[i].numel():
                    raise ValueError(
                        f"argument {self._program.arguments[i].name!r} has no memory (a fake or meta tensor)"
                    )
                patch("arg", i, at[i])
                self._moved.add(i)
        renewed = []
        if fresh != self._result_addresses:
            for i, new, old in zip((*self._apart, *self.joined), fresh, self._result_addresses):
                if new != old:
                    patch("result", i, new)
                    renewed.append(i)
        self._addresses, self._result_addresses = at, fresh
        if self.moving:
            self._rebind(args, results, renewed)
        self._placed = True

    def _addresses_of(self, results: Sequence[torch.Tensor]) -> list[int]:
        """The addresses of new results: of those with a buffer each, then of the joined ones."""
        found = [results[i].data_ptr() for i in self._apart]
        if self.block is not None:
            i, at = self._first
            first = results[i].data_ptr() - at
            found += [first + offset for offset in self.block.offsets]
        return found

    def _rebind(
        self, args: Sequence[torch.Tensor], results: Sequence[torch.Tensor], renewed: list[int]
    ) -> None:
        """Bind the host steps whose tensors have moved. renewed: the results that have."""
        moved = {("arg", i) for i in self._moved} | {("result", i) for i in renewed}
        self._args, self._results = args, results
        for call, uses in zip(self.moving, self._uses):
            # a call references the memory that it is bound to, so no other tensor can get its address
            if not self._placed:
                call.bind(self._locate, self.n)
            elif not uses.isdisjoint(moved):
                call.rebind(self._locate, moved, self.n)
        self._args, self._results = (), ()

    def _locate(self, ref: TensorRef) -> torch.Tensor:
        space, index, _ = ref.place
        found = self._there.get(id(ref))
        if found is not None:
            return found
        numbers = self._numbers.get(id(ref))
        if numbers is None:
            parts = (ref.type.shape, ref.strides, ref.place.offset)
            shape, strides, offset = (fixed(p, self.n) for p in parts)
            numbers = self._numbers[id(ref)] = shape, strides, offset
        dtype = DTYPES[ref.type.dtype]
        if space == "result":
            return view_tensor(self._results[index], dtype, *numbers)
        if space == "arg":
            tensor, known = self._args[index], self._views.get(id(ref))
            if known is not None and known[0]() is tensor and index not in self._moved:
                return known[
                    1
                ]  # a call of PyTorch takes a microsecond, and a model has hundreds of parameters
            view = view_tensor(tensor, dtype, *numbers)
            self._views[id(ref)] = weak(tensor), view
            return view
        memory = self.memory if space == "arena" else self._constants[index]
        assert memory is not None
        made = self._there[id(ref)] = view_bytes(memory, dtype, *numbers)
        return made
