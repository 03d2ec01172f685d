"""Dimensions that become dynamic automatically, after a second size was seen.

A call is compared with earlier ones that equal it except for sizes. Sizes that were equal and have changed to another
common value vary together: the program for this call is compiled for a range of them, as with `gflow.dynamic_dim`. If
several sizes vary independently, the two with the most values become dynamic, and the others are constants of the
program. If such a program is not possible (a choice depends on the size), programs with one dynamic size, or for
static sizes, are compiled from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gflow.dialects.records import record
from gflow.tracing.context.ranks import world_size
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.global_tensors import is_global
from gflow.tracing.data.sizes import Domain, Dynamic, Fixed, Narrower, SizeDecides, size_of

from .dynamic_dim import key_without_sizes
from .micro_batches import in_micro_batches

_log = logging.getLogger("gflow")

#: the number of earlier calls, equal except for sizes, with which a call is compared
_REMEMBERED = 8
#: the number of compiled calls that determine which sizes have varied most
_COUNTED = 64
#: with this many values of a size that is no dynamic dimension, a warning says that each has a program
_MANY = 3
#: the number of keys of calls whose range is cached
_ROUTES = 1024
#: the upper bound of a range: this size, or four times the larger of the two sizes that were seen, if memory allows it
_REACH = 1024
#: maximal bytes of inputs, and of a program's memory between steps, at the upper bound of a range: memory is planned
#: for the largest size. Sizes that never occur take address space only
_ROOM, _PLANNED = 1 << 24, 1 << 30
#: the exclusive upper bound of sizes in the IR: larger numbers are read as stand-ins
_MOST = (1 << 24) - 1

#: sizes in a key, where they are ignored
_ANY = Domain("n", 0, 0)

Shapes = tuple[torch.Size, ...]
#: dimensions by leaf
Dims = dict[int, tuple[int, ...]]


@record
class _Way:
    """A range for a call.

    Args:
        rank: ranges with larger ranks are tried first.
        before: the size of an earlier call, and the bytes that its program plans.
    """

    rank: tuple[int, bool, int]
    range: Dynamic
    before: int
    planned: int


class NoRange(Exception):
    """No program for a range of sizes could be compiled for a call. reason: the obstacle."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass
class AutomaticSizes:
    """The sizes of a graph's calls that have varied, by signature without sizes.

    Attributes: seen: the shapes of calls with static programs, and the bytes that these plan. known: ranges that have
    programs. counted: the shapes of calls for which programs were compiled. refused: dimensions that cannot be
    dynamic, with reasons. said: signatures for which a warning about several varying sizes was given. routes: the
    ranges that cover a call, by its key.
    """

    seen: dict[Any, list[tuple[Shapes, int]]] = field(default_factory=dict)
    known: dict[Any, list[Dynamic]] = field(default_factory=dict)
    counted: dict[Any, list[Shapes]] = field(default_factory=dict)
    refused: dict[Any, dict[Any, str]] = field(default_factory=dict)
    said: set[Any] = field(default_factory=set)
    routes: dict[Any, list[tuple[Dynamic, Any]]] = field(default_factory=dict)

    def served(self, call: BoundCall, key: Any) -> Iterator[tuple[BoundCall, Any]]:
        """The call, and its key, as a call of each known range for similar calls, the latest first."""
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
        """The call and its key with dynamic dimensions, if its sizes differ from those of an earlier call: the two
        with the most values, if several vary. count: the number of micro-batches."""
        skeleton = _skeleton(call, key)
        if skeleton is None:
            return None
        shapes, refused = _shapes(call.leaves), self.refused.get(skeleton, {})
        calls = [*self.counted.get(skeleton, ()), shapes]

        def variety(dims: Dims) -> int:
            return len({_size(s, dims, call.leaves) for s in calls})

        def varieties(dynamic: Dynamic | None) -> int:
            return 0 if dynamic is None else sum(variety(one.dims) for one in dynamic.each)

        served = max(self.served(call, key), key=lambda f: varieties(f[0].dynamic), default=None)
        ways: list[_Way] = []
        for earlier, planned in reversed(self.seen.get(skeleton, [])):
            groups = _differing(earlier, shapes, call.leaves)
            for (before, now), dims in groups.items():
                if min(before, now) >= 2:
                    most = _reach(before, planned, dims, call.leaves)
                    rank = (variety(dims), len(groups) == 1, now)
                    found = Dynamic(Domain("n", 2, most), dims, True)
                    ways.append(_Way(rank, found, before, planned))
        ways.sort(key=lambda way: way.rank, reverse=True)
        pair = _pair(ways, call.leaves) if count == 1 else []
        known = 0 if served is None else varieties(served[0].dynamic)
        dynamic = next((way for way in pair if _as_key(way) not in refused), None)
        if dynamic is not None and varieties(dynamic) <= known:
            return served and self._named(*served, skeleton)
        if dynamic is None:
            way = next((w for w in ways if _as_key(w.range) not in refused), None)
            if way is None or way.rank[0] <= known:
                return served and self._named(*served, skeleton)
            dynamic = in_micro_batches(way.range, count, call.leaves)
            if dynamic is None:
                return None
            dynamic = self._in_steps(dynamic, skeleton, call.leaves)
        return self._named(*_varying(call, key, dynamic), skeleton)

    def _named(self, call: BoundCall, key: Any, skeleton: Any) -> tuple[BoundCall, Any]:
        """A call whose range has the names of other varying sizes."""
        assert call.dynamic is not None
        beside = tuple(self._beside(skeleton, call, call.dynamic))
        return replace(call, dynamic=replace(call.dynamic, beside=beside)), key

    def _in_steps(self, dynamic: Dynamic, skeleton: Any, leaves: Sequence[Any]) -> Dynamic:
        """A range with the step that the program of a similar call needed."""
        known = (
            k for k in self.known.get(skeleton, ()) if k.dims == dynamic.dims and k.second is None
        )
        step = max((k.sizes.step for k in known), default=1) // dynamic.sizes.step
        try:
            sizes = dynamic.sizes.narrowed(Narrower(step=max(step, 1)), size_of(dynamic, leaves))
        except Fixed:
            return dynamic
        return replace(dynamic, sizes=sizes)

    def narrowed(
        self, call: BoundCall, key: Any, tried: BoundCall, reason: Exception
    ) -> tuple[BoundCall, Any] | None:
        """The call and its key for the part of the attempted range in which the question that was the obstacle has one
        answer; None if there is none."""
        dynamic = tried.dynamic
        if dynamic is None or not isinstance(reason, SizeDecides):
            return None
        part = dynamic.part_of(reason, call.leaves)
        return None if part is None else _varying(call, key, part)

    def took(self, call: BoundCall, key: Any, name: str, dynamic: Dynamic) -> None:
        """Record that a program for a range was compiled, and covers later calls."""
        skeleton = _skeleton(call, key)
        self._count(skeleton, call)
        self._say_apart(skeleton, call, name, dynamic)
        known = self.known.setdefault(skeleton, [])
        if dynamic in known:
            return
        known.insert(0, dynamic)
        self.routes.clear()
        _log.info(
            "%s: %s of %s differ between calls, and are dynamic from here on: one program for sizes in %s.",
            name,
            "dimensions" if sum(map(len, dynamic.dims.values())) > 1 or dynamic.second else "sizes",
            ", ".join(dims_of(one, call.names) for one in dynamic.each),
            " and ".join(str(one.sizes) for one in dynamic.each),
        )

    def _count(self, skeleton: Any, call: BoundCall) -> None:
        counted = self.counted.setdefault(skeleton, [])
        counted.append(_shapes(call.leaves))
        del counted[:-_COUNTED]

    def _beside(self, skeleton: Any, call: BoundCall, dynamic: Dynamic) -> dict[str, int]:
        """The varying dimensions that are not dynamic in a program, with their sizes in the call, and the number of
        values seen."""
        found = {}
        calls = [*self.counted.get(skeleton, ()), _shapes(call.leaves)]
        tensors = (i for i, x in enumerate(call.leaves) if isinstance(x, torch.Tensor))
        for at, i in enumerate(tensors):
            for d, n in enumerate(call.leaves[i].shape):
                values = {shapes[at][d] for shapes in calls}
                if len(values) > 1 and d not in dynamic.which(i):
                    found[f"{call.names[i]}[{d}] = {n}"] = len(values - {0, 1})
        return found

    def _say_apart(self, skeleton: Any, call: BoundCall, name: str, dynamic: Dynamic) -> None:
        beside = self._beside(skeleton, call, dynamic)
        why = "".join(f": {r}" for r in self.refused.get(skeleton, {}).values())
        if skeleton in self.said or max(beside.values(), default=0) < _MANY:
            return
        self.said.add(skeleton)
        _log.warning(
            "%s: %s vary beside %s, and each value of them is compiled. Pad them to a few sizes, or keep more programs "
            "with config.set_cache_size(). A program has at most two dynamic sizes%s",
            name,
            ", ".join(text.partition(" =")[0] for text in beside),
            ", ".join(dims_of(one, call.names) for one in dynamic.each),
            why or ".",
        )

    def refuse(
        self, call: BoundCall, key: Any, name: str, tried: BoundCall, error: Exception
    ) -> bool:
        """Record that no program for a range could be compiled, and warn once for each kind of call and dimensions.
        Returns False if the range only has too few sizes with one answer: other ranges may succeed."""
        dynamic = tried.dynamic
        if dynamic is None or (isinstance(error, SizeDecides) and error.divides):
            return False
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        self.refused.setdefault(_skeleton(call, key), {})[_as_key(dynamic)] = reason
        _log.log(
            logging.WARNING
            if dynamic.second is None
            else logging.INFO,  # one of the two dimensions may succeed
            "%s is compiled for each size of %s, since it cannot be compiled for a range of sizes: %s",
            name,
            ", or of ".join(dims_of(one, call.names) for one in dynamic.each),
            reason,
        )
        return True

    def why_static(self, call: BoundCall, key: Any) -> str:
        """The addition to the reason of a compilation for one size; "" if no range was refused."""
        if call.dynamic is not None or not self.refused:
            return ""
        reasons = self.refused.get(_skeleton(call, key), {})
        return "".join(f" (for this size alone: {reason})" for reason in reasons.values())

    def saw(self, call: BoundCall, key: Any, planned: int) -> None:
        """Record the sizes of a call with a static program. planned: bytes that the program has between its steps."""
        skeleton = _skeleton(call, key)
        if skeleton is None:
            return
        self._count(skeleton, call)
        seen = self.seen.setdefault(skeleton, [])
        shapes = _shapes(call.leaves)
        if all(shapes != known for known, _ in seen):
            seen.append((shapes, planned))
            del seen[:-_REMEMBERED]


def dims_of(dynamic: Dynamic, names: Sequence[str]) -> str:
    """`x[0], y[0, 1]`."""
    return ", ".join(f"{names[i]}{list(dims)}" for i, dims in dynamic.dims.items())


def can_vary(call: BoundCall) -> bool:
    """Whether programs for ranges are supported for calls of this kind: on the CPU, in one process."""
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
    """A key without the sizes of tensors. None if a tensor is not dense, since its strides have more information than
    sizes."""
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
) -> dict[tuple[int, int], Dims]:
    """The dimensions that differ, by their old and new size."""
    groups: dict[tuple[int, int], Dims] = {}
    at = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    for i, before, now in zip(at, earlier, shapes, strict=True):
        for d, sizes in enumerate(zip(before, now, strict=True)):
            if sizes[0] != sizes[1]:
                dims = groups.setdefault(sizes, {})
                dims[i] = (*dims.get(i, ()), d)
    return groups


def _size(shapes: Shapes, dims: Dims, leaves: Sequence[Any]) -> int:
    """The size of the first of some dimensions in the shapes of a call's tensors."""
    leaf = next(iter(dims))
    at = sum(isinstance(x, torch.Tensor) for x in leaves[:leaf])
    return shapes[at][dims[leaf][0]]


def _as_key(dynamic: Dynamic) -> tuple[Any, ...]:
    return tuple([tuple(sorted(one.dims.items())) for one in dynamic.each])


def _pair(ways: Sequence[_Way], leaves: Sequence[Any]) -> list[Dynamic]:
    """The first two ranges of different dimensions as one, in both orders: only the second size may occur squared."""
    first = ways[0] if ways else None
    other = next((w for w in ways if first is not None and _apart(w.range, first.range)), None)
    if first is None or other is None:
        return []
    both = (first, other)
    now = [size_of(w.range, leaves) for w in both]
    least = [max(2 * n, w.before) for n, w in zip(now, both)]
    most = [w.range.sizes.most for w in both]

    def fits() -> bool:
        inputs, planned = 0.0, float(max(w.planned for w in both))
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                size = float(leaf.numel() * leaf.element_size())
                for n, m, w in zip(now, most, both):
                    size *= (m / n) ** len(w.range.dims.get(i, ()))
                inputs += size
        for m, w in zip(most, both):
            planned *= (m / w.before) ** max(map(len, w.range.dims.values()))
        return inputs <= _ROOM and planned <= _PLANNED

    while not fits() and any(m // 2 >= x for m, x in zip(most, least)):
        at = max((0, 1), key=lambda i: (most[i] // 2 >= least[i], most[i] / now[i]))
        most[at] //= 2
    a, b = (
        replace(w.range, sizes=replace(w.range.sizes, most=max(m, n + 1)))
        for w, m, n in zip(both, most, now)
    )
    return [
        replace(x, second=replace(y, sizes=replace(y.sizes, name="m"))) for x, y in ((b, a), (a, b))
    ]


def _apart(one: Dynamic, other: Dynamic) -> bool:
    """Whether two ranges have different dimensions."""
    return not any({*dims} & {*other.dims.get(i, ())} for i, dims in one.dims.items())


def _is_of(dynamic: Dynamic, leaves: Sequence[Any]) -> bool:
    """Whether all dimensions of a range have one size in a call, which is in the range. `_skeleton` has checked that
    its tensors are dense."""
    n = size_of(dynamic, leaves)
    return (
        dynamic.sizes.k(n) is not None
        and all(leaves[i].shape[d] == n for i, dims in dynamic.dims.items() for d in dims)
        and (dynamic.second is None or _is_of(dynamic.second, leaves))
    )


def _reach(
    before: int, planned: int, dims: dict[int, tuple[int, ...]], leaves: Sequence[Any]
) -> int:
    """The upper bound of a range with `before` and the call's own size. planned: bytes that the program for `before`
    has between its steps, assumed to grow in proportion to the inputs."""
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
