"""`gflow.dynamic_dim(x, 0, min=1, max=64)`: dimensions of inputs whose size may differ from call to call.

The marks of one call's arguments are one size: all marked dimensions have it. A graph that was called with
marks keeps them, for later calls whose arguments are alike but for that size; one program serves all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gflow.errors import GraphInputError
from gflow.tracing.context.location import here
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.sizes import Domain, Dynamic, SizeDecides, size_of

from .micro_batches import in_micro_batches

Tensor = torch.Tensor
_MARKS = "_gflow_dynamic"

#: whether anything was ever marked: calls of graphs look for marks only then
_marked = False


def dynamic_dim(tensor: Tensor, dim: int = 0, *, min: int = 1, max: int) -> Tensor:
    """Mark a dimension of a graph's input: its size varies from call to call, from `min` to `max`. The
    graph that is called with it compiles one program for all these sizes. Returns the tensor.

    Later calls of that graph need no marks. All dimensions that are marked in the arguments of one call
    have one and the same size, such as a batch of inputs and of their targets.

    Raises:
        GraphInputError: there is no such dimension, no such range, or the size is not in it.
    """
    global _marked
    if not isinstance(tensor, Tensor):
        raise GraphInputError(
            f"{here()}: dynamic_dim() takes a tensor, got {type(tensor).__name__}; mark the tensors that "
            "a graph is called with"
        )
    if not -tensor.dim() <= dim < tensor.dim():
        raise GraphInputError(
            f"{here()}: dynamic_dim(): dimension {dim} does not exist; the tensor has {tensor.dim()} "
            "dimensions"
        )
    dim %= tensor.dim()
    for name, value in (("min", min), ("max", max)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise GraphInputError(f"{here()}: dynamic_dim({name}={value!r}): it must be an integer")
    if not 1 <= min < max < 1 << 24:
        raise GraphInputError(
            f"{here()}: dynamic_dim(min={min}, max={max}): it takes 1 <= min < max < {1 << 24:,}"
        )
    if not min <= tensor.shape[dim] <= max:
        raise GraphInputError(
            f"{here()}: dimension {dim} of the tensor is {tensor.shape[dim]}, which is not in "
            f"[{min}, {max}]"
        )
    _marked = True
    marks = dict(getattr(tensor, _MARKS, {}))
    marks[dim] = Domain("n", min, max)
    setattr(tensor, _MARKS, marks)
    return tensor


@dataclass
class _Marked:
    """What calls were marked with. parts: of a range that has no one program, those that have one; alone: sizes of it
    that are in no such part, and have programs of their own."""

    whole: Dynamic
    parts: list[Dynamic] = field(default_factory=list)
    alone: set[int] = field(default_factory=set)


@dataclass
class DynamicCalls:
    """What of a graph's calls varies, as far as calls have said."""

    known: list[_Marked] = field(default_factory=list)

    def mark(self, call: BoundCall, count: int = 1) -> None:
        """Give a call what varies in it, if anything does, and the key that it has for all sizes. count: of
        micro-batches.

        Raises:
            GraphInputError: its size is outside of the range, or marked dimensions differ.
        """
        if not _marked:
            return
        leaves = call.leaves
        marks = {i: m for i, leaf in enumerate(leaves) if (m := getattr(leaf, _MARKS, None))}
        wanted = _as_one(marks, call) if marks else None
        if wanted is not None and all(m.whole != wanted for m in self.known):
            self.known.insert(0, _Marked(wanted))
        for marked in self.known:
            if not (_alike(marked.whole, leaves) if wanted is None else marked.whole == wanted):
                continue
            _check(marked.whole, call)
            n = size_of(marked.whole, leaves)
            if n in marked.alone:
                return
            fit = (part for part in marked.parts if part.sizes.k(n) is not None)
            known = next(fit, marked.whole)
            dynamic = in_micro_batches(known, count, leaves)
            if dynamic is None:
                return
            if dynamic is not known and dynamic not in marked.parts:
                marked.parts.insert(0, dynamic)
            call.dynamic = dynamic
            call.key = key_without_sizes(dynamic, leaves, call.key)
            return

    def narrowed(self, call: BoundCall, reason: SizeDecides) -> bool:
        """Divide the range that a call was marked with, because of `reason`. False: no part of it has one answer."""
        dynamic = call.dynamic
        assert dynamic is not None
        n = size_of(dynamic, call.leaves)
        part = reason.part(n)
        if part is None and not reason.divides:
            return False
        marked = next(m for m in self.known if m.whole == dynamic or dynamic in m.parts)
        if dynamic in marked.parts:
            marked.parts.remove(dynamic)
        if part is None:
            marked.alone.add(n)
        else:
            marked.parts.append(replace(dynamic, sizes=part))
        return True


def _check(dynamic: Dynamic, call: BoundCall) -> None:
    """
    Raises:
        GraphInputError: the call's size is no size of `dynamic`, or its tensors do not have it.
    """
    leaves = call.leaves
    n = size_of(dynamic, leaves)
    for i, dims in dynamic.dims.items():
        for d in dims:
            if leaves[i].shape[d] != n:
                first = next(iter(dynamic.dims))
                raise GraphInputError(
                    f"{here()}: dimension {d} of input {call.names[i]!r} is {leaves[i].shape[d]}, and dimension "
                    f"{dynamic.dims[first][0]} of {call.names[first]!r} is {n}; dimensions that are "
                    "marked with dynamic_dim() have one size in a call."
                )
        if not leaves[i].is_contiguous():
            raise GraphInputError(
                f"{here()}: input {call.names[i]!r} has a dynamic dimension and is not dense; call .contiguous()"
            )
    if not dynamic.sizes.least <= n <= dynamic.sizes.most:
        first = next(iter(dynamic.dims))
        raise GraphInputError(
            f"{here()}: dimension {dynamic.dims[first][0]} of input {call.names[first]!r} is {n}, and it was "
            f"marked with dynamic_dim(min={dynamic.sizes.least}, max={dynamic.sizes.most})."
        )


def _as_one(marks: dict[int, dict[int, Domain]], call: BoundCall) -> Dynamic:
    ranges = {r: (i, d) for i, found in marks.items() for d, r in found.items()}
    if len(ranges) > 1:
        (a, (i, d)), (b, (j, e)) = list(ranges.items())[:2]
        raise GraphInputError(
            f"{here()}: dimension {d} of input {call.names[i]!r} is marked with sizes in {a}, and dimension {e} of "
            f"{call.names[j]!r} with {b}; a call has one size that varies: give all marks of it one range, "
            "and leave other dimensions static."
        )
    return Dynamic(next(iter(ranges)), {i: tuple(sorted(found)) for i, found in marks.items()})


def _alike(dynamic: Dynamic, leaves: Sequence[Any]) -> bool:
    """Whether a call without marks has the tensors that were marked before."""
    return all(
        i < len(leaves) and isinstance(leaves[i], Tensor) and leaves[i].dim() > max(dims)
        for i, dims in dynamic.dims.items()
    )


def key_without_sizes(
    dynamic: Dynamic, leaves: Sequence[Any], key: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The key of a call, without the size that varies."""
    parts = list(key)
    at = 0
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            continue
        own = (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
        at = parts.index(own, at)
        if i in dynamic.dims:
            dims = dynamic.dims[i]
            shape = tuple(None if d in dims else s for d, s in enumerate(leaf.shape))
            parts[at] = (shape, None, leaf.dtype, leaf.device, leaf.requires_grad)
        at += 1
    return (dynamic.sizes, *dynamic.dims.items(), *parts)
