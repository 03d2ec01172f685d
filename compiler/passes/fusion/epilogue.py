"""Fuses a pointwise kernel into the contraction whose result it reads, as its epilogue: bias, activation, residual add.

    %0 = "gflow.matmul"(%a, %b)                  %1 = "gflow.fused"(%a, %b, %c) ({
    %1 = "gflow.fused"(%0, %c) ({                ^bb0(%x, %y, %z):
    ^bb0(%x, %z):                                  %0 = "gflow.matmul"(%x, %y)
      %2 = "gflow.add"(%x, %z)            →        %2 = "gflow.add"(%0, %z)
      "gflow.yield"(%2)                            "gflow.yield"(%2)
    }) {kind = "pointwise"}                      }) {kind = "contraction"}

This saves a store and a load of the contraction's result, or one load if the result has other readers.

With `split_reductions`, a kernel that reduces (a norm, a bias's gradient) is split if its first part stores a value on
which alone the rest depends: the first part becomes the epilogue, and the rest loads that value.

No cyclic dependence can arise. Every op and group has a key: (level, -1) before any is joined, and (level of the
contraction, its number) after it was joined. All operands of a unit have lower keys: a contraction reads lower levels,
and a group is joined only if all its other operands have a lower key than the contraction. Joining raises the
contraction's own key. Therefore a contraction is not joined if a group that was joined to an earlier contraction of
its level reads its result.
"""

from __future__ import annotations

from gflow.compiler.ir.fused import CONTRACTIONS
from gflow.compiler.ir.ssa import Op
from gflow.dialects.types import without_ones

from .groups import Group, Grouping, numel
from .parts import first_part


def join_epilogues(grouping: Grouping) -> None:
    """Make the first pointwise group that can follow a contraction its epilogue."""
    readers: dict[int, list[int]] = {}
    for gi, g in enumerate(grouping.groups):
        for b in g.inputs:
            readers.setdefault(b, []).append(gi)
    needed = grouping.read_outside()
    body = grouping.body
    for o in body.ops:
        if o.name not in CONTRACTIONS:
            continue
        (v,) = o.results
        through = [r for r in body.users[v] if body.ops[r].name == "reshape"]
        views = [(v, -1), *((body.ops[r].results[0], r) for r in dict.fromkeys(through))]
        found = [(gi, u, r) for u, r in views for gi in readers.get(u, ())]
        key = (grouping.level_of(v), o.index)
        joined = [g for g in (grouping.groups[gi] for gi, *_ in found) if g.root >= 0]
        if any((g.level, g.root) < key for g in joined):
            continue
        found.sort(key=lambda f: (grouping.groups[f[0]].level, f[0]))
        whole = ((gi, u, r) for gi, u, r in found if _fits(grouping, o, grouping.groups[gi], u))
        chosen = next(whole, None)
        if chosen is None and grouping.options.split_reductions:
            parts = (_split(grouping, o, gi, u, r, readers, needed) for gi, u, r in found)
            chosen = next((part for part in parts if part is not None), None)
        if chosen is not None:
            gi, u, r = chosen
            _join(grouping, o, gi, u, r)
            if r >= 0 and readers[u] == [gi] and u not in needed:
                grouping.absorbed.add(r)


def _split(
    grouping: Grouping,
    contraction: Op,
    gi: int,
    u: int,
    reshape: int,
    readers: dict[int, list[int]],
    needed: set[int],
) -> tuple[int, int, int] | None:
    """Split the first part of `gi` off as a new group, if that part can be the contraction's epilogue."""
    groups = grouping.groups

    def outside(value: int) -> bool:
        return value in needed or any(i != gi for i in readers.get(value, ()))

    found = first_part(grouping, gi, u, outside)
    if found is None or not _pays(grouping, u, *found):
        return None
    first, rest, between = found
    if not _fits(grouping, contraction, first, u):
        return None
    new = len(groups)
    for b in groups[gi].inputs:
        readers[b] = [i for i in readers[b] if i != gi]
    groups.append(first)
    groups[gi] = rest
    for number, group in ((new, first), (gi, rest)):
        for b in group.inputs:
            readers.setdefault(b, []).append(number)
    moved = set(first.members) - set(rest.members)
    for m in moved | {grouping.body.producer[between]}:
        if grouping.group_of.get(m) == gi:
            grouping.group_of[m] = new
    return new, u, reshape


def _pays(grouping: Grouping, u: int, first: Group, rest: Group, between: int) -> bool:
    """Whether splitting a group does not increase memory traffic: it saves `u`, and adds the values between the two
    kernels and the values that both load.

    Equal traffic counts as a gain, since a product hides a part of it.
    """
    types = grouping.body.types
    both = sum(types[b].nbytes for b in first.inputs & rest.inputs)
    return 2 * types[u].nbytes >= types[between].nbytes + both


def _fits(grouping: Grouping, contraction: Op, g: Group, u: int) -> bool:
    """Whether a group that reads `u` (the contraction's result or a reshape of it) can be its epilogue."""
    shape = grouping.flow.shape(u)
    if not g.members or g.sealed or g.reduced is not None or g.root >= 0:
        return False
    if without_ones(shape) != without_ones(g.space) or numel(shape) == 0:
        return False
    key = (grouping.level_of(contraction.results[0]), contraction.index)
    if any(_key(grouping, b) >= key for b in g.inputs if b != u):
        return False
    if not grouping.reads_only_at(g, u, g.map_in(shape)):
        return False
    if not grouping.options.add_to_output and _adds(grouping, g):
        return False
    if not grouping.options.update_in_contraction and _updates(grouping, g):
        return False
    trial = Group(g.level, g.space, [contraction.index, *g.members], inputs=g.inputs - {u})
    return grouping.small_enough(trial, contraction.operands)


def _key(grouping: Grouping, value: int) -> tuple[int, int]:
    owner = grouping.owner(value)
    root = -1 if owner is None else grouping.groups[owner].root
    return (grouping.level_of(value), root)


def _adds(grouping: Grouping, g: Group) -> bool:
    """Whether the group adds two tensors of its own size."""
    flow = grouping.flow
    size = numel(g.space)
    for m in g.members:
        o = grouping.body.ops[m]
        if o.name == "add" and all(
            b >= 0 and numel(flow.shape(b)) == size for b in map(flow.base, o.operands)
        ):
            return True
    return False


def _updates(grouping: Grouping, g: Group) -> bool:
    """Whether the group computes updates of arguments."""
    return any(r in grouping.updates for m in g.members for r in grouping.body.ops[m].results)


def _join(grouping: Grouping, contraction: Op, gi: int, u: int, reshape: int) -> None:
    g = grouping.groups[gi]
    g.level, g.root = grouping.level_of(contraction.results[0]), contraction.index
    grouping.group_of[contraction.index] = gi
    # what the contraction reads is loaded, so the group need not compute it again
    loaded = {grouping.body.producer[v] for v in contraction.operands}
    joined = {contraction.index} | ({reshape} if reshape >= 0 else set())
    g.members = sorted(({*g.members} - loaded) | joined)
    g.inputs = (g.inputs - {u}) | set(contraction.operands)
