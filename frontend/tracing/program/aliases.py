"""Tensors that share memory from one call to the next: in eager, where an assignment keeps a tensor itself.

A program keeps what is assigned to a buffer, an attribute or an optimizer's state in the memory of the tensor that was
there. So two of these cannot become one tensor, or views of one: a later update in place would reach both in eager,
and one of them in a program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from gflow.errors import GraphTraceError

from ..data.values import TraceInput
from .shared import overlap


def check_ends(
    ends: Mapping[int, torch.Tensor],
    assigned: Collection[int],
    inputs: Sequence[TraceInput],
    where: str,
) -> None:
    """
    Args:
        ends: by the numbers of inputs, the traced tensors that they have become. assigned: those of them that got
            another tensor.

    Raises:
        GraphTraceError: one of these shares memory with another end.
    """
    by_storage: dict[int, list[int]] = {}
    for index, end in ends.items():
        by_storage.setdefault(end.untyped_storage()._cdata, []).append(index)
    for index in assigned:
        for other in by_storage.get(ends[index].untyped_storage()._cdata, ()):
            if other != index and _overlap(ends[index], ends[other]):
                raise GraphTraceError(_problem(where, *(told(inputs[i]) for i in (index, other))))


def check_made(
    made: Sequence[tuple[str, torch.Tensor]],
    known: Mapping[int, str],
    where: Callable[[], str],
) -> None:
    """
    Args:
        made: names and tensors of an optimizer's state after a step. known: parameters, by the addresses of their
            storages.

    Raises:
        GraphTraceError: one lies in the memory of a parameter, or of another one.
    """
    before: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in made:
        if tensor.layout != torch.strided or not tensor.numel():
            continue
        storage = tensor.untyped_storage().data_ptr()
        if storage in known:
            raise GraphTraceError(_problem(where(), name, known[storage]))
        others = before.setdefault(storage, [])
        for other, held in others:
            if held is not tensor and overlap(held, tensor):
                raise GraphTraceError(_problem(where(), name, other))
        others.append((name, tensor))


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether parts of one memory may meet: by where they begin and end."""
    (begin, end), (other, last) = _span(a), _span(b)
    return begin < last and other < end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    with torch._C.DisableTorchFunction():
        if not tensor.numel():
            return 0, 0
        begin = int(tensor.storage_offset())
        reach = sum((int(n) - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride()))
        return begin * tensor.element_size(), (begin + reach + 1) * tensor.element_size()


def told(entry: TraceInput) -> str:
    """An input, as messages name it."""
    return f"{entry.role.replace('_', ' ')} {entry.name!r}"


def _problem(where: str, one: str, other: str) -> str:
    return (
        f"{where}: {one} and {other} are one tensor after the call, or views of one, and an update of one in place "
        "would be seen in the other. A graph keeps each in memory of its own. Assign a copy (.clone())."
    )
