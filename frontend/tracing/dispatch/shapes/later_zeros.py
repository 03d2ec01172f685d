"""Large tensors that begin as zeros are written by a thread while tracing goes on.

The pages of new memory are given to a process as they are written to, which takes as long as a tenth of a first call:
Adam's state of a decoder's 14 million parameters, 115 MB, takes 60 to 80 ms.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Collection
from types import TracebackType

import torch

#: bytes of a tensor that is worth it
_LARGE = 1 << 16


class LaterZeros:
    """A context at whose end all tensors that it was given are zeros."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> LaterZeros:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for thread in self._threads:
            thread.join()

    def write(self, tensors: Collection[torch.Tensor]) -> None:
        """Begin to write zeros to dense tensors on the CPU that nothing else reads or writes in the context."""
        parts = [(t, t.data_ptr(), t.numel() * t.element_size()) for t in tensors]
        if sum(size for _, _, size in parts) < _LARGE:
            _clear(parts)
            return
        thread = threading.Thread(target=_clear, args=(parts,), name="gflow: zeros")
        self._threads.append(thread)
        thread.start()


def _clear(parts: list[tuple[torch.Tensor, int, int]]) -> None:
    for _, address, size in parts:
        ctypes.memset(address, 0, size)  # without Python's lock
