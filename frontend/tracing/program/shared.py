"""Different tensors in one storage, where a program updates one of them.

Arguments of a program are separate values. Therefore parameters, buffers and captured tensors that share memory are
traced as views of the one that contains the others, so an update of one changes the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from gflow.runtime.tensors import overlap, span, storage_of


class Shared(Exception):
    """A trace has treated tensors as separate, and updates one that shares memory with another. storages: the
    addresses of their storages."""

    def __init__(self, storages: set[int]) -> None:
        super().__init__("shared memory")
        self.storages = storages


def base_of(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> torch.Tensor:
    """The largest tensor that contains `tensor`: one of `others`, or `tensor` itself."""
    best, storage = tensor, storage_of(tensor)
    begin, end = span(tensor)
    for other in others:
        if other.dtype != tensor.dtype or not other.is_contiguous() or storage_of(other) != storage:
            continue
        first, last = span(other)
        low, high = span(best)
        wider = (last - first) > (high - low) or (best is tensor and other is not tensor)
        if first <= begin and end <= last and wider and first <= low and high <= last:
            best = other
    return best


def view_in(wrapper: torch.Tensor, base: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as a view of `base`, whose traced proxy is `wrapper`."""
    with torch._C.DisableTorchFunction():
        mine, whole = ((t.shape, t.stride(), t.data_ptr()) for t in (tensor, base))
        with torch.no_grad():
            held = wrapper.detach()
            if mine == whole:
                held = held.view(mine[0])
            else:
                offset = (mine[2] - whole[2]) // base.element_size()
                held = _placed(held, mine[0], mine[1], offset)
        if tensor.requires_grad:
            held.requires_grad_(True)
        if isinstance(tensor, torch.nn.Parameter):
            held._is_param = True  # type: ignore[attr-defined]
    return held


def _placed(
    whole: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int
) -> torch.Tensor:
    """`as_strided` of a row-major tensor, by views through which updates can be written, where possible."""
    given = offset
    order = sorted((d for d, n in enumerate(shape) if n > 1), key=lambda d: -strides[d])
    view = whole.reshape(-1)
    for place, d in enumerate(order):
        step, last = strides[d], place == len(order) - 1
        length = view.shape[-1]
        if not last and step and length % step == 0:
            skipped, offset = divmod(offset, step)
            view = view.unflatten(-1, (length // step, step)).narrow(-2, skipped, shape[d])
        elif last and step:
            view = view[..., offset : offset + (shape[d] - 1) * step + 1 : step]
        else:
            return whole.as_strided(shape, strides, given)
    if not order:
        view = view[offset]
    view = view.permute([order.index(d) for d in sorted(order)])
    for d, n in enumerate(shape):
        if n == 1:
            view = view.unsqueeze(d)
    return view


def conflicts(
    tensors: Mapping[int, torch.Tensor | None], written: set[int], used: set[int]
) -> list[tuple[int, int]]:
    """Pairs of tensors that share memory, of which the first is updated: pairs of indices.

    Args:
        tensors: the arguments.
        written, used: the indices of those that are updated, and of those that ops read.
    """
    storages: dict[int, list[tuple[int, torch.Tensor]]] = {}
    for index, tensor in tensors.items():
        if tensor is not None and (index in written or index in used):
            storages.setdefault(storage_of(tensor), []).append((index, tensor))
    found = []
    for storage, members in storages.items():
        if not storage or len(members) < 2:
            continue
        spans = sorted((*span(tensor), index) for index, tensor in members)
        for n, (_, end, a) in enumerate(spans):
            for begin, _, b in spans[n + 1 :]:
                if begin >= end:
                    break
                if (a in written or b in written) and overlap(tensors[a], tensors[b]):  # type: ignore[arg-type]
                    found.append((a, b) if a in written else (b, a))
    return found
