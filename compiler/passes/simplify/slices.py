"""Slices, pads, concatenations and reversals that cancel, merge, or do nothing.

In the one-line descriptions x, y, p are values and c, d are constants (splats).
"""

from __future__ import annotations

from itertools import pairwise

from gflow.dialects.extents import is_ordered
from gflow.dialects.mlir import ir
from gflow.dialects.types import INTEGERS, TensorType

from .rewriter import Node, Rewriter
from .rules import Rules

RULES = Rules()


@RULES.add("slice", on=("slice",))
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


@RULES.add("slice", on=("concatenate",))
def slice_of_concatenate(n: Node, b: Rewriter) -> ir.Value | None:
    """slice(concatenate(x, y)) → slice(x) where it takes from one operand only"""
    inner = b.node(n.operands[0], "concatenate")
    if inner is None or n.type.numel == 0:
        return None
    dim, offset = inner.attrs["dim"], 0
    start, limit = n.attrs["starts"][dim], n.attrs["limits"][dim]
    for x in inner.operands:
        size = b.type(x).shape[dim]
        if is_ordered(offset, start) and is_ordered(limit, offset + size):
            by = [0] * n.type.rank
            by[dim] = offset
            return _shifted(n, b, x, by)
        offset += size
    return None


@RULES.add("slice", on=("pad",))
def slice_of_pad(n: Node, b: Rewriter) -> ir.Value | None:
    """slice(pad(x)) → slice(x) where it takes from the inside only"""
    inner = b.node(n.operands[0], "pad")
    if inner is None or n.type.numel == 0:
        return None
    x, low = inner.operands[0], inner.attrs["low"]
    sizes = b.type(x).shape
    for (start, limit, _), before, size in zip(_ranges(n), low, sizes):
        if not (is_ordered(before, start) and is_ordered(limit, before + size)):
            return None
    return _shifted(n, b, x, list(low))


@RULES.add("slice", on=("broadcast",))
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


@RULES.add("pad")
def pad_nothing(n: Node, b: Rewriter) -> ir.Value | None:
    """pad(x) → x where it adds nothing; pad(c) with c → a constant"""
    x, value = n.operands
    if b.type(x) == n.type:
        return x
    c, around = b.splat(x), b.splat(value)
    if c is None or around is None or repr(c) != repr(around):
        return None
    return b.constant(c, n.type)


@RULES.add("add", on=("pad",))
def add_of_pads(n: Node, b: Rewriter) -> ir.Value | None:
    """pad(x, 0) + pad(y, 0) → concatenate(x + 0, y + 0) where y begins at the end of x (gradients of slices)"""
    pads = sorted(
        (found for x in n.operands if (found := _padded(x, b)) is not None),
        key=lambda pad: pad[1:],
    )
    if len(pads) < 2:
        return None
    (x, dim, start), (y, other, between) = pads
    sizes = [b.type(v).shape[dim] for v in (x, y)]
    if other != dim or between != start + sizes[0]:
        return None
    parts = [part for v in (x, y) for part in _plus_zero(v, dim, b)]
    joined = b.build("concatenate", parts, {"dim": dim})
    low, high = [0] * n.type.rank, [0] * n.type.rank
    low[dim], high[dim] = start, n.type.shape[dim] - start - sum(sizes)
    around = b.constant(0 if n.type.dtype in INTEGERS else 0.0, TensorType((), n.type.dtype))
    return b.build("pad", [joined, around], {"low": tuple(low), "high": tuple(high)})


def _padded(value: ir.Value, b: Rewriter) -> tuple[ir.Value, int, int] | None:
    """What a value is in zeros along one dimension: the inner value, the dimension, and where it begins."""
    pad = b.node(value, "pad")
    if pad is None or repr(b.splat(pad.operands[1])) not in ("0", "0.0"):
        return None
    low, high = pad.attrs["low"], pad.attrs["high"]
    dims = [d for d in range(pad.type.rank) if low[d] or high[d]]
    if len(dims) != 1 or min(*low, *high) < 0:
        return None
    return pad.operands[0], dims[0], low[dims[0]]


def _plus_zero(x: ir.Value, dim: int, b: Rewriter) -> list[ir.Value]:
    """x + 0, which is x but for -0; in parts along `dim` where x is a concatenation."""
    node, kind = b.node(x), b.type(x)
    if node is not None and node.name == "concatenate" and node.attrs["dim"] == dim:
        return [part for v in node.operands for part in _plus_zero(v, dim, b)]
    if kind.dtype in INTEGERS:
        return [x]
    if node is not None and node.name == "add" and repr(b.splat(node.operands[1])) == "0.0":
        return [x]
    return [b.build("add", [x, b.constant(0.0, kind)])]


@RULES.add("concatenate")
def concatenate_less(n: Node, b: Rewriter) -> ir.Value | None:
    """concatenate(x) → x; operands without elements are dropped"""
    kept = [x for x in n.operands if b.type(x).numel]
    if not kept:
        return n.operands[0] if b.type(n.operands[0]) == n.type else None
    if len(kept) == 1:
        return kept[0]
    return None if len(kept) == len(n.operands) else b.build("concatenate", kept, n.attrs)


@RULES.add("concatenate", on=("splat",))
def concatenate_constants(n: Node, b: Rewriter) -> ir.Value | None:
    """concatenate(c, c) → a constant"""
    first = b.splat(n.operands[0])
    if first is None or any(repr(b.splat(x)) != repr(first) for x in n.operands):
        return None
    return b.constant(first, n.type)


@RULES.add("concatenate", on=("slice",))
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


@RULES.add("transpose", on=("concatenate",))
def transpose_of_concatenate(n: Node, b: Rewriter) -> ir.Value | None:
    """transpose(concatenate(x, y)) → concatenate(transpose(x), transpose(y)) where x and y are transposed"""
    inner = b.node(n.operands[0], "concatenate")
    if inner is None or not all(_is_transposed(x, b) for x in inner.operands):
        return None
    permutation = n.attrs["permutation"]
    parts = [b.build("transpose", [x], {"permutation": permutation}) for x in inner.operands]
    return b.build("concatenate", parts, {"dim": permutation.index(inner.attrs["dim"])})


def _is_transposed(x: ir.Value, b: Rewriter) -> bool:
    """Whether a value is transposed, perhaps reshaped or + 0 after that."""
    node = b.node(x)
    if node is not None and node.name == "add" and repr(b.splat(node.operands[1])) == "0.0":
        node = b.node(node.operands[0])
    if node is not None and node.name == "reshape":
        node = b.node(node.operands[0])
    return node is not None and node.name == "transpose"


@RULES.add("reverse")
def reverse_nothing(n: Node, b: Rewriter) -> ir.Value | None:
    """reverse(x) → x over dimensions of size 1; reverse(reverse(x)) → x over the same ones"""
    (x,) = n.operands
    if all(n.type.shape[d] <= 1 for d in n.attrs["dims"]):
        return x
    inner = b.node(x, "reverse")
    if inner is None or set(inner.attrs["dims"]) != set(n.attrs["dims"]):
        return None
    return inner.operands[0]
