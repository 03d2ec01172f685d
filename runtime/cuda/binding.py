"""Makes arguments accessible to kernels.

A tensor on the device is used in place. Numbers on the CPU (learning rates, the state of random numbers, step counters)
share one block on the device. The block is sent asynchronously from pinned memory when a number has changed. A tensor
whose address is not a multiple of 16 is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from gflow.dialects.program import Program
from gflow.dialects.types import share_memory

from ..device import DeviceError
from ..tensors import DTYPES, extent
from .device import Launcher

#: multiple of which addresses are
ALIGNMENT = 16
#: bytes of the largest tensor that may stay on the CPU
_SMALL = 16
#: the number of steps in flight from which on the CPU waits before it sends numbers
_SLOTS = 64


class Numbers:
    """Small tensors of the CPU, as one block on the device."""

    def __init__(self, count: int, device: Launcher) -> None:
        self.device = device
        self.block = torch.zeros((count, ALIGNMENT), dtype=torch.uint8, device=device.where)
        pinned = device.where.type == "cuda"
        self._host = torch.zeros((_SLOTS, count, ALIGNMENT), dtype=torch.uint8, pin_memory=pinned)
        self._marks: list[Any] = [None] * _SLOTS
        self._slot, self._last = 0, b""

    def send(self, tensors: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Send the values of numbers, each to its place; nothing if none has changed."""
        found = bytearray(self.block.numel())
        for n, tensor in tensors:
            raw = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            found[n * ALIGNMENT : n * ALIGNMENT + len(raw)] = raw
        values = bytes(found)
        if values == self._last:
            return
        self._last = values
        self._slot = (self._slot + 1) % _SLOTS
        mark = self._marks[self._slot]
        if mark is not None:
            self.device.wait(mark)
        host = self._host[self._slot]
        host.view(-1).copy_(torch.frombuffer(found, dtype=torch.uint8))
        self.block.copy_(host, non_blocking=True)
        self._marks[self._slot] = self.device.mark()

    def forget(self) -> None:
        """A kernel has written to the block: send it again."""
        self._last = b""

    def tensor(self, n: int, like: torch.Tensor) -> torch.Tensor:
        """One of the numbers on the device."""
        raw = self.block[n][: like.numel() * like.element_size()]
        return raw.view(like.dtype).view(like.shape)


class Arguments:
    """The arguments of a program, as its kernels get them; a `Binding`.

    version: counts calls of `bind`.
    """

    def __init__(self, program: Program, device: Launcher) -> None:
        self.program, self.device = program, device
        self.written = {r.alias for r in program.results if r.alias is not None}
        small = [
            i for i, a in enumerate(program.arguments)
            if a.type.nbytes <= _SMALL and a.type.numel in (1, 2)
        ]  # fmt: skip
        self._spots = {i: n for n, i in enumerate(small)}
        self._numbers: Numbers | None = None
        self._buffers: dict[int, torch.Tensor] = {}
        #: elements of buffers whose tensors' elements share memory: copied in the order of memory
        self._flat: dict[int, int] = {}
        self.version = 0
        self._sent: list[tuple[int, int]] = []  # numbers: which of the block, which argument
        self._made: list[int] = []  # arguments that have a buffer
        self._back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def bind(
        self, args: Sequence[torch.Tensor], copied: Collection[int] = ()
    ) -> list[torch.Tensor]:
        """Tensors on the device for all arguments; copies of some are under way.

        copied: arguments that may not be used where they lie, by number.

        Raises:
            DeviceError: one is on another device.
        """
        self._sent, self._made = [], []
        self.version += 1
        for i, tensor in enumerate(args):
            if tensor.device != self.device.where:
                self._sent.append((self._spot(i, tensor), i))
            elif i in copied or tensor.data_ptr() % ALIGNMENT:
                self._made.append(i)
            elif tensor.device.type == "cpu" and self._is_number(i):
                self._sent.append((self._spots[i], i))
        return self.bind_again(args)

    def bind_again(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`bind` for arguments with the addresses of the previous call, except copied ones."""
        found = list(args)
        self._back = []
        for i in self._made:
            found[i] = self._copy(i, args[i])
        if self._sent:
            block = self._block()
            block.send([(n, args[i]) for n, i in self._sent])
            for n, i in self._sent:
                found[i] = block.tensor(n, args[i])
                if i in self.written:
                    self._back.append((args[i], found[i]))
        return found

    def finish(self) -> None:
        """Bring back what was written to copies. A number that lives on the CPU makes it wait."""
        for tensor, copy in self._back:
            tensor.detach().copy_(copy)
            if tensor.device != copy.device and self._numbers is not None:
                self._numbers.forget()
        self._back = []

    def _is_number(self, i: int) -> bool:
        """On a device that stands for another one: what would have to be sent there."""
        return i in self._spots and self.program.arguments[i].role in ("scalar", "rng")

    def _spot(self, i: int, tensor: torch.Tensor) -> int:
        argument = self.program.arguments[i]
        if tensor.device.type == "cpu" and i in self._spots:
            return self._spots[i]
        raise DeviceError(
            f"'{self.program.name}' is compiled for {self.program.target} and runs on {self.device.where}; "
            f"{argument.role} {argument.name!r} is on {tensor.device}: move it there "
            f"(.to({str(self.device.where)!r}))"
        )

    def _block(self) -> Numbers:
        if self._numbers is None:
            self._numbers = Numbers(len(self._spots), self.device)
        return self._numbers

    def _copy(self, i: int, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device != self.device.where:
            self._spot(i, tensor)  # it moved to the CPU since: an error, unless it is a number
        buffer = self._buffers.get(i)
        if buffer is None:
            argument = self.program.arguments[i]
            buffer = torch.empty_strided(
                argument.type.shape, argument.strides, dtype=DTYPES[argument.type.dtype],
                device=self.device.where,
            )  # fmt: skip
            self._buffers[i] = buffer
            if share_memory(argument.type.shape, argument.strides):
                self._flat[i] = extent(argument.type, argument.strides)
        source = tensor.detach()
        if i in self._flat:
            length = (self._flat[i],)
            buffer.as_strided(length, (1,)).copy_(source.as_strided(length, (1,)))
        else:
            buffer.copy_(source)
        if i in self.written:
            self._back.append((tensor, buffer))
        return buffer
