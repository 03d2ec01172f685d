"""Dimensions that become dynamic by themselves, once a second size of them has come.

A call is compared with earlier ones that equal it but for sizes. Where all sizes that differ were one number and are
another, they vary together: the program for this call is made for a range of them, as `gflow.dynamic_dim` would. What
such a program cannot be (a choice depends on the size) is compiled for the one size, from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gflow.tracing.context.ranks import world_size
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.global_tensors import is_global
from gflow.tracing.data.sizes import Dynamic, Range, size_of

from .dynamic_dim import key_without_sizes

_log = logging.getLogger("gflow")

#: earlier calls, alike but for sizes, that a call is compared with
_REMEMBERED = 8
#: a range goes to this size, if memory allows it, or to four times the size that asked for it
_REACH = 1024
#: bytes of inputs' elements at the end of a range, where it goes beyond twice the size that asked for it; memory is
#: planned for the greatest size
_ROOM = 1 << 24
_MOST = 1 << 24

Shapes = tuple[torch.Size, ...]


@dataclass
class AutomaticSizes:
    """What of a graph's calls has varied so far. refused: signatures without sizes whose programs are for one
    size each, and why."""

    seen: dict[Any, list[Shapes]] = field(default_factory=dict)
    known: dict[Any, list[Dynamic]] = field(default_factory=dict)
    refused: dict[Any, str] = field(default_factory=dict)

    def served(self, call: BoundCall, key: Any) -> Iterator[tuple[BoundCall, Any]]:
        """The call, and its key, as a call of each range that was found for its like, the latest first."""
        if not self.known:
            return
        for dynamic in self.known.get(_skeleton(call, key), ()):
            if _is_of(dynamic, call.leaves):
                yield _varying(call, key, dynamic)

    def proposed(self, call: BoundCall, key: Any) -> tuple[BoundCall, Any] | None:
        """The call and its key with what varies in it, if it differs from an earlier one in one size."""
        skeleton = _skeleton(call, key)
        if skeleton is None or skeleton in self.refused:
            return None
        for found in self.served(call, key):
            return found
        shapes = _shapes(call.leaves)
        for earlier in reversed(self.seen.get(skeleton, [])):
            dims = _differing(earlier, shapes, call.leaves)
            if dims is None:
                continue
            n = size_of(Dynamic(Range(0, 0), dims), call.leaves)
            dynamic = Dynamic(Range(2, _reach(n, dims, call.leaves)), dims, True)
            return _varying(call, key, dynamic)
        return None

    def took(self, call: BoundCall, key: Any, name: str, dynamic: Dynamic) -> None:
        """A program for a range was made for a call, and serves later ones."""
        known = self.known.setdefault(_skeleton(call, key), [])
        if dynamic in known:
            return
        known.insert(0, dynamic)
        _log.info(
            "%s: %s of %s differ between calls, and are dynamic from here on: one program for sizes in %s.",
            name,
            "dimensions" if sum(map(len, dynamic.dims.values())) > 1 else "sizes",
            dims_of(dynamic, call.names),
            dynamic.sizes,
        )

    def refuse(self, call: BoundCall, key: Any, name: str, error: Exception) -> None:
        """No program for a range could be made; say so once for the kind of call."""
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        self.refused[_skeleton(call, key)] = reason
        _log.warning(
            "%s is compiled for each size of its inputs, since no program for a range of them could be made: %s",
            name,
            reason,
        )

    def why_static(self, call: BoundCall, key: Any) -> str:
        """What to add to the reason of a compilation for one size; "" where no range was refused."""
        if call.dynamic is not None or not self.refused:
            return ""
        reason = self.refused.get(_skeleton(call, key))
        return "" if reason is None else f" (for this size alone: {reason})"

    def saw(self, call: BoundCall, key: Any) -> None:
        """Remember the sizes of a call that has a program for them alone."""
        skeleton = _skeleton(call, key)
        if skeleton is None:
            return
        seen = self.seen.setdefault(skeleton, [])
        shapes = _shapes(call.leaves)
        if shapes not in seen:
            seen.append(shapes)
            del seen[:-_REMEMBERED]


def dims_of(dynamic: Dynamic, names: Sequence[str]) -> str:
    """`x[0], y[0, 1]`."""
    return ", ".join(f"{names[i]}{list(dims)}" for i, dims in dynamic.dims.items())


def can_vary(call: BoundCall, micro_batches: int, checked: bool) -> bool:
    """Whether programs for ranges exist for calls of this kind at all: on the CPU, in one process, with all of a batch
    in one step, and not beside eager."""
    if call.dynamic is not None or micro_batches > 1 or checked or world_size() > 1:
        return False
    tensors = [x for x in call.leaves if isinstance(x, torch.Tensor)]
    return bool(tensors) and all(t.device.type == "cpu" and not is_global(t) for t in tensors)


def _varying(call: BoundCall, key: Any, dynamic: Dynamic) -> tuple[BoundCall, Any]:
    own = key_without_sizes(dynamic, call.leaves, call.key)
    return replace(call, key=own, dynamic=dynamic), (own, *key[1:])


def _shapes(leaves: Sequence[Any]) -> Shapes:
    return tuple(x.shape for x in leaves if isinstance(x, torch.Tensor))


def _skeleton(call: BoundCall, key: Any) -> Any:
    """All of a key but the sizes of tensors. None: tensors are not dense, and their strides say more than sizes."""
    leaves = call.leaves
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    if not all(t.is_contiguous() for t in tensors):
        return None
    every = Dynamic(
        Range(0, 0),
        {i: tuple(range(x.dim())) for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)},
    )
    return (key_without_sizes(every, leaves, call.key)[1 + len(every.dims) :], *key[1:])


def _differing(
    earlier: Shapes, shapes: Shapes, leaves: Sequence[Any]
) -> dict[int, tuple[int, ...]] | None:
    """The dimensions, by leaf, that differ, if they had one size and have one now, both of 2 or more: for 0 and 1
    broadcasting and reductions have rules of their own."""
    dims: dict[int, tuple[int, ...]] = {}
    sizes: set[tuple[int, int]] = set()
    at = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    for i, before, now in zip(at, earlier, shapes, strict=True):
        found = tuple(d for d, (a, b) in enumerate(zip(before, now, strict=True)) if a != b)
        if found:
            dims[i] = found
            sizes |= {(before[d], now[d]) for d in found}
    if len(sizes) != 1 or min(next(iter(sizes))) < 2:
        return None
    return dims


def _is_of(dynamic: Dynamic, leaves: Sequence[Any]) -> bool:
    """Whether a call has what varies, dense, in the range."""
    n = size_of(dynamic, leaves)
    return dynamic.sizes.least <= n <= dynamic.sizes.most and all(
        leaves[i].shape[d] == n for i, dims in dynamic.dims.items() for d in dims
    )


def _reach(n: int, dims: dict[int, tuple[int, ...]], leaves: Sequence[Any]) -> int:
    """The greatest size of a range that `n` asks for."""

    def room(most: int) -> float:
        return sum(
            leaves[i].numel() * leaves[i].element_size() * (most / n) ** len(d)
            for i, d in dims.items()
        )

    most = 1 << (max(_REACH, 4 * n) - 1).bit_length()
    while most >= 4 * n and room(most) > _ROOM:
        most //= 2
    return min(most, _MOST - 1)
