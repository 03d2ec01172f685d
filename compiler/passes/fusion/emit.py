"""From groups to `gflow.fused` ops, in an order that respects every dependency."""

from __future__ import annotations

import heapq

from gflow.compiler.ir.ssa import Op, clone_with, put_operands
from gflow.dialects import builder
from gflow.dialects.mlir import ir

from .dataflow import Dataflow
from .groups import Grouping

#: source locations that a fused op keeps of the ops in it
_MAX_LOCATIONS = 16


def emit(grouping: Grouping) -> None:
    """Replace the members of all groups by fused ops.

    Raises:
        AssertionError: groups depend on each other in a cycle (a bug in the grouping).
    """
    body = grouping.body
    needed, alive = _read_outside(grouping)
    _prune(grouping, needed, alive)
    replaced: dict[int, ir.Value] = {}
    with ir.InsertionPoint(body.terminator):
        for is_group, number in _order(grouping, alive):
            if is_group:
                _build(grouping, number, replaced, needed)
            else:
                _move(body.ops[number], body.terminator, replaced)
    put_operands(body.terminator, body.returned, replaced)
    for o in reversed(body.ops):
        if o.index not in alive:
            o.op.erase()


def _read_outside(grouping: Grouping) -> tuple[set[int], set[int]]:
    """The values that are read outside of all groups, and the ops that stay outside."""
    body, kind = grouping.body, grouping.flow.kind
    others = {o.index for o in body.ops if kind[o.index] == "other"} - grouping.absorbed
    stack = [v for i in others for v in body.ops[i].operands] + body.returned
    alive = {i for i in others if i not in grouping.group_of}
    needed: set[int] = set()
    while stack:
        v = stack.pop()
        if v in needed:
            continue
        needed.add(v)
        p = body.producer[v]
        if p >= 0 and kind[p] == "free":
            alive.add(p)
            stack += body.ops[p].operands
    return needed, alive


def _prune(grouping: Grouping, needed: set[int], alive: set[int]) -> None:
    """Drop members that no output depends on; add what the groups load to `needed`.

    A group without outputs loses all members. A contraction that loses its epilogue stays outside of groups.
    """
    body = grouping.body
    # readers before what they read
    groups = grouping.groups
    for gi in sorted(range(len(groups)), key=lambda i: (-groups[i].level, -groups[i].root)):
        g = groups[gi]
        outputs = {r for m in grouping.stored_by(gi) for r in body.ops[m].results} & needed
        members = set(g.members)
        kept: set[int] = set()
        g.inputs = set()
        seen, stack = set(outputs), list(outputs)
        while stack:
            p = body.producer[stack.pop()]
            if p in kept:
                continue
            kept.add(p)
            for b in grouping.reads(p):
                if b in seen:
                    continue
                seen.add(b)
                if body.producer[b] in members:
                    stack.append(b)
                else:
                    g.inputs.add(b)
        if g.root in kept and not outputs - set(body.ops[g.root].results):
            alive.add(g.root)
            kept = set()
        if g.root >= 0 and not kept:
            del grouping.group_of[g.root]
        g.members = sorted(kept)
        needed |= g.inputs


#: a group (True) or an op outside all groups (False), by number
_Unit = tuple[bool, int]


def _order(grouping: Grouping, alive: set[int]) -> list[_Unit]:
    """Groups and the ops outside, by dependencies and otherwise in the program's order.

    A group takes the position of the last of its own members; an epilogue takes that of its contraction.
    """
    body = grouping.body
    reads: dict[_Unit, list[int]] = {}
    position: dict[_Unit, int] = {}
    for gi, g in enumerate(grouping.groups):
        if g.members:
            reads[True, gi] = sorted(g.inputs)
            position[True, gi] = g.root if g.root >= 0 else max(grouping.stored_by(gi))
    for i in alive:
        reads[False, i] = body.ops[i].operands
        position[False, i] = i
    waiting: dict[_Unit, int] = {}
    dependents: dict[_Unit, list[_Unit]] = {}
    for unit, values in reads.items():
        producers = {body.producer[v] for v in values} - {-1}
        needs = {(p in grouping.group_of, grouping.group_of.get(p, p)) for p in producers}
        waiting[unit] = len(needs)
        for n in needs:
            dependents.setdefault(n, []).append(unit)
    ready = [(position[u], u) for u, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, unit = heapq.heappop(ready)
        order.append(unit)
        for d in dependents.get(unit, ()):
            waiting[d] -= 1
            if waiting[d] == 0:
                heapq.heappush(ready, (position[d], d))
    assert len(order) == len(reads), "groups depend on each other in a circle"
    return order


def _build(grouping: Grouping, gi: int, replaced: dict[int, ir.Value], needed: set[int]) -> None:
    """Build the fused op of a group before the terminator.

    Operands and results are in order of their types, as `gflow.fused` wants them.
    """
    body, g = grouping.body, grouping.groups[gi]
    stored = grouping.stored_by(gi)
    outputs = [r for m in stored for r in body.ops[m].results if r in needed]
    outputs.sort(key=lambda v: (str(body.types[v]), v))
    inputs = sorted(g.inputs, key=lambda v: (str(body.types[v]), v))
    told = dict.fromkeys([g.root, *stored] if g.root >= 0 else stored)
    with _location([body.ops[m].op.location for m in told]):
        operands = [replaced.get(v, body.values[v]) for v in inputs]
        types = [body.types[v] for v in outputs]
        fused = builder.build_op("fused", operands, {"kind": g.kind}, types)
        block = fused.regions[0].blocks.append(*[body.values[v].type for v in inputs])
        inside = dict(zip(inputs, block.arguments))
        with ir.InsertionPoint(block):
            for m in g.members:
                _clone(grouping.flow, m, inside)
            builder.build_op("yield", [inside[v] for v in outputs], {}, [])
    replaced.update(zip(outputs, fused.results))


def _location(locations: list[ir.Location]) -> ir.Location:
    """A single location, or a fused location of the first distinct ones."""
    if len(locations) == 1:
        return locations[0]
    distinct: dict[str, ir.Location] = {}
    for location in locations:
        distinct.setdefault(str(location), location)
    return ir.Location.fused(list(distinct.values())[:_MAX_LOCATIONS])


def _clone(flow: Dataflow, index: int, inside: dict[int, ir.Value]) -> None:
    """Copy an op to the insertion point, with the free ops that its operands come through.

    inside: values of the region, by the number of what they stand for; the results are added.
    """
    o = flow.body.ops[index]
    for v in o.operands:
        if v not in inside:
            p = flow.body.producer[v]
            assert flow.kind[p] == "free", "an operand that the group doesn't have"
            _clone(flow, p, inside)
    copy = clone_with(o.op, [inside[v] for v in o.operands])
    inside.update(zip(o.results, copy.results))


def _move(o: Op, before: ir.Operation, replaced: dict[int, ir.Value]) -> None:
    put_operands(o.op, o.operands, replaced)
    o.op.move_before(before)
