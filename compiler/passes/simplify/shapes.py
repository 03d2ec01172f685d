"""Reshapes, transposes and broadcasts that cancel, merge, or do nothing.

In the one-line descriptions x, y, p are values and c, d are constants (splats).
"""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.ir.unit_reshape import unit_reshape
from gflow.dialects.mlir import ir

from .rewriter import Node, Rewriter
from .rules import Rules

RULES = Rules()


@RULES.add("reshape", "slice")
def same_shape(n: Node, b: Rewriter) -> ir.Value | None:
    """reshape(x) → x where x has the shape already; slice(x) → x where it takes everything"""
    (x,) = n.operands
    return x if b.type(x) == n.type else None


@RULES.add("reshape", on=("reshape",))
def reshape_twice(n: Node, b: Rewriter) -> ir.Value | None:
    """reshape(reshape(x)) → reshape(x)"""
    inner = b.node(n.operands[0], "reshape")
    return None if inner is None else b.build("reshape", [inner.operands[0]], n.attrs)


@RULES.add("reshape", on=("transpose",))
def reshape_transpose_reshape(n: Node, b: Rewriter) -> ir.Value | None:
    """reshape(transpose(reshape(x))) → transpose(reshape(x)) or reshape(transpose(x))"""
    # the first where the outer reshape splits dimensions, the second where the inner one merges some
    moved = b.node(n.operands[0], "transpose")
    inner = None if moved is None else b.node(moved.operands[0], "reshape")
    if moved is None or inner is None:
        return None
    permutation, x = moved.attrs["permutation"], inner.operands[0]
    fine = _parts(n.type.shape, moved.type.shape)
    if fine is not None:
        source: list[Sequence[int]] = [()] * len(permutation)
        for part, d in zip(fine, permutation):
            source[d] = part
        parts = [p for part in source for p in part]
        split = b.build("reshape", [x], {"shape": tuple(n.type.shape[p] for p in parts)})
        order = sorted(range(len(parts)), key=parts.__getitem__)
        return b.build("transpose", [split], {"permutation": tuple(order)})
    merged = _parts(b.type(x).shape, inner.type.shape)
    if merged is None:
        return None
    order = [d for p in permutation for d in merged[p]]
    apart = b.build("transpose", [x], {"permutation": tuple(order)})
    return b.build("reshape", [apart], {"shape": n.type.shape})


def _parts(fine: Sequence[int], coarse: Sequence[int]) -> list[range] | None:
    """The consecutive dimensions of `fine` that make up each of `coarse`; None where one of `fine` is in two."""
    found, at = [], 0
    for size in coarse:
        begin, product = at, 1
        while at < len(fine) and (product < size or fine[at] == 1):
            product, at = product * fine[at], at + 1
        if product != size:
            return None
        found.append(range(begin, at))
    return found if at == len(fine) else None


@RULES.add("reshape", "transpose", "slice", on=("broadcast",))
def move_one_element(n: Node, b: Rewriter) -> ir.Value | None:
    """reshape(broadcast(x)) → broadcast(x) for x of one element; the same for transpose, slice"""
    inner = b.node(n.operands[0], "broadcast")
    if inner is None or b.type(inner.operands[0]).numel != 1:
        return None
    scalar = b.build("reshape", [inner.operands[0]], {"shape": ()})
    return b.build("broadcast", [scalar], {"shape": n.type.shape, "dims": ()})


@RULES.add("reshape", on=("broadcast",))
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


@RULES.add("transpose")
def transpose_in_place(n: Node, b: Rewriter) -> ir.Value | None:
    """transpose(x) → x for the identity; → reshape(x) where only 1-dimensions move"""
    (x,) = n.operands
    permutation = n.attrs["permutation"]
    if permutation == tuple(range(len(permutation))):
        return x
    shape = b.type(x).shape
    wide = [d for d in permutation if shape[d] != 1]
    return b.build("reshape", [x], {"shape": n.type.shape}) if wide == sorted(wide) else None


@RULES.add("transpose", on=("transpose",))
def transpose_twice(n: Node, b: Rewriter) -> ir.Value | None:
    """transpose(transpose(x)) → transpose(x)"""
    inner = b.node(n.operands[0], "transpose")
    if inner is None:
        return None
    composed = tuple(inner.attrs["permutation"][p] for p in n.attrs["permutation"])
    return b.build("transpose", [inner.operands[0]], {"permutation": composed})


@RULES.add("transpose", on=("broadcast",))
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


@RULES.add("broadcast")
def broadcast_nothing(n: Node, b: Rewriter) -> ir.Value | None:
    """broadcast(x) → x where it repeats nothing; → reshape(x) where it only adds 1-dimensions"""
    (x,) = n.operands
    if b.type(x) == n.type:
        return x
    if b.type(x).numel == n.type.numel and n.type.numel:
        return b.build("reshape", [x], {"shape": n.type.shape})
    return None


@RULES.add("broadcast", on=("broadcast",))
def broadcast_twice(n: Node, b: Rewriter) -> ir.Value | None:
    """broadcast(broadcast(x)) → broadcast(x)"""
    inner = b.node(n.operands[0], "broadcast")
    if inner is None:
        return None
    dims = tuple(n.attrs["dims"][d] for d in inner.attrs["dims"])
    return b.build("broadcast", [inner.operands[0]], {"shape": n.type.shape, "dims": dims})


@RULES.add("broadcast", on=("reshape",))
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


@RULES.add("broadcast")
def broadcast_one_element(n: Node, b: Rewriter) -> ir.Value | None:
    """broadcast of x with one element → broadcast of the scalar"""
    (x,) = n.operands
    if b.type(x).numel != 1 or b.type(x).rank == 0:
        return None
    scalar = b.build("reshape", [x], {"shape": ()})
    return b.build("broadcast", [scalar], {"shape": n.type.shape, "dims": ()})
