"""Detects changes of tensors: by their addresses, by PyTorch's version counters, and by a few elements. The latter find
changes that version counters miss (`p.data.mul_(2)`, NumPy)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np
import torch

from .words import Words

#: elements of each tensor that are compared
_SAMPLES = 8
_version: Callable[[torch.Tensor], int] = attrgetter("_version")
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Watched:
    """The state of tensors at the addresses `places`, when the object is created."""

    def __init__(self, tensors: Sequence[torch.Tensor], places: Sequence[int]) -> None:
        self._places, self._versions = list(places), list(map(_version, tensors))
        # the tensors are kept alive, so no other tensor can have their addresses
        self._held = [t.detach() for t in tensors]
        self._looks = _looks(self._held)

    def same(self, tensors: Sequence[torch.Tensor], places: Sequence[int]) -> bool:
        """Whether these are the same tensors, without changes."""
        return (
            places == self._places
            and list(map(_version, tensors)) == self._versions
            and all(look.same() for look in self._looks)
        )


class _Look:
    """A few elements of each of several tensors with elements of one width, when the object is created.

    One call of NumPy reads them all, by their distances from the first one. A call of PyTorch takes half a microsecond
    for each tensor. The caller keeps the tensors alive.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        parts = [*map(_sample, tensors)]
        width = parts[0].element_size()
        at = np.concatenate(
            [p.data_ptr() + width * p.stride(0) * np.arange(len(p), dtype=np.int64) for p in parts]
        )
        if (at % width).any():  # then byte by byte
            at, width = (at[:, None] + np.arange(width)).ravel(), 1
        self._words = Words(at, width)
        self._was = self._words.read().tobytes()

    def same(self) -> bool:
        """Whether the elements are unchanged."""
        return bool(self._words.read().tobytes() == self._was)


def _looks(tensors: Sequence[torch.Tensor]) -> list[_Look]:
    """`_Look`s for tensors on the CPU. Tensors on a GPU have none, since reading them would wait for the GPU."""
    widths: dict[int, list[torch.Tensor]] = {}
    for t in tensors:
        if t.device.type == "cpu" and t.numel() and not t.is_complex():
            widths.setdefault(t.element_size(), []).append(t)
    return [_Look(found) for found in widths.values()]


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Elements at equal distances from the first to the last, as integers that share the tensor's memory."""
    bits = _BITS[tensor.element_size()]
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    if reach == tensor.numel():  # dense in some order
        count = min(reach, _SAMPLES)
        step = (reach - 1) // (count - 1) if count > 1 else 1
        return tensor.view(bits).as_strided((count,), (step,), tensor.storage_offset())
    row = tensor.view(bits)
    while row.dim() > 1:
        row = row[0]
    return row[:_SAMPLES]
