"""Shape ops that cancel, merge, or do nothing."""

from __future__ import annotations

from itertools import pairwise

from gflow.dialects.mlir import ir

from .rewriting import Node, Rewriter, Rules, rule

RULES: Rules = {}


@rule(RULES, "reshape", "transpose", "broadcast", "slice", "reverse")
def move_constant(n: Node, b: Rewriter) -> ir.Value | None:
    """reshape(c) → a constant; the same for transpose, broadcast, slice and reverse"""
    c = b.splat(n.operands[0])
    return None if c is None else b.constant(c, n.type)


# -- reshape


@rule(RULES, "reshape")
def reshape_to_itself(n: Node, b: Rewriter) -> ir.Value | None:
    """reshape(x) → x where x has the shape already"""
    (x,) = n.operands
    return x if b.type(x) == n.type else None


@rule(RULES, "reshape")
def reshape_twice(n: Node, b: Rewriter) -> ir.Value | None:
    """reshape(reshape(x)) → reshape(x)"""
    inner = b.node(n.operands[0], "reshape")
    return None if inner is None else b.build("reshape", [inner.operands[0]], n.attrs)


@rule(RULES, "reshape", "transpose", "slice")
def move_one_element(n: Node, b: Rewriter) -> ir.Value | None:
    """reshape(broadcast(x)) → broadcast(x) for x of one element; the same for transpose, slice"""
    inner = b.node(n.operands[0], "broadcast")
    if inner is None or b.type(inner.operands[0]).numel != 1:
        return None
    scalar = b.build("reshape", [inner.operands[0]], {"shape": ()})
    return b.build("broadcast", [scalar], {"shape": n.type.shape, "dims": ()})


@rule(RULES, "reshape")
def reshape_of_broadcast(n: Node, b: Rewriter) -> ir.Value | None:
    """reshape(broadcast(x)) → broadcast(x) where the reshape only adds or removes 1-dimensions"""
    inner = b.node(n.operands[0], "broadcast")
    if inner is None:
        return None
    moved = unit_reshape(inner.type.shape, n.type.shape)
    if moved is None or any(d not in moved for d in inner.attrs["dims"]):
        return None
    dims = tuple(moved[d] for d in inner.attrs["dims"])
    return b.build("broadcast", [inner.operands[0]], {"shape": n.type.shape, "dims": dims})


def unit_reshape(old: tuple[int, ...], new: tuple[int, ...]) -> dict[int, int] | None:
    """Where each dimension of `old` is in `new`, if the two differ only in dimensions of size 1.

    A dimension of size 1 is found where one stands between the same neighbours.
    """
    wide_old = [d for d, size in enumerate(old) if size != 1]
    wide_new = [d for d, size in enumerate(new) if size != 1]
    if [old[d] for d in wide_old] != [new[d] for d in wide_new]:
        return None
    moved = dict(zip(wide_old, wide_new))
    for (a, z), (start, stop) in zip(_gaps(wide_old, len(old)), _gaps(wide_new, len(new))):
        moved.update(zip(range(a, z), range(start, stop)))
    return moved


def _gaps(wide: list[int], rank: int) -> list[tuple[int, int]]:
    edges = [-1, *wide, rank]
    return [(low + 1, high) for low, high in pairwise(edges)]


# -- transpose


@rule(RULES, "transpose")
def transpose_in_place(n: Node, b: Rewriter) -> ir.Value | None:
    """transpose(x) → x for the identity; → reshape(x) where only 1-dimensions move"""
    (x,) = n.operands
    permutation = n.attrs["permutation"]
    if permutation == tuple(range(len(permutation))):
        return x
    shape = b.type(x).shape
    wide = [d for d in permutation if shape[d] != 1]
    return b.build("reshape", [x], {"shape": n.type.shape}) if wide == sorted(wide) else None


@rule(RULES, "transpose")
def transpose_twice(n: Node, b: Rewriter) -> ir.Value | None:
    """transpose(transpose(x)) → transpose(x)"""
    inner = b.node(n.operands[0], "transpose")
    if inner is None:
        return None
    composed = tuple(inner.attrs["permutation"][p] for p in n.attrs["permutation"])
    return b.build("transpose", [inner.operands[0]], {"permutation": composed})


@rule(RULES, "transpose")
def transpose_of_broadcast(n: Node, b: Rewriter) -> ir.Value | None:
    """transpose(broadcast(x)) → broadcast(transpose(x)), of fewer elements"""
    inner = b.node(n.operands[0], "broadcast")
    if inner is None:
        return None
    permutation = n.attrs["permutation"]
    place = {old: new for new, old in enumerate(permutation)}
    x, moved = inner.operands[0], [place[d] for d in inner.attrs["dims"]]
    order = sorted(range(len(moved)), key=moved.__getitem__)
    small = b.build("transpose", [x], {"permutation": tuple(order)})
    attrs = {"shape": n.type.shape, "dims": tuple(sorted(moved))}
    return b.build("broadcast", [small], attrs)


# -- broadcast


@rule(RULES, "broadcast")
def broadcast_nothing(n: Node, b: Rewriter) -> ir.Value | None:
    """broadcast(x) → x where it repeats nothing; → reshape(x) where it only adds 1-dimensions"""
    (x,) = n.operands
    if b.type(x) == n.type:
        return x
    if b.type(x).numel == n.type.numel and n.type.numel:
        return b.build("reshape", [x], {"shape": n.type.shape})
    return None


@rule(RULES, "broadcast")
def broadcast_twice(n: Node, b: Rewriter) -> ir.Value | None:
    """broadcast(broadcast(x)) → broadcast(x)"""
    inner = b.node(n.operands[0], "broadcast")
    if inner is None:
        return None
    dims = tuple(n.attrs["dims"][d] for d in inner.attrs["dims"])
    return b.build("broadcast", [inner.operands[0]], {"shape": n.type.shape, "dims": dims})


@rule(RULES, "broadcast")
def broadcast_of_reshape(n: Node, b: Rewriter) -> ir.Value | None:
    """broadcast(reshape(x)) → broadcast(x) where the reshape only adds 1-dimensions"""
    inner = b.node(n.operands[0], "reshape")
    if inner is None:
        return None
    x = inner.operands[0]
    moved = unit_reshape(b.type(x).shape, inner.type.shape)
    if moved is None or len(moved) != b.type(x).rank or b.type(x).rank >= inner.type.rank:
        return None
    dims = tuple(n.attrs["dims"][moved[d]] for d in range(b.type(x).rank))
    return b.build("broadcast", [x], {"shape": n.type.shape, "dims": dims})


@rule(RULES, "broadcast")
def broadcast_one_element(n: Node, b: Rewriter) -> ir.Value | None:
    """broadcast of x with one element → broadcast of the scalar"""
    (x,) = n.operands
    if b.type(x).numel != 1 or b.type(x).rank == 0:
        return None
    scalar = b.build("reshape", [x], {"shape": ()})
    return b.build("broadcast", [scalar], {"shape": n.type.shape, "dims": ()})


# -- slice, pad, concatenate, reverse


@rule(RULES, "slice")
def slice_all(n: Node, b: Rewriter) -> ir.Value | None:
    """slice(x) → x where it takes everything"""
    (x,) = n.operands
    return x if b.type(x) == n.type else None


@rule(RULES, "slice")
def slice_twice(n: Node, b: Rewriter) -> ir.Value | None:
    """slice(slice(x)) → slice(x)"""
    inner = b.node(n.operands[0], "slice")
    if inner is None:
        return None
    starts, limits, strides = [], [], []
    for outer, first, size in zip(_ranges(n), _ranges(inner), n.type.shape):
        start = first[0] + outer[0] * first[2]
        step = first[2] * outer[2]
        starts.append(start if size else 0)
        limits.append(start + (size - 1) * step + 1 if size else 0)
        strides.append(step)
    attrs = {"starts": tuple(starts), "limits": tuple(limits), "strides": tuple(strides)}
    return b.build("slice", [inner.operands[0]], attrs)


def _ranges(n: Node) -> list[tuple[int, int, int]]:
    return list(zip(n.attrs["starts"], n.attrs["limits"], n.attrs["strides"]))


def _shifted(n: Node, b: Rewriter, x: ir.Value, by: list[int]) -> ir.Value:
    """The slice `n` of `x`, with every range moved down by `by`."""
    starts = tuple(s - o for s, o in zip(n.attrs["starts"], by))
    limits = tuple(s - o for s, o in zip(n.attrs["limits"], by))
    strides = n.attrs["strides"]
    return b.build("slice", [x], {"starts": starts, "limits": limits, "strides": strides})


@rule(RULES, "slice")
def slice_of_concatenate(n: Node, b: Rewriter) -> ir.Value | None:
    """slice(concatenate(x, y)) → slice(x) where it takes from one operand only"""
    inner = b.node(n.operands[0], "concatenate")
    if inner is None or n.type.numel == 0:
        return None
    dim, offset = inner.attrs["dim"], 0
    start, limit = n.attrs["starts"][dim], n.attrs["limits"][dim]
    for x in inner.operands:
        size = b.type(x).shape[dim]
        if offset <= start and limit <= offset + size:
            by = [0] * n.type.rank
            by[dim] = offset
            return _shifted(n, b, x, by)
        offset += size
    return None


@rule(RULES, "slice")
def slice_of_pad(n: Node, b: Rewriter) -> ir.Value | None:
    """slice(pad(x)) → slice(x) where it takes from the inside only"""
    inner = b.node(n.operands[0], "pad")
    if inner is None or n.type.numel == 0:
        return None
    x, low = inner.operands[0], inner.attrs["low"]
    sizes = b.type(x).shape
    for (start, limit, _), before, size in zip(_ranges(n), low, sizes):
        if start < before or limit > before + size:
            return None
    return _shifted(n, b, x, list(low))


@rule(RULES, "slice")
def slice_of_broadcast(n: Node, b: Rewriter) -> ir.Value | None:
    """slice(broadcast(x)) → broadcast(slice(x))"""
    inner = b.node(n.operands[0], "broadcast")
    if inner is None or n.type.numel == 0:
        return None
    x, dims = inner.operands[0], inner.attrs["dims"]
    sizes = b.type(x).shape
    ranges = _ranges(n)
    taken = [(0, 1, 1) if size == 1 else ranges[d] for d, size in zip(dims, sizes)]
    starts, limits, strides = (tuple(r[i] for r in taken) for i in range(3))
    small = b.build("slice", [x], {"starts": starts, "limits": limits, "strides": strides})
    return b.build("broadcast", [small], {"shape": n.type.shape, "dims": dims})


@rule(RULES, "pad")
def pad_nothing(n: Node, b: Rewriter) -> ir.Value | None:
    """pad(x) → x where it adds nothing; pad(c) with c → a constant"""
    x, value = n.operands
    if b.type(x) == n.type:
        return x
    c, around = b.splat(x), b.splat(value)
    if c is None or around is None or repr(c) != repr(around):
        return None
    return b.constant(c, n.type)


@rule(RULES, "concatenate")
def concatenate_less(n: Node, b: Rewriter) -> ir.Value | None:
    """concatenate(x) → x; operands without elements are dropped"""
    kept = [x for x in n.operands if b.type(x).numel]
    if not kept:
        return n.operands[0] if b.type(n.operands[0]) == n.type else None
    if len(kept) == 1:
        return kept[0]
    return None if len(kept) == len(n.operands) else b.build("concatenate", kept, n.attrs)


@rule(RULES, "concatenate")
def concatenate_constants(n: Node, b: Rewriter) -> ir.Value | None:
    """concatenate(c, c) → a constant"""
    first = b.splat(n.operands[0])
    if first is None or any(repr(b.splat(x)) != repr(first) for x in n.operands):
        return None
    return b.constant(first, n.type)


@rule(RULES, "concatenate")
def concatenate_slices(n: Node, b: Rewriter) -> ir.Value | None:
    """concatenate(x[0:k], x[k:n]) → x[0:n]"""
    dim = n.attrs["dim"]
    nodes = [b.node(x, "slice") for x in n.operands]
    first = nodes[0]
    if first is None:
        return None
    ranges = _ranges(first)
    for before, after in pairwise(nodes):
        if before is None or after is None or after.operands[0] != first.operands[0]:
            return None
        if before.attrs["limits"][dim] != after.attrs["starts"][dim]:
            return None
        if any(r != s for d, (r, s) in enumerate(zip(ranges, _ranges(after))) if d != dim):
            return None
    if any(node is None or node.attrs["strides"][dim] != 1 for node in nodes):
        return None
    last = nodes[-1]
    assert last is not None
    limits = list(first.attrs["limits"])
    limits[dim] = last.attrs["limits"][dim]
    return b.build("slice", [first.operands[0]], {**first.attrs, "limits": tuple(limits)})


@rule(RULES, "reverse")
def reverse_nothing(n: Node, b: Rewriter) -> ir.Value | None:
    """reverse(x) → x over dimensions of size 1; reverse(reverse(x)) → x over the same ones"""
    (x,) = n.operands
    if all(n.type.shape[d] <= 1 for d in n.attrs["dims"]):
        return x
    inner = b.node(x, "reverse")
    if inner is None or set(inner.attrs["dims"]) != set(n.attrs["dims"]):
        return None
    return inner.operands[0]


@rule(RULES, "take")
def take_constant(n: Node, b: Rewriter) -> ir.Value | None:
    """take(c, index) → a constant"""
    c = b.splat(n.operands[0])
    return None if c is None else b.constant(c, n.type)
