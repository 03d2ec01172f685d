"""Evaluates masks that depend only on constants and positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gflow.compiler.ir.ssa import Body, Op
from gflow.dialects.attributes import read
from gflow.dialects.constants import is_splat
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS

#: the maximal number of elements of a mask that is evaluated
_LIMIT = 1 << 24

_DTYPES = {"i1": bool, "i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64}

_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}

_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


#: ops that occur in masks
_MADE_OF = frozenset(
    (*_BINARY, "constant", "iota", "compare", "select", "not", "convert", "transpose", "broadcast", "reshape", "slice")
)  # fmt: skip


def evaluate(body: Body, value: int) -> np.ndarray | None:
    """The elements of a value that depends on constants and positions alone.

    Returns:
        An array of the value's shape, or one that broadcasts to it; None where arguments take part, or an op
        that masks are not made of.
    """
    ops: dict[int, Op] = {}
    left = [value]
    while left:
        at = left.pop()
        p, ty = body.producer[at], body.types[at]
        if p < 0 or ty.dtype not in _DTYPES or ty.numel > _LIMIT:
            return None
        if body.ops[p].name not in _MADE_OF:
            return None
        if p not in ops:
            ops[p] = body.ops[p]
            left.extend(ops[p].operands)
    known: dict[int, np.ndarray] = {}
    for _, o in sorted(ops.items()):
        found = _apply(body, o, [known[v] for v in o.operands])
        if found is None:
            return None
        known[o.results[0]] = np.asarray(found)
    return known[value]


def _apply(body: Body, o: Op, operands: list[np.ndarray]) -> Any:
    """The result of one op; None if the op is not supported."""
    ty = body.types[o.results[0]]
    attrs = read(OPS[o.name], o.op.attributes)
    if o.name == "constant":
        if not is_splat(o.op.attributes["value"]):
            return None
        scalar = ir.DenseElementsAttr(o.op.attributes["value"]).get_splat_value().value
        return np.full((1,) * ty.rank, scalar, _DTYPES[ty.dtype])
    if o.name == "iota":
        line = np.arange(ty.shape[attrs["dim"]], dtype=_DTYPES[ty.dtype])
        return line.reshape([-1 if d == attrs["dim"] else 1 for d in range(ty.rank)])
    x, *others = operands
    shape = body.types[o.operands[0]].shape
    if o.name in _BINARY:
        return _BINARY[o.name](x, others[0])
    if o.name == "compare":
        return _COMPARE[attrs["predicate"]](x, others[0])
    if o.name == "select":
        return np.where(x, *others)
    if o.name == "not":
        return np.logical_not(x) if ty.dtype == "i1" else None
    if o.name == "convert":
        return x != 0 if ty.dtype == "i1" else x.astype(_DTYPES[ty.dtype])
    if o.name == "transpose":
        return np.transpose(x, attrs["permutation"])
    if o.name == "broadcast":
        sizes = [1] * ty.rank
        for size, dim in zip(x.shape, attrs["dims"]):
            sizes[dim] = size
        return x.reshape(sizes)
    if o.name == "reshape":
        return np.broadcast_to(x, shape).reshape(ty.shape)
    walk = zip(attrs["starts"], attrs["limits"], attrs["strides"])
    return np.broadcast_to(x, shape)[tuple(slice(*w) for w in walk)]


def is_causal(keep: np.ndarray, positions: int, keys: int) -> bool:
    """Whether a mask is causal: position i sees the keys 0 … i. keep: broadcasts to [batch, head, position, key]."""
    if keep.shape[-2:] != (positions, keys) or keep.size != positions * keys:
        return False
    return bool(np.array_equal(keep.reshape(positions, keys), np.tri(positions, keys, dtype=bool)))


def every_row_sees_a_key(keep: np.ndarray) -> bool:
    """Whether each position sees at least one key."""
    return bool(keep.any(-1).all())
