"""Grows groups op by op, then joins groups that read the same data.

An op joins a group only if all its other operands have a lower level than the group. Therefore a group's level never
changes, and the op alone shows whether a cyclic dependence would arise.
"""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.ir.ssa import Op
from gflow.dialects.types import without_ones

from .groups import Group, Grouping, numel, same_space, union

#: with fewer independent rows, a kernel that reads each row several times on one thread is too slow, unless the index
#: space has at most `_SMALL` elements
_MIN_ROWS = 8
_SMALL = 32768

#: with more elements, independent groups are joined for one load that they share
_SHARED_LOAD = 1024


def grow(grouping: Grouping) -> None:
    """Put every elementwise op and reduction into a group."""
    flow = grouping.flow
    for o in grouping.body.ops:
        kind = flow.kind[o.index]
        if kind in ("elementwise", "reduce"):
            _place(grouping, o)
        elif kind == "other":
            grouping.place_alone(o.index, _level_after(grouping, o.operands))


def _level_after(grouping: Grouping, values: Sequence[int]) -> int:
    return 1 + max((grouping.level_of(v) for v in values), default=0)


def _place(grouping: Grouping, o: Op) -> None:
    """Add an op to the group of the highest level that can hold it, or to a new one."""
    bases = grouping.flow.bases(o)
    found = {gi for b in bases if (gi := grouping.owner(b)) is not None}
    alone = _stays_alone(grouping, o)
    found = {gi for gi in found if not alone and not grouping.groups[gi].sealed}
    for gi in sorted(found, key=lambda i: -grouping.groups[i].level):
        if _try_join(grouping, o, gi, bases):
            return
    level = _level_after(grouping, bases)
    grouping.groups.append(Group(level, grouping.flow.own_space(o), sealed=alone))
    _add(grouping, o, len(grouping.groups) - 1, bases)


def _stays_alone(grouping: Grouping, o: Op) -> bool:
    """Whether an option excludes an op from kernels with other ops."""
    options = grouping.options
    if not options.cast_scale and (o.name == "convert" or _scales(grouping, o)):
        return True
    return not options.update_ops and o.index in grouping.update_ops


def _scales(grouping: Grouping, o: Op) -> bool:
    """Whether an op multiplies by a constant or by a scalar."""
    flow = grouping.flow
    factors = [flow.base(v) for v in o.operands]
    return o.name == "mul" and any(b < 0 or numel(flow.shape(b)) == 1 for b in factors)


def _add(grouping: Grouping, o: Op, gi: int, bases: Sequence[int]) -> None:
    g = grouping.groups[gi]
    g.members.append(o.index)
    grouping.group_of[o.index] = gi
    if o.name == "reduce":
        g.reduced = grouping.flow.attrs[o.index]["dims"]
        g.after.update(o.results)
    elif any(b in g.after for b in bases):
        g.after.update(o.results)
    g.inputs.update(b for b in bases if grouping.owner(b) != gi)


def _try_join(grouping: Grouping, o: Op, gi: int, bases: Sequence[int]) -> bool:
    """Add an op to group `gi`, together with the groups of that level which it also reads."""
    g = grouping.groups[gi]
    merge: set[int] = set()
    for b in bases:
        other, level = grouping.owner(b), grouping.level_of(b)
        if other == gi or level < g.level:
            continue
        if other is None or level > g.level or not same_space(g, grouping.groups[other]):
            return False
        if grouping.groups[other].sealed:
            return False
        merge.add(other)
    trial = union(g, [grouping.groups[m] for m in sorted(merge)])
    if len(trial.members) >= grouping.options.max_ops or not _fits(grouping, o, trial, bases):
        return False
    if not grouping.small_enough(trial, [*bases, *o.results]):
        return False
    for m in sorted(merge):
        grouping.absorb(gi, m)
    _add(grouping, o, gi, bases)
    return True


def _fits(grouping: Grouping, o: Op, g: Group, bases: Sequence[int]) -> bool:
    """Whether one kernel can hold the group and `o`."""
    flow = grouping.flow
    # a kernel continues over the whole space after a reduction only if it keeps rows, or short columns
    short = numel(g.space) <= grouping.options.column_length * numel(g.kept)
    goes_on = (g.is_row or short) and (numel(g.kept) >= _MIN_ROWS or numel(g.space) <= _SMALL)
    follows = any(b in g.after for b in bases)
    shape = flow.own_space(o)
    if o.name == "reduce":
        if shape != g.space or g.reduced not in (None, flow.attrs[o.index]["dims"]):
            return False
        if follows and not goes_on:
            return False
    else:
        whole = without_ones(g.space)
        spans = without_ones(shape) == whole and g.reduced and without_ones(g.kept) != whole
        if spans and follows and not goes_on:
            return False
    own = g.map_in(shape)
    if own is None:
        return False
    # values of the group that it reads must be computed at the position where it reads them
    members = set(g.members)
    for v in o.operands:
        base, at = flow.pull(v, own)
        inside = grouping.body.producer[base] in members
        if inside and at != g.map_in(flow.shape(base)):
            return False
    return True


def merge_siblings(grouping: Grouping) -> None:
    """Join groups of equal level and index space that load the same large value."""
    first: dict[tuple[int, tuple[int, ...], int], int] = {}
    for gi, g in enumerate(grouping.groups):
        if not g.members or g.sealed or numel(g.space) < _SHARED_LOAD:
            continue
        for b in sorted(g.inputs):
            if grouping.flow.shape(b) != g.space:
                continue
            other = first.setdefault((g.level, g.space, b), gi)
            if other != gi and _can_share(grouping, grouping.groups[other], g):
                grouping.absorb(other, gi)
                break


def _can_share(grouping: Grouping, a: Group, b: Group) -> bool:
    """Whether two independent groups can become one kernel."""
    # a group that continues over the whole space after its reductions cannot take column reductions of
    # another group
    like_kinds = (
        (a.reduced is None) == (b.reduced is None)
        or a.is_row == b.is_row
        or not (a.after or b.after)
    )
    return (
        bool(a.members)
        and len(a.members) + len(b.members) <= grouping.options.max_ops
        and same_space(a, b)
        and like_kinds
        and grouping.small_enough(union(a, [b]))
    )
