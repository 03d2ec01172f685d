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
from gflow.tracing.data.sizes import Domain, Dynamic, Fixed, Narrower, SizeDecides, size_of

from .dynamic_dim import key_without_sizes
from .micro_batches import in_micro_batches

_log = logging.getLogger("gflow")

#: earlier calls, alike but for sizes, that a call is compared with
_REMEMBERED = 8
#: keys of calls whose range is known without a comparison
_ROUTES = 1024
#: a range goes to this size, or to four times the greater of the two sizes that asked for it, if memory allows it
_REACH = 1024
#: bytes of inputs, and of a program's memory between steps, that the end of a range may come to: memory is planned
#: for the greatest size. What is never called with is address space alone.
_ROOM, _PLANNED = 1 << 24, 1 << 30
#: where a size ends in the IR: larger numbers are taken for a stand-in
_MOST = (1 << 24) - 1

#: where the sizes do not matter
_ANY = Domain("n", 0, 0)

Shapes = tuple[torch.Size, ...]


class NoRange(Exception):
    """No program for a range of sizes could be made of a call. reason: what came in the way."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass
class AutomaticSizes:
    """What of a graph's calls has varied so far. seen: the shapes of calls with programs of their own, and the bytes
    that these plan; refused: signatures without sizes whose programs are for one size each, and why; routes: by a
    call's key the ranges that take it."""

    seen: dict[Any, list[tuple[Shapes, int]]] = field(default_factory=dict)
    known: dict[Any, list[Dynamic]] = field(default_factory=dict)
    refused: dict[Any, str] = field(default_factory=dict)
    routes: dict[Any, list[tuple[Dynamic, Any]]] = field(default_factory=dict)

    def served(self, call: BoundCall, key: Any) -> Iterator[tuple[BoundCall, Any]]:
        """The call, and its key, as a call of each range that was found for its like, the latest first."""
        if not self.known:
            return
        found = self.routes.get(key)
        if found is None:
            if len(self.routes) >= _ROUTES:
                self.routes.clear()
            ranges = self._ranges(call, key)
            found = self.routes[key] = [(c.dynamic, own) for c, own in ranges if c.dynamic]
        for dynamic, own in found:
            yield replace(call, key=own[0], dynamic=dynamic), own

    def _ranges(self, call: BoundCall, key: Any) -> Iterator[tuple[BoundCall, Any]]:
        for dynamic in self.known.get(_skeleton(call, key), ()):
            if _is_of(dynamic, call.leaves):
                yield _varying(call, key, dynamic)

    def proposed(self, call: BoundCall, key: Any, count: int = 1) -> tuple[BoundCall, Any] | None:
        """The call and its key with what varies in it, if it differs from an earlier one in one size. count: of
        micro-batches."""
        skeleton = _skeleton(call, key)
        if skeleton is None or skeleton in self.refused:
            return None
        for found in self.served(call, key):
            return found
        shapes = _shapes(call.leaves)
        for earlier, planned in reversed(self.seen.get(skeleton, [])):
            differing = _differing(earlier, shapes, call.leaves)
            if differing is None:
                continue
            dims, before = differing
            most = _reach(before, planned, dims, call.leaves)
            dynamic = in_micro_batches(
                Dynamic(Domain("n", 2, most), dims, True), count, call.leaves
            )
            if dynamic is None:
                return None
            return _varying(call, key, self._in_steps(dynamic, skeleton, call.leaves))
        return None

    def _in_steps(self, dynamic: Dynamic, skeleton: Any, leaves: Sequence[Any]) -> Dynamic:
        """A range in the steps that the program of a like call needed: this one will."""
        known = (k for k in self.known.get(skeleton, ()) if k.dims == dynamic.dims)
        step = max((k.sizes.step for k in known), default=1) // dynamic.sizes.step
        try:
            sizes = dynamic.sizes.narrowed(Narrower(step=max(step, 1)), size_of(dynamic, leaves))
        except Fixed:
            return dynamic
        return replace(dynamic, sizes=sizes)

    def narrowed(
        self, call: BoundCall, key: Any, tried: BoundCall, reason: Exception
    ) -> tuple[BoundCall, Any] | None:
        """The call and its key for the part of a range that was tried in which one answer to what came in the way
        holds; None where there is none."""
        dynamic = tried.dynamic
        if dynamic is None or not isinstance(reason, SizeDecides):
            return None
        part = reason.part(size_of(dynamic, call.leaves))
        return None if part is None else _varying(call, key, replace(dynamic, sizes=part))

    def took(self, call: BoundCall, key: Any, name: str, dynamic: Dynamic) -> None:
        """A program for a range was made for a call, and serves later ones."""
        known = self.known.setdefault(_skeleton(call, key), [])
        if dynamic in known:
            return
        known.insert(0, dynamic)
        self.routes.clear()
        _log.info(
            "%s: %s of %s differ between calls, and are dynamic from here on: one program for sizes in %s.",
            name,
            "dimensions" if sum(map(len, dynamic.dims.values())) > 1 else "sizes",
            dims_of(dynamic, call.names),
            dynamic.sizes,
        )

    def refuse(self, call: BoundCall, key: Any, name: str, error: Exception) -> None:
        """No program for a range could be made; say so once for the kind of call. Sizes of which a range has too few
        that are alike are no reason: others may have a program."""
        if isinstance(error, SizeDecides) and error.divides:
            return
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        self.refused[_skeleton(call, key)] = reason
        _log.warning(
            (
                "%s is compiled for each size of its inputs, since it cannot be compiled for a "
                "range of sizes: %s"
            ),
            name,
            reason,
        )

    def why_static(self, call: BoundCall, key: Any) -> str:
        """What to add to the reason of a compilation for one size; "" where no range was refused."""
        if call.dynamic is not None or not self.refused:
            return ""
        reason = self.refused.get(_skeleton(call, key))
        return "" if reason is None else f" (for this size alone: {reason})"

    def saw(self, call: BoundCall, key: Any, planned: int) -> None:
        """Remember the sizes of a call that has a program for them alone. planned: bytes that this has between its
        steps."""
        skeleton = _skeleton(call, key)
        if skeleton is None:
            return
        seen = self.seen.setdefault(skeleton, [])
        shapes = _shapes(call.leaves)
        if all(shapes != known for known, _ in seen):
            seen.append((shapes, planned))
            del seen[:-_REMEMBERED]


def dims_of(dynamic: Dynamic, names: Sequence[str]) -> str:
    """`x[0], y[0, 1]`."""
    return ", ".join(f"{names[i]}{list(dims)}" for i, dims in dynamic.dims.items())


def can_vary(call: BoundCall) -> bool:
    """Whether programs for ranges exist for calls of this kind at all: on the CPU, in one process."""
    if call.dynamic is not None or world_size() > 1:
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
        _ANY,
        {i: tuple(range(x.dim())) for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)},
    )
    return (key_without_sizes(every, leaves, call.key)[1 + len(every.dims) :], *key[1:])


def _differing(
    earlier: Shapes, shapes: Shapes, leaves: Sequence[Any]
) -> tuple[dict[int, tuple[int, ...]], int] | None:
    """The dimensions, by leaf, that differ, and the size that they had, if they had one size and have one now, both of
    2 or more: for 0 and 1 broadcasting and reductions have rules of their own."""
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
    return dims, next(iter(sizes))[0]


def _is_of(dynamic: Dynamic, leaves: Sequence[Any]) -> bool:
    """Whether a call has one size where a range has, and one of the range. That its tensors are dense, `_skeleton`
    has seen to."""
    n = size_of(dynamic, leaves)
    return dynamic.sizes.k(n) is not None and all(
        leaves[i].shape[d] == n for i, dims in dynamic.dims.items() for d in dims
    )


def _reach(
    before: int, planned: int, dims: dict[int, tuple[int, ...]], leaves: Sequence[Any]
) -> int:
    """The greatest size of a range that has `before` and the call's own size. planned: bytes that the program for
    `before` has between its steps, taken to grow as the inputs do."""
    n = size_of(Dynamic(_ANY, dims), leaves)
    degree = max(len(d) for d in dims.values())

    def fits(most: int) -> bool:
        inputs = sum(
            leaves[i].numel() * leaves[i].element_size() * (most / n) ** len(d)
            for i, d in dims.items()
        )
        return inputs <= _ROOM and planned * (most / before) ** degree <= _PLANNED

    most, least = 1 << (max(_REACH, 4 * max(n, before)) - 1).bit_length(), max(n, before)
    while most // 2 >= least and not fits(most):
        most //= 2
    return min(most if fits(most) else least, _MOST)
