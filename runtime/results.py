"""Buffers of results, which are reused after the caller has dropped them.

Page faults of a new tensor of a few megabytes take longer than most kernels that fill it.
"""

from __future__ import annotations

from math import prod
from sys import getrefcount

import torch

#: the number of shapes for which a buffer keeps a tensor
_SHAPES = 256

#: the tensors over a storage by their shape, the storage, and its address
Buffer = tuple[dict[tuple[int, ...], torch.Tensor], torch.UntypedStorage, int]


class ResultPool:
    """Buffers of one result: at most `kept`.

    A buffer is reused only if no tensor or view of the caller refers to its storage. Pools for several shapes may share
    buffers: a buffer serves all shapes that fit, and makes way for a larger one.
    """

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
        self._buffers: list[Buffer] = [] if buffers is None else buffers

    def take(self) -> torch.Tensor:
        """A contiguous tensor that no other tensor shares memory with."""
        small = None
        for n, (tensors, storage, handle) in enumerate(self._buffers):
            if (_use_count(handle) - len(tensors), getrefcount(storage)) != _FREE:
                continue
            if storage.nbytes() < self._nbytes:  # made for a smaller size, or resized by the caller
                small = n
                continue
            tensor = tensors.get(self.shape)
            if tensor is None:
                if len(tensors) >= _SHAPES:
                    tensors.clear()
                tensor = torch.empty(0, dtype=self.dtype, device=self.where)
                tensors[self.shape] = tensor.set_(storage, 0, self.shape)  # type: ignore[call-overload]
            return tensor.data
        tensors = storage = None  # type: ignore[assignment]
        if small is not None:
            del self._buffers[small]
        tensor = torch.empty(self.shape, dtype=self.dtype, device=self.where)
        if len(self._buffers) < self.kept:
            storage = tensor.untyped_storage()
            self._buffers.append(({self.shape: tensor}, storage, storage._cdata))
        return tensor.data


_use_count = torch._C._storage_Use_Count


def _uses(buffers: list[Buffer]) -> tuple[int, int]:
    """The number of references to a buffer's storage, from PyTorch without the buffer's tensors, and from Python.

    All Python objects of one storage are the same object, so PyTorch does not count its Python references.
    """
    for tensors, storage, handle in buffers:
        return _use_count(handle) - len(tensors), getrefcount(storage)
    raise AssertionError


def _free_buffer() -> Buffer:
    tensor = torch.empty(4, device="cpu")
    storage = tensor.untyped_storage()
    return {(4,): tensor}, storage, storage._cdata


#: the number of references of a buffer that is not in use
_FREE = _uses([_free_buffer()])
