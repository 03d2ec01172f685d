"""`stablehlo.reduce_window`: pooling, and slices where the dialect's pooling has no such form.

    %0 = "stablehlo.reduce_window"(%x, %minus_infinity) <{window_dimensions = [1, 3, 3, 1],
        window_strides = [1, 2, 2, 1], padding = [[0, 0], [1, 1], [1, 1], [0, 0]]}> (maximum)
        : (tensor<2x9x9x4xf32>, tensor<f32>) -> tensor<2x5x5x4xf32>

becomes

    %0 = "gflow.transpose"(%x) {permutation = [0, 3, 1, 2]}
    %1 = "gflow.max_pool"(%0) {kernel = [3, 3], stride = [2, 2], padding = [1, 1], layout = "NC*", positions = "none"}
    %2 = "gflow.transpose"(%1) {permutation = [0, 2, 3, 1]}
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.dialects.builder import broadcast, build, reshape, transpose
from gflow.dialects.mlir import ir
from gflow.dialects.ops.compute import COMBINED_BY
from gflow.dialects.types import FLOATS, type_of

from .read_rows import Unreadable, Values, is_neutral, kind_of, numbers, padded, pairs, result_shape

#: spatial dimensions that the dialect's pooling has
_POOLED = (1, 2, 3)
#: elements of a window along one dimension, up to which it is written as so many slices
_MOST_SLICES = 64


def reduce_window(op: ir.Operation, operands: Values) -> Values:
    """A reduction of one tensor over windows of any dimensions.

    Raises:
        Unreadable: there are several tensors, another reduction than the dialect has, or a window of more than 64
            elements in one dimension that pooling does not have (of integers, of products).
    """
    if len(operands) != 2:
        raise Unreadable("gflow reduces one tensor over windows; of several it has no form")
    x, start = operands
    kind, shape, rank = kind_of(op), result_shape(op), type_of(x).rank
    ones = [1] * rank
    sizes = numbers(op, "window_dimensions") or ones
    strides = numbers(op, "window_strides") or ones
    inside = [n - 1 for n in numbers(op, "base_dilations") or ones]
    dilations = numbers(op, "window_dilations") or ones
    edges = pairs(op.attributes["padding"]) if "padding" in op.attributes else [[0, 0]] * rank
    nothing = is_neutral(op.operands[1], kind)
    if 0 in shape:
        return [broadcast(start, shape)]
    dims = [d for d in range(rank) if (sizes[d], strides[d]) != (1, 1)]
    pooled = _may_be_pooled(x, kind, len(dims), [dilations[d] for d in dims])
    even = [
        low if pooled and nothing and low == high and 0 <= 2 * low <= size and d in dims and not any(inside) else 0
        for d, ((low, high), size) in enumerate(zip(edges, sizes))
    ]  # fmt: skip
    low, high = ([edge[side] - e for edge, e in zip(edges, even)] for side in (0, 1))
    x = padded(x, start, low, high, inside)
    if pooled:
        windows = {
            "kernel": [sizes[d] for d in dims],
            "stride": [strides[d] for d in dims],
            "padding": [even[d] for d in dims],
        }
        found = _pooled(x, kind, dims, windows, [dilations[d] for d in dims])
    else:
        found = _sliced(x, kind, sizes, strides, dilations)
    return [found if nothing else build(COMBINED_BY[kind], [found, broadcast(start, shape)])]


def _may_be_pooled(x: ir.Value, kind: str, count: int, dilations: Sequence[int]) -> bool:
    """Whether the dialect's pooling computes it: maxima, minima and sums of floats."""
    if type_of(x).dtype not in FLOATS or count not in _POOLED:
        return False
    return kind in ("max", "min") or (kind == "sum" and set(dilations) == {1})


def _pooled(
    x: ir.Value, kind: str, dims: Sequence[int], windows: dict[str, list[int]], dilations: list[int]
) -> ir.Value:
    """Pooling over the dimensions `dims`, as the last ones of [N, C, *]."""
    rank = type_of(x).rank
    others = [d for d in range(rank) if d not in dims]
    order = [*others, *dims]
    x = transpose(x, order)
    shape = type_of(x).shape
    kept, spatial = shape[: len(others)], shape[len(others) :]
    x = reshape(x, (prod(kept[:-1]), kept[-1] if kept else 1, *spatial))
    attrs = {**windows, "layout": "NC*"}
    if kind == "sum":
        x = build("avg_pool", [x], {**attrs, "count_padding": True, "divisor": 1})
    else:
        x = build("neg", [x]) if kind == "min" else x
        x = build("max_pool", [x], {**attrs, "dilation": dilations, "positions": "none"})
        x = build("neg", [x]) if kind == "min" else x
    x = reshape(x, (*kept, *type_of(x).shape[2:]))
    return transpose(x, [order.index(d) for d in range(rank)])


def _sliced(
    x: ir.Value, kind: str, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> ir.Value:
    """A slice for each element of a window, dimension by dimension."""
    for d, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations)):
        if size > _MOST_SLICES:
            raise Unreadable(
                f"a window of {size} elements in dimension {d}; gflow reads up to {_MOST_SLICES} for {kind} of "
                f"{type_of(x).dtype} over {len(sizes)} dimensions"
            )
        if (size, stride) == (1, 1):
            continue
        shape = list(type_of(x).shape)
        last = dilation * (size - 1)
        parts = []
        for n in range(size):
            starts, limits, steps = [0] * len(shape), list(shape), [1] * len(shape)
            starts[d], limits[d], steps[d] = n * dilation, shape[d] - last + n * dilation, stride
            given = {"starts": starts, "limits": limits, "strides": steps}
            parts.append(build("slice", [x], given))
        while len(parts) > 1:  # pairwise, for sums of floats
            joined = [build(COMBINED_BY[kind], [a, b]) for a, b in zip(parts[::2], parts[1::2])]
            parts = joined + parts[len(parts) // 2 * 2 :]
        (x,) = parts
    return x
