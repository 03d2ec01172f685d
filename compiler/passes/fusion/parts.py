"""Splits a kernel with reductions: the first part ends at a stored value through which the rest depends on it.

    %0 = "gflow.matmul"(%a, %b)                  %0 = "gflow.matmul"(%a, %b)
    %1:2 = "gflow.fused"(%0, %x) ({              %1 = "gflow.fused"(%0, %x) ({ add }) {kind = "pointwise"}
      %2 = add; %3 = reduce(%2)             →    %2 = "gflow.fused"(%1) ({ reduce }) {kind = "row"}
      yield %2, %3
    }) {kind = "row"}

The split alone adds a load of one value. It is worthwhile if the first part becomes the epilogue of the contraction,
whose own result then needs no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .groups import Group, Grouping, numel


def first_part(
    grouping: Grouping, gi: int, u: int, outside: Callable[[int], bool]
) -> tuple[Group, Group, int] | None:
    """The first part of group `gi`, which reads `u`, the rest, and the value between them.

    outside: whether something else than the group reads a value.
    """
    g, body = grouping.groups[gi], grouping.body
    if not g.members or g.reduced is None or g.root >= 0 or g.sealed:
        return None
    from_u = {u}
    for m in sorted(g.members):
        if not from_u.isdisjoint(grouping.reads(m)):
            from_u.update(body.ops[m].results)
    stored = [r for m in grouping.stored_by(gi) for r in body.ops[m].results if outside(r)]
    for v in stored:
        if v not in from_u or v in g.after or numel(grouping.flow.shape(v)) != numel(g.space):
            continue
        rest, rest_inputs = _cone(grouping, g, [r for r in stored if r != v], v)
        if u in rest_inputs or v not in rest_inputs:
            continue
        first, first_inputs = _cone(grouping, g, [v], -1)
        part = Group(g.level, g.space, sorted(first), inputs=first_inputs)
        others = Group(g.level, g.space, sorted(rest), g.reduced, rest_inputs, g.after)
        return part, others, v
    return None


def _cone(
    grouping: Grouping, g: Group, values: Iterable[int], stop: int
) -> tuple[set[int], set[int]]:
    """The members that compute `values`, from `stop` and what the group loads; and what they load."""
    members, producer = set(g.members), grouping.body.producer
    found: set[int] = set()
    inputs: set[int] = set()
    stack = [v for v in values if v != stop]
    while stack:
        p = producer[stack.pop()]
        if p in found:
            continue
        found.add(p)
        for b in grouping.reads(p):
            if b == stop or producer[b] not in members:
                inputs.add(b)
            elif producer[b] not in found:
                stack.append(b)
    return found, inputs
