"""Reductions and contractions over dimensions of size 0 or 1, over constants, and over broadcast dimensions.

In the one-line descriptions x, y, p are values and c, d are constants (splats).
"""

from __future__ import annotations

from math import prod
from typing import Any

from gflow.dialects.extents import varies
from gflow.dialects.mlir import ir
from gflow.dialects.types import FLOATS, INTEGERS, NO_KERNELS, TensorType

from .folding import evaluate, round_to
from .rewriter import Node, Rewriter
from .rules import Rules, Scalar

RULES = Rules()


@RULES.add("reduce")
def reduce_nothing(n: Node, b: Rewriter) -> ir.Value | None:
    """reduce over no dimension → x; over dimensions of size 1 → reshape(x)"""
    (x,) = n.operands
    if n.attrs["kind"] in ("argmax", "argmin"):
        return None
    shape = b.type(x).shape
    if any(shape[d] != 1 for d in n.attrs["dims"]):
        return None
    if b.type(x).dtype != n.type.dtype:
        x = b.build("convert", [x], {"dtype": n.type.dtype})
    return b.build("reshape", [x], {"shape": n.type.shape}) if n.attrs["dims"] else x


@RULES.add("reduce", on=("splat",))
def reduce_constant(n: Node, b: Rewriter) -> ir.Value | None:
    """reduce(c) → a constant"""
    (x,) = n.operands
    c = b.splat(x)
    if c is None:
        return None
    count = prod(b.type(x).shape[d] for d in n.attrs["dims"])
    if varies(count) and n.attrs["kind"] in ("sum", "prod"):
        return None
    value = _reduced(n.attrs["kind"], c, count, n.type.dtype)
    return None if value is None else b.constant(value, n.type)


def _reduced(kind: str, c: Scalar, count: int, dtype: str) -> Any:
    if kind in ("argmax", "argmin"):
        return 0
    if kind in ("max", "min"):
        return c
    if kind in ("any", "all"):
        return bool(c) if count else kind == "all"
    if kind == "prod" and c not in (0, 1) and count:
        return None
    if kind == "prod":
        return 1 if count == 0 else c
    ty = TensorType((), dtype)
    if dtype in FLOATS:
        return 0.0 if count == 0 else evaluate("mul", {}, [c, float(count)], ty, ty)
    return evaluate("mul", {}, [int(c), count], ty, ty) if dtype in INTEGERS else None


@RULES.add("reduce", on=("broadcast",))
def reduce_broadcast(n: Node, b: Rewriter) -> ir.Value | None:
    """reduce over dimensions that a broadcast added → x, or x * size for a sum"""
    inner = b.node(n.operands[0], "broadcast")
    kind = n.attrs["kind"]
    if inner is None or kind not in ("sum", "max", "min", "any", "all"):
        return None
    x, carried = inner.operands[0], inner.attrs["dims"]
    if any(d in carried for d in n.attrs["dims"]) or b.type(x).dtype != n.type.dtype:
        return None
    count = prod(inner.type.shape[d] for d in n.attrs["dims"])
    if count == 0 or varies(count) or (kind == "sum" and n.type.dtype not in FLOATS):
        return None
    if kind == "sum" and round_to(float(count), n.type.dtype) != count:
        return None
    kept = [d for d in range(inner.type.rank) if d not in n.attrs["dims"]]
    dims = tuple(kept.index(d) for d in carried)
    value = b.build("broadcast", [x], {"shape": n.type.shape, "dims": dims})
    if kind == "sum" and count != 1:
        return b.build("mul", [value, b.constant(float(count), n.type)])
    return value


@RULES.add("reduce", on=("select",))
def reduce_one_hot(n: Node, b: Rewriter) -> ir.Value | None:
    """sum of select(iota == x, y, 0) along what iota counts → select(x in range, y, 0), where y repeats along it"""
    if n.attrs["kind"] != "sum" or len(n.attrs["dims"]) != 1 or n.attrs.get("dtype"):
        return None
    (dim,) = n.attrs["dims"]
    inner = b.node(n.operands[0], "select")
    if inner is None or b.splat(inner.operands[2]) != 0 or varies(inner.type.shape[dim]):
        return None
    either = b.node(inner.operands[0], "and")
    terms = [inner.operands[0]] if either is None else list(either.operands)
    hits = [_counted(b, t, dim) for t in terms]
    if all(h is None for h in hits):
        return None
    which = next(i for i, h in enumerate(hits) if h is not None)
    index = _without(b, hits[which], dim, n.type.shape)
    value = _without(b, inner.operands[1], dim, n.type.shape)
    rest = [_without(b, t, dim, n.type.shape) for i, t in enumerate(terms) if i != which]
    if index is None or value is None or any(t is None for t in rest):
        return None
    ty = b.type(index)
    low = b.build("compare", [index, b.constant(0, ty)], {"predicate": "ge"})
    size = b.constant(inner.type.shape[dim], ty)
    inside = b.build("and", [low, b.build("compare", [index, size], {"predicate": "lt"})])
    for term in rest:
        assert term is not None
        inside = b.build("and", [inside, term])
    return b.build("select", [inside, value, b.constant(0, n.type)])


def _counted(b: Rewriter, value: ir.Value, dim: int) -> ir.Value | None:
    """The value that a comparison tests for equality with the index along `dim`; None for other values."""
    node = b.node(value, "compare")
    if node is None or node.attrs["predicate"] != "eq":
        return None
    for position, other in (node.operands, reversed(node.operands)):
        iota = b.node(position, "iota")
        if iota is not None and iota.attrs["dim"] == dim:
            return other
    return None


def _without(
    b: Rewriter, value: ir.Value | None, dim: int, shape: tuple[int, ...]
) -> ir.Value | None:
    """A value that is broadcast along `dim`, without that dimension; None if it isn't."""
    if value is None:
        return None
    c = b.splat(value)
    if c is not None:
        return b.constant(c, TensorType(shape, b.type(value).dtype))
    node = b.node(value, "broadcast")
    if node is None or dim in node.attrs["dims"]:
        return None
    dims = tuple(d - (d > dim) for d in node.attrs["dims"])
    (x,) = node.operands
    same = b.type(x).shape == shape and dims == tuple(range(len(shape)))
    return x if same else b.build("broadcast", [x], {"shape": shape, "dims": dims})


@RULES.add("matmul")
def matmul_over_nothing(n: Node, b: Rewriter) -> ir.Value | None:
    """matmul over a contracted dimension of size 0 → 0"""
    if b.type(n.operands[0]).shape[-1] != 0 or n.type.dtype in NO_KERNELS:
        return None
    return b.constant(0, n.type)
