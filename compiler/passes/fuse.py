"""Group elementwise ops and reductions into kernels.

    %0 = "gflow.mul"(%a, %b)                    %r = "gflow.fused"(%a, %b, %c) ({
    %1 = "gflow.add"(%0, %c)             →      ^bb0(%x, %y, %z):
    %2 = "gflow.maximum"(%1, %zero)               %0 = "gflow.mul"(%x, %y)
                                                  %1 = "gflow.add"(%0, %z)
                                                  %2 = "gflow.maximum"(%1, %zero)
                                                  "gflow.yield"(%2)
                                                }) {kind = "pointwise"}

A group has one index space. Reductions join their elementwise producers; what follows a reduction joins where a
kernel can walk it: in a "row" kernel (the innermost dimension is reduced) everything, in a "column" kernel (it is
kept) only what has the reduced shape. Constants, broadcasts and unit reshapes cost nothing and are repeated in each
group that needs them. A value that another group can recompute from what it loads anyway is recomputed, not stored.

Groups must not depend on each other in a circle. Every group has a level, one above the highest group it reads; an op
may join a group only if all else that it reads has a lower level, so levels never change and the test is local
(compare the levels of XLA's instruction fusion and the "height" of Inductor's scheduler).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace

from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import MIXED_GROUPS
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType

from ..ssa import Body, Op, attributes_of, erase_dead, read_body
from .base import Pass

_Map = tuple[int, ...]

#: fewer independent rows than this are not worth a kernel that walks each row several times on one thread
_MIN_ROWS = 8
_SMALL = 32768


@dataclass(frozen=True)
class FuseOptions:
    """max_ops: ops in one kernel. max_inputs: operands of one kernel. recompute_cost: the arithmetic cost (an add is
    1) up to which a value is recomputed rather than stored and loaded."""

    max_ops: int = 160
    max_inputs: int = 40
    recompute_cost: int = 20


@dataclass
class _Group:
    """A kernel in the making: `space` is its index space, `reduced` the dimensions its reductions combine."""

    level: int
    space: tuple[int, ...]
    members: list[int] = field(default_factory=list)
    reduced: tuple[int, ...] | None = None
    inputs: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)  # values that depend on a reduction of the group
    alias: int = -1

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(s for d, s in enumerate(self.space) if d not in (self.reduced or ()))

    @property
    def is_row(self) -> bool:
        real = [d for d, s in enumerate(self.space) if s != 1]
        return self.reduced is not None and (not real or real[-1] in self.reduced)


def _real(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(s for s in shape if s != 1)


def _numel(shape: tuple[int, ...]) -> int:
    return TensorType(shape, "i1").numel


class _Fuser:
    def __init__(self, body: Body, options: FuseOptions) -> None:
        self.body, self.options = body, options
        self.attrs = [self.read_attrs(o) for o in body.ops]
        self.kind = [self.classify(o) for o in body.ops]
        self.groups: list[_Group] = []
        self.group_of: dict[int, int] = {}  # op index → group
        self.level = [0] * len(body.ops)

    def read_attrs(self, o: Op) -> dict[str, object]:
        definition = OPS.get(o.name)
        if definition is None or o.name == "aten":
            return {}
        return read(definition, o.op.attributes)

    def classify(self, o: Op) -> str:
        """ "free", "elementwise", "reduce" or "other"."""
        definition = OPS.get(o.name)
        if definition is None:
            return "other"
        if definition.category == "elementwise" or o.name == "random":
            return "elementwise"
        if o.name == "reduce":
            return "other" if str(self.attrs[o.index]["kind"]).startswith("arg") else "reduce"
        if o.name == "constant":
            return "free" if ir.DenseElementsAttr(o.op.attributes["value"]).is_splat else "other"
        if o.name in ("broadcast", "iota"):
            return "free"
        if o.name == "reshape":
            x, y = self.body.types[o.operands[0]].shape, self.body.types[o.results[0]].shape
            return "free" if _real(x) == _real(y) else "other"
        return "other"

    # -- values through free ops

    def base(self, value: int) -> int:
        """The value under a chain of broadcasts and unit reshapes; -1 for constants and iotas."""
        while True:
            p = self.body.producer[value]
            if p < 0 or self.kind[p] != "free":
                return value
            if not self.body.ops[p].operands:
                return -1
            value = self.body.ops[p].operands[0]

    def pull(self, value: int, dim_map: _Map) -> tuple[int, _Map]:
        """As `base`, with the map of the base's dimensions to the index space."""
        types = self.body.types
        while True:
            p = self.body.producer[value]
            if p < 0 or self.kind[p] != "free" or not self.body.ops[p].operands:
                return value, dim_map
            inner = self.body.ops[p].operands[0]
            shape = types[inner].shape
            if self.body.ops[p].name == "broadcast":
                dims = self.attrs[p]["dims"]
                dim_map = tuple(dim_map[d] if s != 1 else -1 for s, d in zip(shape, dims))  # type: ignore[arg-type]
            else:
                real = iter(m for s, m in zip(types[value].shape, dim_map) if s != 1)
                dim_map = tuple(next(real) if s != 1 else -1 for s in shape)
            value = inner

    def map_in(self, g: _Group, shape: tuple[int, ...]) -> _Map | None:
        """How a value of `shape` lies in the group's index space; None if it doesn't."""
        full = tuple(d if s != 1 else -1 for d, s in enumerate(g.space))
        if shape == g.space:
            return full
        if g.reduced is not None and _real(shape) == _real(g.kept):
            real = iter(d for d, s in enumerate(g.space) if s != 1 and d not in g.reduced)
        elif _real(shape) == _real(g.space):
            real = iter(d for d in full if d >= 0)
        else:
            return None
        return tuple(next(real) if s != 1 else -1 for s in shape)

    # -- growing groups

    def run(self) -> None:
        for o in self.body.ops:
            kind = self.kind[o.index]
            if kind in ("elementwise", "reduce"):
                self.place(o)
            elif kind == "other":
                self.level[o.index] = 1 + max((self.level_of(v) for v in o.operands), default=0)
        self.merge_siblings()
        self.recompute()

    def level_of(self, value: int) -> int:
        base = self.base(value)
        p = self.body.producer[base] if base >= 0 else -1
        if p < 0:
            return 0
        return self.groups[self.group_of[p]].level if p in self.group_of else self.level[p]

    def place(self, o: Op) -> None:
        bases = [b for b in dict.fromkeys(self.base(v) for v in o.operands) if b >= 0]
        found = {self.group_of[p] for b in bases if (p := self.body.producer[b]) in self.group_of}
        for g in sorted(found, key=lambda i: -self.groups[i].level):
            if self.try_join(o, g, bases):
                return
        shape = self.body.types[o.operands[0] if o.name == "reduce" else o.results[0]].shape
        level = 1 + max((self.level_of(b) for b in bases), default=0)
        self.groups.append(_Group(level, shape))
        self.add(o, len(self.groups) - 1, bases)

    def add(self, o: Op, gi: int, bases: list[int]) -> None:
        g = self.groups[gi]
        g.members.append(o.index)
        self.group_of[o.index] = gi
        if o.name == "reduce":
            g.reduced = tuple(self.attrs[o.index]["dims"])  # type: ignore[arg-type]
            g.after.update(o.results)
        elif any(b in g.after for b in bases):
            g.after.update(o.results)
        g.inputs.update(b for b in bases if self.group_of.get(self.body.producer[b]) != gi)

    def try_join(self, o: Op, gi: int, bases: list[int]) -> bool:
        g = self.groups[gi]
        merge: list[int] = []
        for b in bases:
            p = self.body.producer[b]
            other = self.group_of.get(p) if p >= 0 else None
            if other == gi:
                continue
            if self.level_of(b) < g.level:
                continue
            if (
                other is None
                or self.level_of(b) > g.level
                or not self.can_merge(g, self.groups[other])
            ):
                return False
            merge.append(other)
        trial = self.union(g, [self.groups[m] for m in set(merge)])
        if len(trial.members) >= self.options.max_ops or not self.fits(o, trial, bases):
            return False
        if not self.small_enough(trial, [*bases, *o.results]):
            return False
        for m in set(merge):
            self.absorb(gi, m)
        self.add(o, gi, bases)
        return True

    def union(self, g: _Group, others: list[_Group]) -> _Group:
        if not others:
            return g
        merged = replace(g, members=list(g.members), inputs=set(g.inputs), after=set(g.after))
        for other in others:
            merged.members += other.members
            merged.inputs |= other.inputs
            merged.after |= other.after
            merged.reduced = merged.reduced if merged.reduced is not None else other.reduced
        return merged

    def can_merge(self, a: _Group, b: _Group) -> bool:
        return a.space == b.space and (
            a.reduced is None or b.reduced is None or a.reduced == b.reduced
        )

    def absorb(self, gi: int, other: int) -> None:
        """Move the members of group `other` into group `gi` (of the same level and space)."""
        g, h = self.groups[gi], self.groups[other]
        merged = self.union(g, [h])
        g.members, g.reduced, g.after = sorted(merged.members), merged.reduced, merged.after
        for m in h.members:
            self.group_of[m] = gi
        g.inputs = {b for b in merged.inputs if self.group_of.get(self.body.producer[b]) != gi}
        h.members, h.alias = [], gi

    def small_enough(self, g: _Group, more: list[int]) -> bool:
        inputs = g.inputs | {b for b in more if b >= 0}
        types = {self.body.types[v] for v in inputs}
        outputs = {self.body.types[r] for m in g.members for r in self.body.ops[m].results}
        return (
            len(inputs) <= self.options.max_inputs
            and len(types) <= MIXED_GROUPS
            and len(outputs) <= MIXED_GROUPS
        )

    def fits(self, o: Op, g: _Group, bases: list[int]) -> bool:
        """Whether a kernel can hold the group and `o`."""
        types = self.body.types
        inside = {
            b
            for b in bases
            if self.group_of.get(self.body.producer[b], -1) >= 0
            and self.body.producer[b] in g.members
        }
        rows = _numel(g.kept)
        deep = rows >= _MIN_ROWS or _numel(g.space) <= _SMALL
        if o.name == "reduce":
            if types[o.operands[0]].shape != g.space:
                return False
            dims = tuple(self.attrs[o.index]["dims"])  # type: ignore[arg-type]
            if g.reduced is not None and g.reduced != dims:
                return False
            if any(b in g.after for b in bases) and not (g.is_row and deep):
                return False
            own: _Map | None = self.map_in(g, g.space)
        else:
            shape = types[o.results[0]].shape
            own = self.map_in(g, shape)
            spans = (
                _real(shape) == _real(g.space)
                and bool(g.reduced)
                and _real(g.kept) != _real(g.space)
            )
            if spans and any(b in g.after for b in bases) and not (g.is_row and deep):
                return False
        if own is None:
            return False
        for v in o.operands:
            base, at = self.pull(v, own)
            if base in inside and at != self.map_in(g, types[base].shape):
                return False
        return True

    # -- siblings

    def merge_siblings(self) -> None:
        """Groups of one level over one index space that load the same large value become one."""
        seen: dict[tuple[int, tuple[int, ...], int], int] = {}
        for gi, g in enumerate(self.groups):
            if not g.members or _numel(g.space) < 1024:
                continue
            for b in sorted(g.inputs):
                if self.body.types[b].shape != g.space:
                    continue
                key = (g.level, g.space, b)
                other = seen.setdefault(key, gi)
                if other == gi or not self.groups[other].members or not g.members:
                    continue
                h = self.groups[other]
                together = len(g.members) + len(h.members) <= self.options.max_ops
                if (
                    together
                    and self.can_merge(h, g)
                    and self.mergeable_kinds(h, g)
                    and self.small_enough(self.union(h, [g]), [])
                ):
                    self.absorb(other, gi)
                    break

    def mergeable_kinds(self, a: _Group, b: _Group) -> bool:
        """A group that goes on past its reductions over the whole space cannot take up foreign column reductions."""
        return (
            (a.reduced is None) == (b.reduced is None)
            or a.is_row == b.is_row
            or not (a.after or b.after)
        )

    # -- recomputation

    def recompute(self) -> None:
        """Repeat the expression of a value in a group that reads it, where that saves memory traffic."""
        users: dict[int, set[int]] = {}
        for gi, g in enumerate(self.groups):
            for b in g.inputs:
                users.setdefault(b, set()).add(gi)
        stored = set(self.body.returned)
        for o in self.body.ops:
            if self.kind[o.index] == "other":
                stored.update(self.base(v) for v in o.operands)
        for v in sorted(users):
            p = self.body.producer[v]
            gi = self.group_of.get(p)
            if gi is None:
                continue
            cone, leaves, cost = self.cone(v, gi)
            if cone is None or cost > self.options.recompute_cost:
                continue
            size = self.body.types[v].numel
            large = {x for x in leaves if self.body.types[x].numel * 8 > size}
            everyone = v not in stored and all(
                self.can_repeat(v, leaves, self.groups[h]) for h in users[v]
            )
            extra = max((len(large - self.groups[h].inputs) for h in users[v]), default=0)
            swap = everyone and extra <= 1
            for h in users[v]:
                target = self.groups[h]
                if (swap or large <= target.inputs) and self.can_repeat(v, leaves, target):
                    target.members = sorted({*target.members, *cone})
                    target.inputs = (target.inputs - {v}) | leaves

    def can_repeat(self, v: int, leaves: set[int], g: _Group) -> bool:
        if not self.small_enough(g, list(leaves)):
            return False
        shape = self.body.types[v].shape
        if self.map_in(g, shape) is None:
            return False
        # each use must read it at its own position
        for m in g.members:
            o = self.body.ops[m]
            own = self.map_in(
                g, self.body.types[o.operands[0] if o.name == "reduce" else o.results[0]].shape
            )
            for operand in o.operands:
                if self.base(operand) == v and (
                    own is None or self.pull(operand, own)[1] != self.map_in(g, shape)
                ):
                    return False
        return True

    def cone(self, v: int, gi: int) -> tuple[list[int] | None, set[int], int]:
        """The ops of the group that compute `v`, what they load, and their cost; None if a reduction is among them."""
        cone: list[int] = []
        leaves: set[int] = set()
        cost, stack, seen = 0, [v], {v}
        members = set(self.groups[gi].members)
        while stack:
            value = stack.pop()
            p = self.body.producer[value]
            if p < 0 or p not in members:
                leaves.add(value)
                continue
            if self.kind[p] == "reduce" or value in self.groups[gi].after:
                return None, leaves, 0
            cone.append(p)
            cost += OPS[self.body.ops[p].name].cost
            for operand in self.body.ops[p].operands:
                b = self.base(operand)
                if b >= 0 and b not in seen:
                    seen.add(b)
                    stack.append(b)
        return cone, leaves, cost


def _order(f: _Fuser, body: Body) -> list[int]:
    """Units in an order that respects dependencies and otherwise the program's: -1 - g for group g, i for op i."""
    unit_of: dict[int, int] = {m: -1 - f.group_of[m] for m in f.group_of}
    units: dict[int, list[int]] = {}
    for gi, g in enumerate(f.groups):
        if g.members:
            units[-1 - gi] = [v for v in g.inputs]
    for o in body.ops:
        if o.index not in unit_of:
            unit_of[o.index] = o.index
            units[o.index] = o.operands
    waiting: dict[int, int] = {}
    dependents: dict[int, list[int]] = {}
    for unit, inputs in units.items():
        needs = {unit_of[body.producer[v]] for v in inputs if body.producer[v] >= 0} - {unit}
        waiting[unit] = len(needs)
        for n in needs:
            dependents.setdefault(n, []).append(unit)

    def priority(unit: int) -> tuple[int, int]:
        if unit >= 0:
            return unit, unit
        own = [m for m in f.groups[-1 - unit].members if f.group_of.get(m) == -1 - unit]
        return max(own), unit

    heap = [(*priority(u), u) for u, n in waiting.items() if n == 0]
    heapq.heapify(heap)
    order = []
    while heap:
        unit = heapq.heappop(heap)[-1]
        order.append(unit)
        for d in dependents.get(unit, ()):
            waiting[d] -= 1
            if waiting[d] == 0:
                heapq.heappush(heap, (*priority(d), d))
    assert len(order) == len(units), "groups depend on each other in a circle"
    return order


def _emit(
    f: _Fuser, g: _Group, gi: int, body: Body, replaced: dict[int, ir.Value], needed: set[int]
) -> None:
    """Build the fused op of a group before the terminator."""
    own = [m for m in g.members]
    outputs = [r for m in own if f.group_of[m] == gi for r in body.ops[m].results if r in needed]
    outputs.sort(key=lambda v: (str(body.types[v]), v))
    inputs = sorted(g.inputs, key=lambda v: (str(body.types[v]), v))
    locations = [body.ops[m].op.location for m in own if f.group_of[m] == gi]
    location = locations[0] if len(locations) == 1 else ir.Location.fused(_distinct(locations)[:16])
    kind = "pointwise" if g.reduced is None else "row" if g.is_row else "column"
    with location:
        fused = builder.build_op("fused", [replaced.get(v, body.values[v]) for v in inputs], {"kind": kind},
                                 [body.types[v] for v in outputs])  # fmt: skip
        block = fused.regions[0].blocks.append(*[body.values[v].type for v in inputs])
        names = dict(zip(inputs, block.arguments))
        with ir.InsertionPoint(block):
            for m in own:
                _clone(f, body, m, names)
            builder.build_op("yield", [names[v] for v in outputs], {}, [])
    for v, result in zip(outputs, fused.results):
        replaced[v] = result


def _distinct(locations: list[ir.Location]) -> list[ir.Location]:
    seen: dict[str, ir.Location] = {}
    for location in locations:
        seen.setdefault(str(location), location)
    return list(seen.values())


def _clone(f: _Fuser, body: Body, index: int, names: dict[int, ir.Value]) -> None:
    """Copy an op into the current region, with the free ops that its operands come through."""
    o = body.ops[index]
    for v in o.operands:
        if v not in names:
            p = body.producer[v]
            assert p >= 0 and f.kind[p] == "free", (
                "a group's operand is neither loaded nor computed in it"
            )
            _clone(f, body, p, names)
    copy = ir.Operation.create(
        o.op.name,
        results=[r.type for r in o.op.results],
        operands=[names[v] for v in o.operands],
        attributes=attributes_of(o.op),
        loc=o.op.location,
    )
    names.update(zip(o.results, copy.results))


def run(function: func.FuncOp, options: FuseOptions) -> None:
    body = read_body(function)
    f = _Fuser(body, options)
    f.run()
    needed, alive = _reads_outside(f, body)
    _prune(f, body, needed)
    replaced: dict[int, ir.Value] = {}
    with ir.InsertionPoint(body.terminator):
        for unit in _order(f, body):
            if unit < 0:
                _emit(f, f.groups[-1 - unit], -1 - unit, body, replaced, needed)
            elif unit in alive:
                _move(body.ops[unit], body, replaced)
    for n, v in enumerate(body.returned):
        if v in replaced:
            body.terminator.operands[n] = replaced[v]
    for o in reversed(body.ops):
        if o.index not in alive:
            o.op.erase()
    body.ops = [o for o in body.ops if o.index in alive]
    erase_dead(body)


def _reads_outside(f: _Fuser, body: Body) -> tuple[set[int], set[int]]:
    """Values that something outside the groups reads, and the ops that stay outside."""
    alive = {o.index for o in body.ops if f.kind[o.index] == "other"}
    stack = [v for i in alive for v in body.ops[i].operands] + body.returned
    needed: set[int] = set()
    while stack:
        v = stack.pop()
        if v in needed:
            continue
        needed.add(v)
        p = body.producer[v]
        if p >= 0 and f.kind[p] == "free":
            alive.add(p)
            stack += body.ops[p].operands
    return needed, alive


def _prune(f: _Fuser, body: Body, needed: set[int]) -> None:
    """Drop members that no output depends on, and groups without outputs; add what the rest reads to `needed`."""
    for gi in sorted(range(len(f.groups)), key=lambda i: -f.groups[i].level):
        g = f.groups[gi]
        live = {r for m in g.members if f.group_of[m] == gi for r in body.ops[m].results} & needed
        kept: list[int] = []
        g.inputs = set()
        inside = set(g.members)
        seen, stack = set(live), sorted(live)
        while stack:
            p = body.producer[stack.pop()]
            if p in kept:
                continue
            kept.append(p)
            for v in body.ops[p].operands:
                b = f.base(v)
                if b < 0 or b in seen:
                    continue
                seen.add(b)
                if body.producer[b] in inside:
                    stack.append(b)
                else:
                    g.inputs.add(b)
        g.members = sorted(kept)
        needed |= g.inputs


def _move(o: Op, body: Body, replaced: dict[int, ir.Value]) -> None:
    for n, v in enumerate(o.operands):
        if v in replaced:
            o.op.operands[n] = replaced[v]
    o.op.move_before(body.terminator)


PASS = Pass("gflow-fuse", run, FuseOptions, __doc__ or "")
