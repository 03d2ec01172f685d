"""Binds the arguments of a call: makes each one accessible to kernels.

A tensor on the device is used in place. A tensor whose address is not a multiple of 16 bytes is copied to a buffer on
the device. Small tensors on the CPU (learning rates, step counters, the state of random numbers) share one block on
the device. When one of their values has changed, the block is sent asynchronously from pinned memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ctypes import string_at
from typing import Any

import torch

from gflow.dialects.program import Program
from gflow.dialects.types import share_memory

from ..device import DeviceError
from ..tensors import DTYPES, Placed, addresses_of, extent
from .device import Launcher

#: the alignment that kernels assume of arguments, in bytes
ALIGNMENT = 16
#: the most bytes of a tensor that may stay on the CPU
SMALL = 16
#: pinned copies of the block: the CPU waits before it reuses one that may still be in transfer
_SLOTS = 64


class Numbers:
    """Small tensors that live on the CPU, with a copy of their values in one block on the device."""

    def __init__(self, count: int, device: Launcher) -> None:
        self.device = device
        self.block = torch.zeros((count, ALIGNMENT), dtype=torch.uint8, device=device.where)
        pinned = device.where.type == "cuda"
        self._host = torch.zeros((_SLOTS, count, ALIGNMENT), dtype=torch.uint8, pin_memory=pinned)
        self._marks: list[Any] = [None] * _SLOTS
        self._slot, self._last = 0, b""
        self._tensors: dict[int, torch.Tensor] = {}

    def send(self, tensors: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Send the values to the device, asynchronously; does nothing if no value has changed.

        tensors: pairs of a position in the block and a tensor.
        """
        found = bytearray(self.block.numel())
        for n, tensor in tensors:
            tensor = tensor.detach().contiguous()
            raw = string_at(tensor.data_ptr(), tensor.nbytes)
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
        """Send the block at the next `send` in any case, since a kernel has written to it."""
        self._last = b""

    def tensor(self, n: int, like: torch.Tensor) -> torch.Tensor:
        """The tensor on the device at position `n` of the block, with the shape and dtype of `like`."""
        found = self._tensors.get(n)
        if found is None or found.dtype != like.dtype or found.shape != like.shape:
            raw = self.block[n][: like.numel() * like.element_size()]
            found = self._tensors[n] = raw.view(like.dtype).view(like.shape)
        return found


class Arguments:
    """The arguments of a program, as its kernels get them; a `Binding`.

    version: counts calls of `bind`. made: the arguments that are copied to a buffer.
    """

    def __init__(self, program: Program, device: Launcher) -> None:
        self.program, self.device = program, device
        self.written = {r.alias for r in program.results if r.alias is not None}
        small = [
            i for i, a in enumerate(program.arguments)
            if a.type.nbytes <= SMALL and a.type.numel in (1, 2)
        ]  # fmt: skip
        self._spots = {i: n for n, i in enumerate(small)}
        self._numbers: Numbers | None = None
        self._buffers: dict[int, torch.Tensor] = {}
        #: by argument with overlapping elements (stride 0, for example): the elements of its memory, which is copied
        #: as a whole
        self._flat: dict[int, int] = {}
        self.version = 0
        self._sent: list[tuple[int, int]] = []  # numbers: which of the block, which argument
        self.made: list[int] = []
        self._back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def bind(
        self, args: Sequence[torch.Tensor], copied: Collection[int] = ()
    ) -> Sequence[torch.Tensor]:
        """Tensors on the device for all arguments. Copies may still be in progress on the current stream.

        copied: numbers of arguments that must be copied to a buffer.

        Raises:
            DeviceError: an argument is on another device.
        """
        self._sent, self.made = [], []
        self.version += 1
        for i, tensor in enumerate(args):
            if tensor.device != self.device.where:
                self._sent.append((self._spot(i, tensor), i))
            elif i in copied or tensor.data_ptr() % ALIGNMENT:
                self.made.append(i)
            elif tensor.device.type == "cpu" and self._is_number(i):
                self._sent.append((self._spots[i], i))
        return self.bind_again(args)

    def bind_again(self, args: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """As `bind`, for arguments at the addresses of the previous call; copied ones may have moved."""
        self._back = []
        if not self.made and not self._sent:
            return args
        found = Placed(args)
        found.addresses = at = [*addresses_of(args)]
        for i in self.made:
            found[i] = self._copy(i, args[i])
            at[i] = found[i].data_ptr()
        if self._sent:
            block = self._block()
            block.send([(n, args[i]) for n, i in self._sent])
            for n, i in self._sent:
                found[i] = block.tensor(n, args[i])
                at[i] = found[i].data_ptr()
                if i in self.written:
                    self._back.append((args[i], found[i]))
        return found

    def finish(self) -> bool:
        """Copy written values back to the caller's tensors; returns whether there are any. Waits for the device if such
        a tensor is on the CPU."""
        if not self._back:
            return False
        for tensor, copy in self._back:
            tensor.detach().copy_(copy)
            if tensor.device != copy.device and self._numbers is not None:
                self._numbers.forget()
        self._back = []
        return True

    def _is_number(self, i: int) -> bool:
        """Whether a real device would get the argument through the block. Used where the device is emulated on the
        CPU."""
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
