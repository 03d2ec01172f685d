"""Decompositions of pooling into slices, sums and comparisons.

Means and maxima over windows are computed one dimension after the other. Along a dimension, a table lists the input
positions of each window. The n-th positions of all windows are read together, by a slice if they are evenly spaced,
otherwise by an index lookup, and combined for all n. The gradient of a mean uses the transposed table.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gflow.dialects import builder
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.ops.pooling import POSITIONS, pooled_type
from gflow.dialects.types import FLOATS, UNSIGNED, TensorType

from .terms import Term, iota, make, splat

Attrs = dict[str, Any]


def regular(attrs: Attrs) -> bool:
    """Whether windows have a fixed size and stride (unlike adaptive pooling)."""
    return attrs.get("size") is None


def spans(attrs: Attrs, d: int, size: int, count: int) -> list[list[tuple[int, int]]]:
    """The positions in each of `count` windows along spatial dimension `d`, each with its number in the window."""
    found = []
    for i in range(count):
        if regular(attrs):
            step = (attrs.get("dilation") or (1,) * 9)[d]
            first = i * attrs["stride"][d] - attrs["padding"][d]
            places = [(first + k * step, k) for k in range(attrs["kernel"][d])]
        else:
            first, last = i * size // count, -(-(i + 1) * size // count)
            places = [(p, k) for k, p in enumerate(range(first, last))]
        found.append([(p, k) for p, k in places if 0 <= p < size])
    return found


def _pieces(rows: list[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The transposed table, as columns: for each n the n-th position of each row, and whether the row has one."""
    most = max((len(r) for r in rows), default=0)
    columns = []
    for k in range(most):
        there = np.array([k < len(r) for r in rows])
        at = np.array([r[k] if k < len(r) else (r[-1] if r else 0) for r in rows], np.int64)
        columns.append((at, there))
    return columns


def _pick(x: Term, dim: int, at: np.ndarray) -> Term:
    """The elements at positions `at` of a dimension, by a slice if they are evenly spaced, otherwise by a lookup."""
    steps = set(np.diff(at).tolist())
    if len(steps) <= 1 and (step := next(iter(steps), 1)) >= 1:
        return x.slice(dim, int(at[0]), int(at[-1]) + 1, step)
    index = Term(builder.dense(at, TensorType(at.shape, "i64")))
    return make("take", x, index, dim=dim)


def _mask(x: Term, dim: int, there: np.ndarray, otherwise: float) -> Term:
    if there.all():
        return x
    flags = Term(builder.dense(there, TensorType(there.shape, "i1")))
    return flags.spread(x.shape, [dim]).where(x, otherwise)


def _combined(x: Term, dim: int, rows: list[list[int]], combine: str, nothing: float) -> Term:
    """The combination along `dim` of the positions of each row. nothing: the identity of the op `combine`."""
    total: Term | None = None
    for at, there in _pieces(rows):
        piece = _mask(_pick(x, dim, at), dim, there, nothing)
        total = piece if total is None else make(combine, total, piece)
    if total is not None:
        return total
    shape = list(x.shape)
    shape[dim] = len(rows)
    return splat(nothing, shape, x.dtype)


def _columns(rows: list[list[int]], size: int) -> list[list[int]]:
    """For each input position, the windows that contain it."""
    found: list[list[int]] = [[] for _ in range(size)]
    for i, row in enumerate(rows):
        for p in row:
            found[p].append(i)
    return found


def _table(attrs: Attrs, x: TensorType, y: TensorType) -> list[tuple[int, list[list[int]]]]:
    """For each spatial dimension, its number among all dimensions and the table of its windows."""
    _, _, dims = conv_dims(attrs["layout"], x.rank)
    return [
        (dim, [[p for p, _ in row] for row in spans(attrs, d, x.shape[dim], y.shape[dim])])
        for d, dim in enumerate(dims)
    ]


def divisors(attrs: Attrs, x: TensorType, y: TensorType) -> np.ndarray | float:
    """The divisor of sums over windows: one number, or one for each window."""
    if attrs.get("divisor") is not None:
        return float(attrs["divisor"])
    _, _, dims = conv_dims(attrs["layout"], x.rank)
    total = np.ones([1] * x.rank)
    for d, dim in enumerate(dims):
        size, count = x.shape[dim], y.shape[dim]
        if regular(attrs) and attrs.get("count_padding"):
            first = np.arange(count) * attrs["stride"][d] - attrs["padding"][d]
            last = np.minimum(first + attrs["kernel"][d], size + attrs["padding"][d])
            counts = last - first
        else:
            counts = np.array([len(r) for r in spans(attrs, d, size, count)])
        total = total * counts.reshape([-1 if i == dim else 1 for i in range(x.rank)])
    return float(total.flat[0]) if (total == total.flat[0]).all() else total


def _divided(x: Term, by: np.ndarray | float) -> Term:
    if isinstance(by, float):
        return x if by == 1.0 else x / by
    array = by.astype(np.float64 if x.dtype == "f64" else np.float32)
    ty = TensorType(array.shape, "f64" if x.dtype == "f64" else "f32")
    return x / Term(builder.dense(array, ty)).to(x.dtype).spread(x.shape)


def _sum_type(dtype: str) -> str:
    return "f64" if dtype == "f64" else "f32"


def avg_pool(x: Term, attrs: Attrs) -> Term:
    """Means over windows: sums along each dimension, divided by the windows' sizes."""
    y = pooled_type(x.type, attrs)
    total = x.to(_sum_type(x.dtype))
    for dim, rows in _table(attrs, x.type, y):
        if len(rows) == 1 and rows[0] == list(range(x.shape[dim])):
            shape = [1 if i == dim else s for i, s in enumerate(total.shape)]
            total = total.reduce("sum", dim).reshape(*shape)
        else:
            total = _combined(total, dim, rows, "add", 0.0)
    return _divided(total, divisors(attrs, x.type, y)).to(x.dtype)


def avg_pool_grad(dy: Term, attrs: Attrs) -> Term:
    """The gradient of `avg_pool`: each position gets the sum of the windows that contain it."""
    x = TensorType(tuple(attrs["shape"]), dy.dtype)
    total = _divided(dy.to(_sum_type(dy.dtype)), divisors(attrs, x, dy.type))
    for dim, rows in _table(attrs, x, dy.type):
        total = _combined(total, dim, _columns(rows, x.shape[dim]), "add", 0.0)
    return total.to(dy.dtype)


def lowest(dtype: str) -> float:
    """The lowest value of an element type."""
    if dtype in FLOATS:
        return -math.inf
    if dtype in UNSIGNED:
        return 0
    return 0 if dtype == "i1" else -(1 << (8 * TensorType((), dtype).itemsize - 1))


def max_pool(x: Term, attrs: Attrs) -> list[Term]:
    """Maxima over windows and, if the op returns them, their positions."""
    y = pooled_type(x.type, attrs)
    if attrs["positions"] == "none":
        best = x
        for dim, rows in _table(attrs, x.type, y):
            best = _combined(best, dim, rows, "maximum", lowest(x.dtype))
        return [best]
    return _with_positions(x, y, attrs)


def _with_positions(x: Term, y: TensorType, attrs: Attrs) -> list[Term]:
    """Maxima and their positions: element by element, a greater number or NaN replaces the current maximum."""
    _, _, dims = conv_dims(attrs["layout"], x.type.rank)
    rows = [spans(attrs, d, x.shape[dim], y.shape[dim]) for d, dim in enumerate(dims)]
    kinds = [
        attrs["kernel"][d] if regular(attrs) else max(len(r) for r in rows[d])
        for d in range(len(dims))
    ]
    dtype = POSITIONS[attrs["positions"]]
    best: Term | None = None
    where: Term | None = None
    for number, k in enumerate(np.ndindex(*kinds)):
        piece, there = x, np.ones([1] * y.rank, bool)
        at_plane = np.zeros([1] * y.rank, np.int64)
        for d, dim in enumerate(dims):
            places = [next((p for p, n in row if n == k[d]), None) for row in rows[d]]
            inside = np.array([p is not None for p in places])
            near = _filled(places)
            wide = [-1 if i == dim else 1 for i in range(y.rank)]
            piece = _pick(piece, dim, near)
            there = there & inside.reshape(wide)
            at_plane = at_plane * x.shape[dim] + near.reshape(wide)
        if not there.any():
            continue
        flags = _spread(np.broadcast_to(there, _spatial(y, dims)), y)
        position = (
            _spread(np.broadcast_to(at_plane, _spatial(y, dims)), y)
            if attrs["positions"] == "plane"
            else splat(number, y.shape, dtype)
        )
        if best is None or where is None:
            best = flags.where(piece, lowest(x.dtype))
            where = position
            seen = flags
            continue
        # the first element of a window inside the input, whatever its value
        better = piece.is_("gt", best) | _is_nan(piece)
        taken = flags & (better | make("not", seen))
        best, where = taken.where(piece, best), taken.where(position, where)
        seen = seen | flags
    assert best is not None
    assert where is not None
    return [best, where]


def _filled(places: list[int | None]) -> np.ndarray:
    """Positions with the missing ones filled in: evenly spaced if the known ones are, so that a slice can read them."""
    known = [p for p in places if p is not None]
    last, found = known[0] if known else 0, []
    for p in places:
        last = last if p is None else p
        found.append(last)
    return np.array(found, np.int64)


def _is_nan(x: Term) -> Term:
    if x.dtype in FLOATS:
        return make("is_nan", x)
    return splat(0, x.shape, "i1")


def _spatial(y: TensorType, dims: tuple[int, ...]) -> list[int]:
    return [s if i in dims else 1 for i, s in enumerate(y.shape)]


def _spread(array: np.ndarray, y: TensorType) -> Term:
    dtype = "i1" if array.dtype == bool else "i64"
    constant = Term(builder.dense(np.ascontiguousarray(array), TensorType(array.shape, dtype)))
    return constant.spread(y.shape)


def max_pool_grad(dy: Term, positions: Term, attrs: Attrs) -> Term:
    """The gradient of `max_pool`: each gradient is added at the position of its maximum."""
    layout, rank = attrs["layout"], dy.type.rank
    n, c, dims = conv_dims(layout, rank)
    shape = tuple(attrs["shape"])
    order = (n, c, *dims)
    back = tuple(int(i) for i in np.argsort(order))
    sizes = [shape[d] for d in dims]
    plane = math.prod(sizes)
    dyf, at = dy.permute(*order), positions.to("i64").permute(*order)
    if positions.dtype == POSITIONS["window"]:
        at = _in_plane(at, attrs, sizes)
    planes = dyf.shape[0] * dyf.shape[1]
    per = math.prod(dyf.shape[2:])
    index = at.reshape(planes, per) + iota((planes, per), 0) * plane
    wide = _sum_type(dy.dtype)
    total = make(
        "index_add",
        splat(0.0, (planes * plane,), wide),
        index.reshape(planes * per),
        dyf.to(wide).reshape(planes * per),
        dim=0,
    )
    return total.to(dy.dtype).reshape(*(shape[d] for d in order)).permute(*back)


def _in_plane(at: Term, attrs: Attrs, sizes: list[int]) -> Term:
    """Positions within windows, [N, C, *], as row-major positions in the plane."""
    dilation = attrs.get("dilation") or (1,) * len(sizes)
    rest, total, per = at, splat(0, at.shape, "i64"), 1
    for d in reversed(range(len(sizes))):
        kernel = attrs["kernel"][d]
        begin = make("iota", shape=at.shape, dim=2 + d, dtype="i64") * attrs["stride"][d]
        down = rest / kernel
        along = (rest - down * kernel) * dilation[d] + begin - attrs["padding"][d]
        total, rest, per = total + along * per, down, per * sizes[d]
    return total
