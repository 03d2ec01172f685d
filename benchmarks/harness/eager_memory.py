"""What a piece of eager PyTorch allocates at once, beside what it started with."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Bytes of the storages of all tensors that ops return, while anyone holds them.

    known: tensors that were there before, which don't count.
    """

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known = {t.untyped_storage()._cdata for t in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        self.peak = max(self.peak, self.live)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def tensors_peak(step: Callable[[], object], known: Iterable[torch.Tensor]) -> int:
    """The most bytes of tensors, beside `known`, during a step: what the program itself makes."""
    with LiveTensors(known) as mode:
        result = step()
    del result
    return mode.peak


def allocated_peak(step: Callable[[], object]) -> int:
    """The most bytes that PyTorch's CPU allocator gave out during a step and did not get back:
    tensors, and what ops allocate inside. Workspaces of oneDNN and BLAS are not among them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = step()
    del result
    live = peak = 0
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak
