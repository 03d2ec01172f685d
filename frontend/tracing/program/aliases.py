"""Tensors that share memory after a call: results with arguments, and tensors that are kept for the next call.

Results that share memory with an argument or with another result do so for the caller, too (`result_views`).

A program writes a tensor that is assigned to a buffer, an attribute or an optimizer's state into the memory of the
previous tensor. Therefore two of these cannot become one tensor, or views of one: a later update in place would change
both in eager, and one of them in a program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from gflow.dialects.records import record
from gflow.dialects.types import row_major_strides
from gflow.errors import GraphTraceError
from gflow.runtime.tensors import overlap

from ..data.values import ResultView, TraceInput, TraceValue

_views: Any = torch._C._functionalization
#: view ops that change elements without changing memory
_FLIPS = (_views._conj_ViewMeta, _views._neg_view_ViewMeta)


def check_ends(
    ends: Mapping[int, torch.Tensor],
    assigned: Collection[int],
    inputs: Sequence[TraceInput],
    where: str,
) -> None:
    """Check that tensors that the call assigns share no memory.

    Args:
        ends: the final traced tensors of inputs, by index.
        assigned: the indices of inputs that got another tensor.
        inputs: all inputs.
        where: the beginning of errors.

    Raises:
        GraphTraceError: an assigned tensor shares memory with another final tensor.
    """
    by_storage: dict[int, list[int]] = {}
    for index, end in ends.items():
        by_storage.setdefault(end.untyped_storage()._cdata, []).append(index)
    for index in [i for i in assigned if i in ends]:
        for other in by_storage.get(ends[index].untyped_storage()._cdata, ()):
            if other != index and _overlap(ends[index], ends[other]):
                raise GraphTraceError(
                    _problem(where, *(describe_input(inputs[i]) for i in (index, other)))
                )


def check_made(
    made: Sequence[tuple[str, torch.Tensor]],
    known: Mapping[int, str],
    where: Callable[[], str],
) -> None:
    """Check that the state that an optimizer created shares no memory.

    Args:
        made: names and tensors of the state after a step.
        known: names of parameters, by the addresses of their storages.
        where: gives the beginning of errors.

    Raises:
        GraphTraceError: a tensor shares memory with a parameter, or with another one.
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


def result_views(
    results: Sequence[torch.Tensor],
    known: Mapping[int, tuple[torch.Tensor, TraceValue]],
    concrete: Callable[[Any], Any],
) -> list[ResultView]:
    """The results that are views of an argument or of another result.

    Args:
        results: traced tensors.
        known: for storages of traced tensors, the traced argument and its value.
        concrete: converts a size to an integer.
    """
    found = []
    whole = {id(base): (base, value) for base, value in known.values()}
    firsts: dict[int, int] = {}
    with torch._C.DisableTorchFunction():
        places = [_Place.of(result, concrete) for result in results]
        for n, place in enumerate(places):
            if place.storage not in known and place.dense:
                first = firsts.setdefault(place.storage, n)
                if places[first].end < place.end:
                    firsts[place.storage] = n
        for n, (result, place) in enumerate(zip(results, places)):
            first = next(i for i, other in enumerate(results) if other is result)
            base, value = whole.get(id(result)) or known.get(place.storage) or (None, None)
            if base is None:
                first = first if first < n else firsts.get(place.storage, n)
                if first == n:
                    continue
                base = results[first]
            held = _Place.of(base, concrete)
            same = result is base
            flipped = any(map(_is_flipped, (result, base)))
            alike = result.element_size() == base.element_size() and not flipped
            if same or (alike and (value is not None or place.end <= held.end)):
                offset = concrete(result.storage_offset() - base.storage_offset())
                found.append(
                    ResultView(
                        n,
                        value,
                        first,
                        held.strides,
                        same,
                        result.dtype,
                        place.shape,
                        place.strides,
                        offset,
                    )
                )
    return found


def _is_flipped(tensor: torch.Tensor) -> bool:
    """Whether a traced tensor's elements are the conjugates or negatives of the elements in memory. A view of a
    conjugate does not have the flag any more once the conjugate was updated: its value has been computed, and its
    address is the same."""
    if tensor.is_conj() or tensor.is_neg():
        return True
    if not torch._is_functional_tensor(tensor):
        return False
    return any(isinstance(v, _FLIPS) for v in _views.get_view_meta_sequence(tensor))


@record
class _Place:
    """The range of elements of a traced tensor in its storage."""

    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int

    @staticmethod
    def of(tensor: torch.Tensor, concrete: Callable[[Any], Any] = int) -> _Place:
        shape, strides = (tuple(map(concrete, part)) for part in (tensor.shape, tensor.stride()))
        begin = concrete(tensor.storage_offset())
        return _Place(tensor.untyped_storage()._cdata, shape, strides, begin)

    @property
    def end(self) -> int:
        if 0 in self.shape:
            return self.begin
        return self.begin + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides))

    @property
    def dense(self) -> bool:
        return not self.begin and self.strides == row_major_strides(self.shape)


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage may overlap, judged by their first and last elements."""
    with torch._C.DisableTorchFunction():
        mine, other = _Place.of(a), _Place.of(b)
    return mine.begin < other.end and other.begin < mine.end


def describe_input(entry: TraceInput) -> str:
    """An input, as messages name it."""
    return f"{entry.role.replace('_', ' ')} {entry.name!r}"


def _problem(where: str, one: str, other: str) -> str:
    return (
        f"{where}: {one} and {other} are one tensor after the call, or views of one, and an update of one in place "
        "would be seen in the other. A graph keeps each in memory of its own. Assign a copy (.clone())."
    )
