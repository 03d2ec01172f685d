"""Buffers of results, which are reused after the caller has dropped them.

Page faults of a new tensor of a few megabytes take longer than most kernels that fill it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from sys import getrefcount

import torch

from gflow.dialects.types import row_major_strides

from .tensors import view_bytes

#: the number of shapes for which a buffer keeps a tensor
_SHAPES = 256

#: bytes to a multiple of which results that share a buffer begin
_APART = 64


class Buffer:
    """A storage, and the tensors over it that pools keep: `views` of them, by their shape, or by the `Block` whose
    results they are.

    handle: what PyTorch counts its references by.
    """

    __slots__ = ("address", "blocks", "handle", "storage", "tensors", "views")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage, self.address = tensor.untyped_storage(), tensor.data_ptr()
        self.handle = self.storage._cdata
        self.tensors: dict[tuple[int, ...], torch.Tensor] = {tuple(tensor.shape): tensor}
        self.blocks: dict[Block, list[torch.Tensor]] = {}
        self.views = 1

    def view(self, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A contiguous tensor over the storage, from byte `offset` on, for the pools to keep."""
        self.views += 1
        tensor = torch.empty(0, dtype=dtype, device=self.storage.device)
        return tensor.set_(self.storage, offset // dtype.itemsize, shape)  # type: ignore[call-overload, no-any-return]

    def forget(self) -> None:
        """Drop all tensors."""
        self.tensors.clear()
        self.blocks.clear()
        self.views = 0


class ResultPool:
    """Buffers of one result: at most `kept`.

    A buffer is reused only if no tensor or view of the caller refers to its storage. Pools for several shapes may share
    buffers: a buffer serves all shapes that fit, and makes way for a larger one.
    """

    __slots__ = ("_nbytes", "buffers", "dtype", "kept", "shape", "where")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        kept: int = 4,
        where: torch.device | None = None,
        buffers: list[Buffer] | None = None,
    ) -> None:
        """buffers: those that pools for other shapes, of the same dtype and device, use too."""
        self.shape, self.dtype, self.kept, self.where = shape, dtype, kept, where
        self._nbytes = prod(shape) * dtype.itemsize
        self.buffers: list[Buffer] = [] if buffers is None else buffers

    def take(self) -> torch.Tensor:
        """A contiguous tensor that no other tensor shares memory with."""
        small = None
        for n, buffer in enumerate(self.buffers):
            if (_use_count(buffer.handle) - buffer.views, getrefcount(buffer.storage)) != _FREE:
                continue
            if (
                buffer.storage.nbytes() < self._nbytes
            ):  # of a smaller size, or resized by the caller
                small = n
                continue
            tensor = buffer.tensors.get(self.shape)
            if tensor is None:
                if len(buffer.tensors) + len(buffer.blocks) >= _SHAPES:
                    buffer.forget()
                tensor = buffer.tensors[self.shape] = buffer.view(self.shape, self.dtype)
            return tensor.data
        if small is not None:
            del self.buffers[small]
        tensor = torch.empty(self.shape, dtype=self.dtype, device=self.where)
        if len(self.buffers) < self.kept:
            self.buffers.append(Buffer(tensor))
        return tensor.data


class Block:
    """Several results in one buffer, for another program of ours: a caller would find a storage larger than its tensor.

    Who holds the buffer's tensor holds all of them. A call then takes one buffer, and autograd saves one tensor.

    Args:
        kinds: the shape and dtype of each result.
        kept, where, buffers: as of `ResultPool`.
    """

    def __init__(
        self,
        kinds: Sequence[tuple[tuple[int, ...], torch.dtype]],
        kept: int,
        where: torch.device,
        buffers: list[Buffer],
    ) -> None:
        self._kinds, self.offsets, end = kinds, list[int](), 0
        for shape, dtype in kinds:
            self.offsets.append(end)
            end += -(-prod(shape) * dtype.itemsize // _APART) * _APART
        self._pool = ResultPool((end,), torch.uint8, kept, where, buffers)

    def take(self) -> torch.Tensor:
        """The bytes of all results."""
        return self._pool.take()

    def parts(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """The results in the bytes that `take` has given, or in a copy of them. They may not keep this memory."""
        address = whole.data_ptr()
        for buffer in self._pool.buffers:
            if buffer.address == address:
                found = buffer.blocks.get(self)
                if found is None:
                    found = [buffer.view(*kind, at) for kind, at in zip(self._kinds, self.offsets)]
                    buffer.blocks[self] = found
                return found
        return [
            view_bytes(whole, dtype, shape, row_major_strides(shape), offset)
            for (shape, dtype), offset in zip(self._kinds, self.offsets)
        ]


_use_count = torch._C._storage_Use_Count


def _uses(buffer: Buffer) -> tuple[int, int]:
    """The number of references to a buffer's storage, from PyTorch without the buffer's tensors, and from Python.

    All Python objects of one storage are the same object, so PyTorch does not count its Python references.
    """
    return _use_count(buffer.handle) - buffer.views, getrefcount(buffer.storage)


#: the number of references of a buffer that is not in use
_FREE = _uses(Buffer(torch.empty(4, device="cpu")))
