"""`gflow.dynamic_dim(x, 0, min=1, max=64)`: dimensions of inputs whose size may differ from call to call.

All dimensions that are marked with one range in the arguments of a call have the same size. A graph that was called
with marks keeps them for later calls whose arguments are equal except for that size; one program covers all sizes.
With several ranges, a program has the two widest as dynamic dimensions, and there is one program for each value of the
others. If two are not possible, only the widest is dynamic.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gflow.errors import GraphInputError
from gflow.tracing.context.location import here
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.sizes import Domain, Dynamic, SizeDecides, size_of

from .micro_batches import in_micro_batches

_log = logging.getLogger("gflow")

Tensor = torch.Tensor
_MARKS = "_gflow_dynamic"

#: whether anything was ever marked: otherwise calls of graphs do not search for marks
_marked = False


def dynamic_dim(tensor: Tensor, dim: int = 0, *, min: int = 1, max: int) -> Tensor:
    """Mark a dimension of a graph's input as dynamic: its size may be any from `min` to `max`. The graph that is
    called with it compiles one program for all these sizes.

    Later calls of that graph need no marks. All dimensions that are marked with one range in the arguments of one call
    have the same size, such as the batch of inputs and of their targets. Marks with another range are another size (a
    length). A program has at most two dynamic sizes. If it has fewer than are marked, a warning says so, and there is
    a program for each value of the others.

    Returns:
        The tensor.

    Raises:
        GraphInputError: the dimension or the range does not exist, or the size is not in the range.
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
    """The marks of calls of one kind.

    Args:
        marks: by leaf and dimension.
        ways: the choices of dynamic dimensions, in order of preference.
        parts: the parts of a range that has no single program.
        alone: sizes in no such part, which have static programs.
    """

    marks: dict[int, dict[int, Domain]]
    ways: list[Dynamic]
    parts: list[Dynamic] = field(default_factory=list)
    alone: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def whole(self) -> Dynamic:
        """The preferred choice of dynamic dimensions."""
        return self.ways[0]


@dataclass
class DynamicCalls:
    """The marked dimensions of a graph's calls."""

    known: list[_Marked] = field(default_factory=list)

    def mark(self, call: BoundCall, count: int = 1) -> None:
        """Give a call its dynamic dimensions, if there are any, and the key that it has for all sizes. count: the
        number of micro-batches.

        Raises:
            GraphInputError: its size is outside of the range, or marked dimensions differ.
        """
        if not _marked:
            return
        leaves = call.leaves
        marks = {i: m for i, leaf in enumerate(leaves) if (m := getattr(leaf, _MARKS, None))}
        if marks and all(m.marks != marks for m in self.known):
            self.known.insert(0, _Marked(marks, _ways(marks, count)))
        for marked in self.known:
            if not (marked.marks == marks if marks else _alike(marked.marks, leaves)):
                continue
            _check(marked.marks, call)
            sizes = _sizes(marked.whole, leaves)
            if sizes in marked.alone:
                return
            known = next((p for p in marked.parts if _has(p, sizes)), marked.whole)
            dynamic = in_micro_batches(known, count, leaves)
            if dynamic is None:
                return
            if dynamic is not known and dynamic not in marked.parts:
                marked.parts.insert(0, dynamic)
            call.dynamic = dynamic
            call.key = key_without_sizes(dynamic, leaves, call.key)
            return

    def _of(self, dynamic: Dynamic) -> _Marked:
        return next(m for m in self.known if m.whole == dynamic or dynamic in m.parts)

    def narrowed(self, call: BoundCall, reason: SizeDecides) -> bool:
        """Divide the range that a call was marked with, because of `reason`. False: no part of it has one answer."""
        dynamic = call.dynamic
        assert dynamic is not None
        part = dynamic.part_of(reason, call.leaves)
        if part is None and not reason.divides:
            return False
        marked = self._of(dynamic)
        if dynamic in marked.parts:
            marked.parts.remove(dynamic)
        if part is None:
            marked.alone.add(_sizes(marked.whole, call.leaves))
        else:
            marked.parts.append(part)
        return True

    def simpler(self, call: BoundCall, error: Exception) -> bool:
        """Use fewer dynamic sizes in programs of such calls, because of `error`. Returns False if there is only
        one."""
        assert call.dynamic is not None
        marked = self._of(call.dynamic)
        if len(marked.ways) == 1:
            return False
        marked.ways.pop(0)
        marked.parts.clear()
        marked.alone.clear()
        if len(marked.ways) == 1:
            _log.warning(
                "%s: a program varies in the size in %s alone, and each value of the other dimensions that are marked "
                "is compiled, since no program follows both: %s",
                here(),
                marked.whole.sizes,
                (str(error).splitlines() or [type(error).__name__])[0],
            )
        return True


def _sizes(dynamic: Dynamic, leaves: Sequence[Any]) -> tuple[int, ...]:
    return tuple([size_of(one, leaves) for one in dynamic.each])


def _has(dynamic: Dynamic, sizes: tuple[int, ...]) -> bool:
    """Whether sizes are within their ranges."""
    return all(one.sizes.k(n) is not None for one, n in zip(dynamic.each, sizes))


def _by_range(marks: dict[int, dict[int, Domain]]) -> dict[Domain, dict[int, tuple[int, ...]]]:
    """The dimensions that are marked with each range, the widest first."""
    ranges = {r for found in marks.values() for r in found.values()}
    found: dict[Domain, dict[int, tuple[int, ...]]] = {}
    for r in sorted(ranges, key=lambda r: (r.most - r.least, r.most), reverse=True):
        dims = {i: tuple(sorted(d for d, own in m.items() if own == r)) for i, m in marks.items()}
        found[r] = {i: own for i, own in dims.items() if own}
    return found


def _ways(marks: dict[int, dict[int, Domain]], count: int) -> list[Dynamic]:
    """The choices of dynamic dimensions for a program: two sizes, in both orders since only one may occur squared, or
    one."""
    one, *more = (Dynamic(r, dims) for r, dims in _by_range(marks).items())
    if not more:
        return [one]
    if len(more) > 1 or count > 1:
        _log.warning(
            "%s: dimensions are marked with %d ranges. A program has at most %s, and each value of the others is "
            "compiled.",
            here(),
            1 + len(more),
            "two dynamic sizes" if count == 1 else "one dynamic size with gradient accumulation",
        )
    if count > 1:
        return [one]
    pairs = ((more[0], one), (one, more[0]))
    return [
        *(replace(x, second=replace(y, sizes=replace(y.sizes, name="m"))) for x, y in pairs),
        one,
    ]


def _check(marks: dict[int, dict[int, Domain]], call: BoundCall) -> None:
    """Check the sizes of a call.

    Raises:
        GraphInputError: a size is outside of its range, or dimensions of one range differ.
    """
    leaves = call.leaves
    for sizes, dims in _by_range(marks).items():
        dynamic = Dynamic(sizes, dims)
        first, n = next(iter(dims)), size_of(dynamic, leaves)
        for i, own in dims.items():
            for d in own:
                if leaves[i].shape[d] != n:
                    raise GraphInputError(
                        f"{here()}: dimension {d} of input {call.names[i]!r} is {leaves[i].shape[d]}, and dimension "
                        f"{dims[first][0]} of {call.names[first]!r} is {n}; dimensions that are "
                        "marked with one range have one size in a call."
                    )
            if not leaves[i].is_contiguous():
                raise GraphInputError(
                    f"{here()}: input {call.names[i]!r} has a dynamic dimension and is not dense; call .contiguous()"
                )
        if not sizes.least <= n <= sizes.most:
            raise _outside(call, first, dims[first][0], sizes)


def _outside(call: BoundCall, leaf: int, dim: int, sizes: Domain) -> GraphInputError:
    return GraphInputError(
        f"{here()}: dimension {dim} of input {call.names[leaf]!r} is {call.leaves[leaf].shape[dim]}, and it was "
        f"marked with dynamic_dim(min={sizes.least}, max={sizes.most})."
    )


def _alike(marks: dict[int, dict[int, Domain]], leaves: Sequence[Any]) -> bool:
    """Whether a call without marks has the tensors that were marked before."""
    return all(
        i < len(leaves) and isinstance(leaves[i], Tensor) and leaves[i].dim() > max(dims)
        for i, dims in marks.items()
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
        if dims := dynamic.which(i):
            shape = tuple(None if d in dims else s for d, s in enumerate(leaf.shape))
            parts[at] = (shape, None, leaf.dtype, leaf.device, leaf.requires_grad)
        at += 1
    varying = [x for one in dynamic.each for x in (one.sizes, *one.dims.items())]
    return (*varying, *parts)
