"""Output tensors that are used again once the caller has dropped them.

A fresh tensor of a few megabytes costs more in page faults than most kernels take to fill it.
"""

from __future__ import annotations

import sys

import torch


class ResultPool:
    """Buffers of one result: at most `kept`.

    A buffer is handed out again only when no tensor or view of the caller's refers to its storage.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        kept: int = 4,
        where: torch.device | None = None,
    ) -> None:
        self.shape, self.dtype, self.kept, self.where = shape, dtype, kept, where
        self._buffers: list[torch.Tensor] = []

    def take(self) -> torch.Tensor:
        """A contiguous tensor whose old contents nobody can see."""
        for n, buffer in enumerate(self._buffers):
            if _uses(buffer) != _FREE:
                continue
            if buffer.untyped_storage().nbytes() < buffer.numel() * buffer.element_size():
                del self._buffers[n]  # the caller has shrunk it
                break
            return buffer.detach()
        buffer = torch.empty(self.shape, dtype=self.dtype, device=self.where)
        if len(self._buffers) < self.kept:
            self._buffers.append(buffer)
        return buffer.detach()


def _uses(buffer: torch.Tensor) -> tuple[int, int]:
    """What refers to a tensor's storage: from PyTorch's side, and from Python's.

    All Python objects of one storage are one, so PyTorch does not count who holds it.
    """
    storage = buffer.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


#: of a tensor that nobody else refers to
_FREE = _uses(torch.empty(4))
