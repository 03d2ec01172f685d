"""Groups: sets of ops that become kernels, and the rules of which ops can share one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

from gflow.dialects.opdef import MIXED_GROUPS
from gflow.dialects.records import record
from gflow.dialects.types import TensorType, without_ones

from .dataflow import Dataflow, DimMap


@record
class FuseOptions:
    """Options of gflow-fuse: limits of a kernel."""

    max_ops: int = field(default=160, metadata={"doc": "the maximal number of ops in one kernel"})
    max_inputs: int = field(
        default=40, metadata={"doc": "the maximal number of operands of one kernel"}
    )
    recompute_cost: int = field(
        default=20,
        metadata={
            "doc": "the arithmetic cost (an add is 1) up to which a value is recomputed "
            "instead of stored and loaded"
        },
    )
    epilogues: bool = field(
        default=True, metadata={"doc": "a contraction and its epilogue may be one kernel"}
    )
    recompute_normalized: bool = field(
        default=False,
        metadata={
            "doc": "a value that a kernel computes after its reductions may be recomputed from "
            "their results"
        },
    )
    recompute_small: bool = field(
        default=False,
        metadata={
            "doc": "a reducing kernel may recompute a value from several operands that are small next to its index "
            "space"
        },
    )
    column_length: int = field(
        default=0,
        metadata={
            "doc": "a kernel that reduces columns of up to this many elements may continue over the columns after its "
            "reductions"
        },
    )
    split_reductions: bool = field(
        default=False,
        metadata={
            "doc": "a reducing kernel may be split: its first part becomes the epilogue of a "
            "contraction, the rest a separate kernel"
        },
    )
    add_to_output: bool = field(
        default=True,
        metadata={"doc": "adding a tensor to the result of a contraction may be an epilogue"},
    )
    update_in_contraction: bool = field(
        default=True,
        metadata={"doc": "updating an argument by the result of a contraction may be an epilogue"},
    )
    cast_scale: bool = field(
        default=True,
        metadata={"doc": "casts and scaling by a constant share kernels with other ops"},
    )
    update_ops: bool = field(
        default=True, metadata={"doc": "the ops of one argument's update share a kernel"}
    )


@dataclass
class Group:
    """A set of ops that becomes a kernel.

    level: one above the highest level that it reads. Groups of equal level are independent.
    space: the shape of its index space.
    members: op numbers, in program order once the group is complete.
    reduced: the dimensions of the space that its reductions reduce; None without a reduction.
    inputs: the values that it loads.
    after: values that depend on a reduction of the group.
    root: the contraction (an op number) whose epilogue it is; -1 without one.
    sealed: whether it must not change.
    """

    level: int
    space: tuple[int, ...]
    members: list[int] = field(default_factory=list)
    reduced: tuple[int, ...] | None = None
    inputs: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)
    root: int = -1
    sealed: bool = False

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of its reductions' results."""
        return _kept(self.space, self.reduced)

    @property
    def is_row(self) -> bool:
        """Whether the innermost dimension is reduced: the kernel then keeps rows in the cache."""
        real = [d for d, s in enumerate(self.space) if s != 1]
        return self.reduced is not None and (not real or real[-1] in self.reduced)

    @property
    def kind(self) -> str:
        """The kernel's kind, as `gflow.fused` names it."""
        if self.root >= 0:
            return "contraction"
        return "pointwise" if self.reduced is None else "row" if self.is_row else "column"

    def map_in(self, shape: tuple[int, ...]) -> DimMap | None:
        """The dimension map of a value of `shape` in the index space; None if it does not fit."""
        return _map_in(self.space, self.reduced, shape)


# cached: fusion calls these for every value that it considers, and a program has few shapes


@lru_cache(maxsize=1 << 14)
def _kept(space: tuple[int, ...], reduced: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(s for d, s in enumerate(space) if d not in (reduced or ()))


@lru_cache(maxsize=1 << 14)
def _map_in(
    space: tuple[int, ...], reduced: tuple[int, ...] | None, shape: tuple[int, ...]
) -> DimMap | None:
    full = tuple(d if s != 1 else -1 for d, s in enumerate(space))
    if shape == space:
        return full
    real = [d for d in full if d >= 0]
    if reduced is not None and without_ones(shape) == without_ones(_kept(space, reduced)):
        real = [d for d in real if d not in reduced]
    elif without_ones(shape) != without_ones(space):
        return None
    walk = iter(real)
    return tuple(next(walk) if s != 1 else -1 for s in shape)


def union(group: Group, others: Sequence[Group]) -> Group:
    """A new group with the members of all (`group` itself without others)."""
    if not others:
        return group
    merged = replace(
        group, members=list(group.members), inputs=set(group.inputs), after=set(group.after)
    )
    for other in others:
        merged.members += other.members
        merged.inputs |= other.inputs
        merged.after |= other.after
        merged.reduced = merged.reduced if merged.reduced is not None else other.reduced
    return merged


class Grouping:
    """The groups of a function.

    Args:
        group_of: op number → the group that stores its results (a group may also repeat the ops of another one).
        updates: values that replace an argument's.
        update_ops: elementwise ops from which only updates are computed.
        absorbed: reshapes that only a group with a contraction needs.
    """

    def __init__(
        self, flow: Dataflow, options: FuseOptions, updates: frozenset[int] = frozenset()
    ) -> None:
        self.flow, self.body, self.options = flow, flow.body, options
        self.updates = updates
        self.update_ops = frozenset() if options.update_ops else _update_ops(flow, updates)
        self.groups: list[Group] = []
        self.group_of: dict[int, int] = {}
        self.absorbed: set[int] = set()
        self._level = [0] * len(self.body.ops)  # levels of ops that are in no group
        #: for each value, the number of its type, and for each op those of its results' types
        kinds: dict[TensorType, int] = {}
        self._type = [kinds.setdefault(ty, len(kinds)) for ty in self.body.types]
        self._made = [[self._type[r] for r in o.results] for o in self.body.ops]

    def owner(self, value: int) -> int | None:
        """The group that computes a value; None for arguments and for values of ops outside of groups."""
        return self.group_of.get(self.body.producer[value])

    def level_of(self, value: int) -> int:
        """The level of a value's producer; 0 for arguments and constants."""
        base = self.flow.base(value)
        p = self.body.producer[base] if base >= 0 else -1
        if p < 0:
            return 0
        return self.groups[self.group_of[p]].level if p in self.group_of else self._level[p]

    def reads(self, op: int) -> list[int]:
        """The values that an op of a group reads: bases, or for an op that is not elementwise its operands."""
        o = self.body.ops[op]
        return o.operands if self.flow.kind[op] == "other" else self.flow.bases(o)

    def read_outside(self) -> set[int]:
        """Values that the function returns or that ops outside of all groups read; their bases."""
        found = {self.flow.base(v) for v in self.body.returned} | set(self.body.returned)
        for o in self.body.ops:
            if self.flow.kind[o.index] == "other":
                found.update(self.flow.base(v) for v in o.operands)
        return found

    def place_alone(self, op: int, level: int) -> None:
        """Record the level of an op that is in no group."""
        self._level[op] = level

    def stored_by(self, gi: int) -> list[int]:
        """The ops whose results group `gi` stores, without those it repeats."""
        return [m for m in self.groups[gi].members if self.group_of.get(m) == gi]

    def small_enough(self, group: Group, more: Iterable[int] = ()) -> bool:
        """Whether a fused op can have this many operands, and this many types of them.

        more: values that would be added to the group's inputs (-1: constants, which do not count).
        """
        inputs = {*group.inputs, *more}
        inputs.discard(-1)
        if len(inputs) > self.options.max_inputs:
            return False
        if len({*map(self._type.__getitem__, inputs)}) > MIXED_GROUPS:
            return False
        outputs: set[int] = set()
        outputs.update(*map(self._made.__getitem__, group.members))
        return len(outputs) <= MIXED_GROUPS

    def reads_only_at(self, g: Group, v: int, at: DimMap | None) -> bool:
        """Whether all members that read `v` read it with the dimension map `at`."""
        flow = self.flow
        for m in g.members:
            o = self.body.ops[m]
            if v not in flow.bases(o):
                continue
            reading = [operand for operand in o.operands if flow.base(operand) == v]
            own = g.map_in(flow.own_space(o))
            if own is None or any(flow.pull(operand, own)[1] != at for operand in reading):
                return False
        return True

    def absorb(self, gi: int, other: int) -> None:
        """Move the members of group `other` into group `gi`, of the same level and space."""
        g, h = self.groups[gi], self.groups[other]
        merged = union(g, [h])
        g.members, g.reduced, g.after = sorted(merged.members), merged.reduced, merged.after
        for m in h.members:
            self.group_of[m] = gi
        g.inputs = {b for b in merged.inputs if self.owner(b) != gi}
        h.members = []


def same_space(a: Group, b: Group) -> bool:
    """Whether two groups have the same index space and, if both reduce, reduce the same dimensions."""
    return a.space == b.space and (a.reduced is None or b.reduced is None or a.reduced == b.reduced)


@lru_cache(maxsize=1 << 14)
def numel(shape: tuple[int, ...]) -> int:
    """The number of elements of a shape."""
    return prod(shape)


def _update_ops(flow: Dataflow, updates: frozenset[int]) -> frozenset[int]:
    """Elementwise ops from which only values in `updates` are computed."""
    body = flow.body
    plain = set(body.returned) - updates
    found: set[int] = set()
    for o in reversed(body.ops):
        if flow.kind[o.index] not in ("elementwise", "free") or not plain.isdisjoint(o.results):
            continue
        users = [u for r in o.results for u in body.users[r]]
        if all(u in found for u in users) and (users or not updates.isdisjoint(o.results)):
            found.add(o.index)
    return frozenset(i for i in found if flow.kind[i] == "elementwise")
