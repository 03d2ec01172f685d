"""Buffers of results, which are reused after the caller has dropped them.

Page faults of a new tensor of a few megabytes take longer than most kernels that fill it.
"""

from __future__ import annotations

from sys import getrefcount

import torch


class ResultPool:
    """Buffers of one result: at most `kept`.

    A buffer is reused only if no tensor or view of the caller refers to its storage.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        kept: int = 4,
        where: torch.device | None = None,
    ) -> None:
        self.shape, self.dtype, self.kept, self.where = shape, dtype, kept, where
        self._buffers: list[_Buffer] = []

    def take(self) -> torch.Tensor:
        """A contiguous tensor that no other tensor shares memory with."""
        for buffer in self._buffers:
            tensor, storage, handle, nbytes = buffer
            if (_use_count(handle), getrefcount(storage)) != _FREE:
                continue
            if storage.nbytes() < nbytes:
                # the caller has resized its storage
                self._buffers = [b for b in self._buffers if b is not buffer]
                break
            return tensor.data
        tensor = torch.empty(self.shape, dtype=self.dtype, device=self.where)
        if len(self._buffers) < self.kept:
            self._buffers.append(_buffer(tensor))
        return tensor.data


#: a tensor, its storage, the storage's address, and the tensor's bytes
_Buffer = tuple[torch.Tensor, torch.UntypedStorage, int, int]

_use_count = torch._C._storage_Use_Count


def _buffer(tensor: torch.Tensor) -> _Buffer:
    storage = tensor.untyped_storage()
    return tensor, storage, storage._cdata, tensor.nbytes


def _uses(buffers: list[_Buffer]) -> tuple[int, int]:
    """The number of references to a buffer's storage, from PyTorch and from Python.

    All Python objects of one storage are the same object, so PyTorch does not count its Python references.
    """
    for buffer in buffers:
        _, storage, handle, _ = buffer
        return _use_count(handle), getrefcount(storage)
    raise AssertionError


#: the number of references of a buffer that is not in use
_FREE = _uses([_buffer(torch.empty(4, device="cpu"))])
