"""Repeats the expression of a value in the groups that read it, where that saves memory traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gflow.dialects.ops import OPS

from .groups import Group, Grouping, numel

#: a load that is smaller than the value by this factor is free
_NEGLIGIBLE = 8


@dataclass
class _Cone:
    """The ops that compute a value inside of its group, the values that they load, and the operations per element."""

    ops: list[int]
    leaves: set[int]
    cost: int


def recompute(grouping: Grouping) -> None:
    """Let groups recompute values that they read, if they load the operands anyway.

    A value is not stored at all if every reader recomputes it and no reader loads more values of its size than before.
    """
    groups = grouping.groups
    through, small = grouping.options.recompute_normalized, grouping.options.recompute_small
    readers: dict[int, set[int]] = {}
    for gi, g in enumerate(groups):
        for b in g.inputs:
            readers.setdefault(b, set()).add(gi)
    stored = grouping.read_outside()
    loads = Counter(b for g in groups for b in g.inputs)
    stops: list[Callable[[int], bool]] = [stored.__contains__, lambda value: False]
    if through:
        stops += [lambda value: loads[value] > 0, grouping.flow.is_rounded]
    for v in sorted(readers):
        owner = grouping.owner(v)
        if owner is None or groups[owner].sealed:
            continue
        # from values that are stored in any case, or that the group loads
        cones: list[_Cone] = []
        for stop in stops:
            cone = _cone(grouping, v, groups[owner], stop)
            cheap = cone is not None and cone.cost <= grouping.options.recompute_cost
            if cone is not None and cheap and cone not in cones:
                cones.append(cone)
        targets = [groups[h] for h in sorted(readers[v])]
        chosen = [_cheapest(grouping, v, cones, target, small) for target in targets]
        vanishes = v not in stored and all(c and c[0] <= 1 for c in chosen)
        for target in targets:
            # checked again: earlier repetitions may have exhausted its limits
            best = _cheapest(grouping, v, cones, target, small and vanishes)
            if best is not None and (vanishes or best[0] == 0):
                target.members = sorted({*target.members, *best[1].ops})
                loads.subtract(target.inputs)
                target.inputs = (target.inputs - {v}) | best[1].leaves
                loads.update(target.inputs)


def _cheapest(
    grouping: Grouping, v: int, cones: list[_Cone], target: Group, small: bool
) -> tuple[int, _Cone] | None:
    """The cone with which group `target` loads the fewest values, and the number of large values that it adds.

    small: whether values that are small next to the index space of a reducing group are not large.
    """
    size = grouping.body.types[v].numel
    if small and target.reduced is not None:
        size = max(size, numel(target.space))
    best: tuple[int, _Cone] | None = None
    for cone in cones:
        if _can_repeat(grouping, v, cone, target):
            more = cone.leaves - target.inputs
            large = sum(grouping.body.types[x].numel * _NEGLIGIBLE > size for x in more)
            if best is None or large < best[0]:
                best = large, cone
    return best


def _can_repeat(grouping: Grouping, v: int, cone: _Cone, g: Group) -> bool:
    """Whether group `g` reads `v` only at positions at which it would recompute it."""
    flow = grouping.flow
    most = grouping.options.max_ops
    if g.sealed:
        return False
    if len(g.members) + len(cone.ops) > most and len({*g.members, *cone.ops}) > most:
        return False
    if not grouping.small_enough(g, cone.leaves):
        return False
    at = g.map_in(flow.shape(v))
    return at is not None and grouping.reads_only_at(g, v, at)


def _cone(grouping: Grouping, v: int, g: Group, stop: Callable[[int], bool]) -> _Cone | None:
    """The ops that compute `v` in its group, up to values in `stop` where they meet them; None if a reduction is one
    of them. With `recompute_normalized`, results of reductions are loaded."""
    body, flow = grouping.body, grouping.flow
    through, size = grouping.options.recompute_normalized, flow.body.types[v].numel
    cone = _Cone([], set(), 0)
    members = set(g.members)
    stack, seen = [v], {v}
    while stack:
        value = stack.pop()
        p = body.producer[value]
        if p < 0 or p not in members or (value != v and stop(value)):
            cone.leaves.add(value)
            continue
        if value in g.after:
            if not through or (flow.kind[p] == "reduce" and value == v):
                return None
            if body.types[value].numel * _NEGLIGIBLE <= size:
                cone.leaves.add(value)
                continue
        if flow.kind[p] == "reduce":
            return None
        cone.ops.append(p)
        cone.cost += OPS[body.ops[p].name].cost
        for b in flow.bases(body.ops[p]):
            if b not in seen:
                seen.add(b)
                stack.append(b)
    return cone
