"""Different tensors in one storage, where a program updates one of them.

Arguments of a program are separate values. Therefore parameters, buffers and captured tensors that share memory are
traced as views of the one that contains the others, so an update of one changes the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch


class Shared(Exception):
    """A trace has treated tensors as separate, and updates one that shares memory with another. storages: the
    addresses of their storages."""

    def __init__(self, storages: set[int]) -> None:
        super().__init__("shared memory")
        self.storages = storages


def storage_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; 0 for one without memory."""
    return tensor.untyped_storage().data_ptr() if tensor.numel() else 0


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of a tensor's first byte, and the one after its last byte."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    begin = tensor.data_ptr()
    return begin, begin + (reach + 1) * tensor.element_size()


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors may share elements.

    The columns of one matrix, for example, interleave and share none: two tensors are disjoint if they are disjoint
    modulo one of their strides.
    """
    if not (a.numel() and b.numel()):
        return False
    (begin, end), (other, last) = span(a), span(b)
    if begin >= last or other >= end:
        return False
    steps = [
        [(s * t.element_size(), n) for s, n in zip(t.stride(), t.shape) if n != 1] for t in (a, b)
    ]
    for modulus in {s for own in steps for s, _ in own if s}:
        widths = [
            sum(s * (n - 1) for s, n in own if s % modulus) + t.element_size()
            for own, t in zip(steps, (a, b))
        ]
        behind = (other - begin) % modulus  # the distance from a's first byte to the next of b's
        if widths[0] <= behind and behind + widths[1] <= modulus:
            return False
        if a.element_size() == b.element_size():
            mine = _places(steps[0], 0, modulus)
            if mine and mine.isdisjoint(_places(steps[1], behind, modulus) or mine):
                return behind % a.element_size() != 0
    return True


#: up to how many elements of a tensor, modulo a stride, are compared one by one
_COMPARED = 1024


def _places(steps: Sequence[tuple[int, int]], start: int, modulus: int) -> set[int]:
    """The addresses of elements, modulo a number of bytes; empty if there are too many."""
    inner = [(s, n) for s, n in steps if s % modulus]
    if math.prod(n for _, n in inner) > _COMPARED:
        return set()
    found = {start}
    for stride, size in inner:
        found = {(p + i * stride) % modulus for p in found for i in range(size)}
    return found


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
