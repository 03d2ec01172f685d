"""The table of StableHLO's ops in the dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from gflow.dialects import builder
from gflow.dialects.builder import broadcast, build, convert, reshape, splat, transpose
from gflow.dialects.mlir import ir, stablehlo
from gflow.dialects.ops.compute import COMBINED_BY
from gflow.dialects.types import UNSIGNED, TensorType, type_of

from .rows import neutral

Values = list[ir.Value]
Reader = Callable[[ir.Operation, Values], Values]


class Unreadable(Exception):
    """The dialect has no equivalent of an op. The message says why."""


def numbers(op: ir.Operation, name: str) -> list[int] | None:
    """An attribute of integers; None if it is missing."""
    return list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else None


def listed(op: ir.Operation, name: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def _number(op: ir.Operation, name: str) -> int:
    return int(ir.IntegerAttr(op.attributes[name]).value)


def result_shape(op: ir.Operation) -> tuple[int, ...]:
    return type_of(op.results[0]).shape


# -- elementwise

#: the ops on booleans
_LOGICAL = {"add": "or", "mul": "and", "maximum": "or", "minimum": "and"}


def _same(name: str) -> Reader:
    """A reader for an op that the dialect has with the same meaning."""

    def read(op: ir.Operation, operands: Values) -> Values:
        dtype = type_of(operands[0]).dtype
        return [build(_LOGICAL.get(name, name) if dtype == "i1" else name, operands)]

    return read


def _abs(op: ir.Operation, operands: Values) -> Values:
    (x,) = operands
    return [x] if type_of(x).dtype in UNSIGNED else [build("abs", [x])]


def _is_finite(op: ir.Operation, operands: Values) -> Values:
    (x,) = operands
    return [build("not", [build("or", [build("is_nan", [x]), build("is_inf", [x])])])]


def _shift_arithmetic(op: ir.Operation, operands: Values) -> Values:
    """An arithmetic shift: gflow's shift of signed integers is arithmetic, that of unsigned ones logical."""
    dtype = type_of(operands[0]).dtype
    signed = dtype.removeprefix("u")
    return [convert(build("shift_right", [convert(x, signed) for x in operands]), dtype)]


def _shift_logical(op: ir.Operation, operands: Values) -> Values:
    """A logical shift: for signed integers, the copies of the sign bit are masked."""
    a, by = operands
    ty = type_of(a)
    shifted = build("shift_right", [a, by])
    if ty.dtype in UNSIGNED:
        return [shifted]
    bits, zero, ones = (splat(n, ty) for n in (8 * ty.itemsize, 0, -1))
    signs = build("shift_left", [ones, build("sub", [bits, by])])
    inside = build("and", [build("compare", [by, zero], {"predicate": "ge"}),
                           build("compare", [by, bits], {"predicate": "lt"})])  # fmt: skip
    return [build("select", [inside, build("and", [shifted, build("not", [signs])]), zero])]


def _compare(op: ir.Operation, operands: Values) -> Values:
    given = stablehlo().ComparisonDirectionAttr(op.attributes["comparison_direction"])
    if "compare_type" in op.attributes:
        kind = stablehlo().ComparisonTypeAttr(op.attributes["compare_type"]).value
        if kind == "TOTALORDER":
            raise Unreadable("gflow compares floats as IEEE 754 does, not by their total order")
    return [build("compare", operands, {"predicate": given.value.lower()})]


def _select(op: ir.Operation, operands: Values) -> Values:
    chosen, a, b = operands
    shape = type_of(a).shape
    return [build("select", [broadcast(chosen, shape) if shape else chosen, a, b])]


def _clamp(op: ir.Operation, operands: Values) -> Values:
    low, x, high = operands
    low, high = (broadcast(v, result_shape(op)) for v in (low, high))
    return [build("minimum", [build("maximum", [x, low]), high])]


def _convert(op: ir.Operation, operands: Values) -> Values:
    return [convert(operands[0], type_of(op.results[0]).dtype)]


# -- shapes


def _constant(op: ir.Operation, operands: Values) -> Values:
    return [build("constant", [], {"value": op.attributes["value"]})]


def _iota(op: ir.Operation, operands: Values) -> Values:
    ty = type_of(op.results[0])
    dim = _number(op, "iota_dimension")
    return [build("iota", [], {"shape": ty.shape, "dim": dim, "dtype": ty.dtype})]


def _broadcast(op: ir.Operation, operands: Values) -> Values:
    (x,) = operands
    dims = listed(op, "broadcast_dimensions")
    order = sorted(range(len(dims)), key=dims.__getitem__)
    return [broadcast(transpose(x, order), result_shape(op), sorted(dims))]


def _slice(op: ir.Operation, operands: Values) -> Values:
    names = {"starts": "start_indices", "limits": "limit_indices", "strides": "strides"}
    return [build("slice", operands, {k: listed(op, v) for k, v in names.items()})]


def _pad(op: ir.Operation, operands: Values) -> Values:
    x, value = operands
    low, high = listed(op, "edge_padding_low"), listed(op, "edge_padding_high")
    return [padded(x, value, low, high, listed(op, "interior_padding"))]


def padded(
    x: ir.Value, value: ir.Value, low: Sequence[int], high: Sequence[int], inside: Sequence[int]
) -> ir.Value:
    """A `stablehlo.pad`. Interior padding goes behind each element except the last; negative edges are sliced off."""
    for d, count in enumerate(inside):
        shape = type_of(x).shape
        if count == 0 or shape[d] < 2:
            continue
        apart = reshape(x, (*shape[: d + 1], 1, *shape[d + 1 :]))
        none = [0] * (len(shape) + 1)
        behind = [count if i == d + 1 else 0 for i in range(len(none))]
        apart = build("pad", [apart, value], {"low": none, "high": behind})
        size = shape[d] * (count + 1)
        x = _cut(reshape(apart, (*shape[:d], size, *shape[d + 1 :])), d, 0, size - count)
    for d, (before, after) in enumerate(zip(low, high)):
        size = type_of(x).shape[d]
        if before < 0 or after < 0:
            # more may be cut off than the operand has, if the other edge grows
            grown = [max(0, before, -after - size), max(0, after, -before - size)]
            x = _edges(x, value, d, *grown)
            start = grown[0] - before
            x = _cut(x, d, start, start + size + before + after)
        else:
            x = _edges(x, value, d, before, after)
    return x


def _edges(x: ir.Value, value: ir.Value, dim: int, low: int, high: int) -> ir.Value:
    if low == high == 0:
        return x
    rank = type_of(x).rank
    sides = {"low": low, "high": high}
    return build("pad", [x, value],
                 {k: [n if d == dim else 0 for d in range(rank)] for k, n in sides.items()})  # fmt: skip


def _cut(x: ir.Value, dim: int, start: int, limit: int) -> ir.Value:
    shape = type_of(x).shape
    starts, limits = [0] * len(shape), list(shape)
    starts[dim], limits[dim] = start, limit
    return build("slice", [x], {"starts": starts, "limits": limits, "strides": [1] * len(shape)})


def _concatenate(op: ir.Operation, operands: Values) -> Values:
    return [build("concatenate", operands, {"dim": _number(op, "dimension")})]


def _reverse(op: ir.Operation, operands: Values) -> Values:
    return [build("reverse", operands, {"dims": sorted(listed(op, "dimensions"))})]


def _transpose(op: ir.Operation, operands: Values) -> Values:
    return [transpose(operands[0], listed(op, "permutation"))]


def _reshape(op: ir.Operation, operands: Values) -> Values:
    return [reshape(operands[0], result_shape(op))]


# -- indexing


def _clamped(index: ir.Value, most: int) -> ir.Value:
    """Indices clamped to 0 … most, as StableHLO does, as i64."""
    ty = type_of(index)
    if ty.dtype == "ui64":
        raise Unreadable("indices of ui64")
    ty = TensorType(ty.shape, "i64")
    low = build("maximum", [convert(index, "i64"), splat(0, ty)])
    return build("minimum", [low, splat(most, ty)])


def _dynamic_slice(op: ir.Operation, operands: Values) -> Values:
    x, *starts = operands
    return [_slice_at(x, dict(enumerate(starts)), listed(op, "slice_sizes"))]


def _slice_at(x: ir.Value, starts: dict[int, ir.Value], sizes: Sequence[int]) -> ir.Value:
    """A slice that lies within `x`. starts: 0-d, by dimension; others begin at 0."""
    for d, size in enumerate(sizes):
        whole = type_of(x).shape[d]
        if size == whole:
            continue
        if d not in starts:
            x = _cut(x, d, 0, size)
            continue
        start = broadcast(_clamped(starts[d], whole - size), (size,))
        steps = build("iota", [], {"shape": (size,), "dim": 0, "dtype": "i64"})
        x = build("take", [x, build("add", [start, steps])], {"dim": d})
    return x


def _gather(op: ir.Operation, operands: Values) -> Values:
    """A gather along one dimension, or of one slice."""
    x, index = operands
    dims = stablehlo().GatherDimensionNumbers(op.attributes["dimension_numbers"])
    mapped, collapsed = list(dims.start_index_map), list(dims.collapsed_slice_dims)
    shape, sizes = type_of(x).shape, listed(op, "slice_sizes")
    if (
        type_of(index).rank == 1 and dims.index_vector_dim == 0
    ):  # what JAX writes for slices of symbolic sizes
        starts = {d: reshape(_cut(index, 0, n, n + 1), ()) for n, d in enumerate(mapped)}
        return [reshape(_slice_at(x, starts, sizes), result_shape(op))]
    if (
        len(mapped) != 1
        or collapsed != mapped
        or list(dims.operand_batching_dims)
        or any(n != s for d, (n, s) in enumerate(zip(sizes, shape)) if d != mapped[0])
    ):
        raise Unreadable(
            "gflow supports only gathers along one dimension, of whole slices of the others"
        )
    (dim,) = mapped
    vector = dims.index_vector_dim
    places = list(type_of(index).shape)
    if vector < len(places):
        del places[vector]
    index = _clamped(reshape(index, places), shape[dim] - 1)
    taken = build("take", [x, index], {"dim": dim})
    # dimensions of `taken`: those of slices are around those of the indices
    offset = list(dims.offset_dims)
    rank = type_of(taken).rank
    inside = iter(range(dim, dim + len(places)))
    around = iter(d for d in range(rank) if not dim <= d < dim + len(places))
    return [transpose(taken, [next(around) if d in offset else next(inside) for d in range(rank)])]


# -- products


def _dot_general(op: ir.Operation, operands: Values) -> Values:
    a, b = operands
    dims = stablehlo().DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    ty = type_of(op.results[0])
    batch = [list(dims.lhs_batching_dimensions), list(dims.rhs_batching_dimensions)]
    summed = [list(dims.lhs_contracting_dimensions), list(dims.rhs_contracting_dimensions)]
    rows, inner, batches = (
        _sizes(a, _rest(a, batch[0], summed[0])),
        _sizes(a, summed[0]),
        _sizes(a, batch[0]),
    )
    columns = _sizes(b, _rest(b, batch[1], summed[1]))
    a = transpose(a, [*batch[0], *_rest(a, batch[0], summed[0]), *summed[0]])
    b = transpose(b, [*batch[1], *summed[1], *_rest(b, batch[1], summed[1])])
    a = reshape(convert(a, ty.dtype), (*batches, prod(rows), prod(inner)))
    b = reshape(convert(b, ty.dtype), (*batches, prod(inner), prod(columns)))
    return [reshape(build("matmul", [a, b]), (*batches, *rows, *columns))]


def _rest(x: ir.Value, batch: Sequence[int], summed: Sequence[int]) -> list[int]:
    return [d for d in range(type_of(x).rank) if d not in batch and d not in summed]


def _sizes(x: ir.Value, dims: Sequence[int]) -> list[int]:
    return [type_of(x).shape[d] for d in dims]


def _convolution(op: ir.Operation, operands: Values) -> Values:
    """A convolution, with operands transposed to [N, C, *] and [O, I, *].

    Attributes that gflow's convolution lacks become ops: padding, dilation of the input, and reversal.
    """
    x, weight = operands
    ty = type_of(op.results[0])
    dims = stablehlo().ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(dims.input_spatial_dimensions)
    count = len(spatial)
    if not count:
        raise Unreadable("a convolution without spatial dimensions")
    if _number(op, "batch_group_count") != 1:
        raise Unreadable("gflow has no batch_group_count")
    ones, none = [1] * count, [0] * count
    x = transpose(x, [dims.input_batch_dimension, dims.input_feature_dimension, *spatial])
    kernel = list(dims.kernel_spatial_dimensions)
    weight = transpose(
        weight, [dims.kernel_output_feature_dimension, dims.kernel_input_feature_dimension, *kernel]
    )
    if "window_reversal" in op.attributes:
        turned = list(ir.DenseBoolArrayAttr(op.attributes["window_reversal"]))
        if any(turned):
            weight = build(
                "reverse", [weight], {"dims": [d + 2 for d, r in enumerate(turned) if r]}
            )
    padding = pairs(op.attributes["padding"]) if "padding" in op.attributes else [[0, 0]] * count
    apart = [d - 1 for d in numbers(op, "lhs_dilation") or ones]
    even = [low if low == high >= 0 else 0 for low, high in padding]
    if any(apart):
        even = none
    low = [p[0] - e for p, e in zip(padding, even)]
    high = [p[1] - e for p, e in zip(padding, even)]
    x, weight = convert(x, ty.dtype), convert(weight, ty.dtype)
    x = padded(x, splat(0, TensorType((), ty.dtype)), [0, 0, *low], [0, 0, *high], [0, 0, *apart])
    attrs = {
        "stride": numbers(op, "window_strides") or ones,
        "padding": even,
        "dilation": numbers(op, "rhs_dilation") or ones,
        "groups": _number(op, "feature_group_count"),
        "layout": "NC*",
    }
    found = build("convolution", [x, weight], attrs)
    order = [dims.output_batch_dimension, dims.output_feature_dimension,
             *dims.output_spatial_dimensions]  # fmt: skip
    return [transpose(found, [order.index(d) for d in range(ty.rank)])]


def pairs(attribute: ir.Attribute) -> list[list[int]]:
    elements = ir.DenseIntElementsAttr(attribute)
    if elements.is_splat:
        value = int(ir.IntegerAttr(elements.get_splat_value()).value)
        return [[value, value] for _ in range(ir.RankedTensorType(elements.type).shape[0])]
    return [[int(a), int(b)] for a, b in np.array(elements)]


# -- reductions

_KINDS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
_OF_BOOLEANS = {
    "or": "any",
    "and": "all",
    "add": "any",
    "maximum": "any",
    "multiply": "all",
    "minimum": "all",
}


def _reduce(op: ir.Operation, operands: Values) -> Values:
    if len(operands) != 2:
        raise Unreadable("gflow reduces one tensor; of several (an argmax) it has no form")
    x, start = operands
    dims, kind = sorted(listed(op, "dimensions")), kind_of(op)
    nothing = is_neutral(op.operands[1], kind)
    start = broadcast(start, result_shape(op))
    if any(type_of(x).shape[d] == 0 for d in dims):
        return [start]
    found = build("reduce", [x], {"kind": kind, "dims": dims}) if dims else x
    return [found if nothing else build(COMBINED_BY[kind], [found, start])]


def is_neutral(start: ir.Value, kind: str) -> bool:
    """Whether the initial value of a reduction is the constant identity of its kind, as it usually is."""
    owner = start.owner
    if (
        not isinstance(owner, ir.Operation | ir.OpView)
        or owner.operation.name != "stablehlo.constant"
    ):
        return False
    value = owner.operation.attributes["value"]
    if not isinstance(value, ir.DenseElementsAttr) or not value.is_splat:
        return False
    number = value.get_splat_value()
    if not isinstance(number, ir.FloatAttr | ir.BoolAttr | ir.IntegerAttr):
        return False
    return bool(number.value == neutral(kind, type_of(start).dtype))


def kind_of(op: ir.Operation) -> str:
    """The kind of a reduction, as in `gflow.reduce`.

    Raises:
        Unreadable: its body is another than one op of two numbers that gflow reduces by.
    """
    dtype, name = type_of(op.operands[0]).dtype, _combiner(op)
    kind = (_OF_BOOLEANS if dtype == "i1" else _KINDS).get(name)
    if kind is None:
        raise Unreadable(f"gflow does not reduce {dtype} by {name}")
    return kind


def _combiner(op: ir.Operation) -> str:
    """The only op of a reduction's body.

    Raises:
        Unreadable: the body has other ops.
    """
    block = op.regions[0].blocks[0]
    body = [o.operation for o in block.operations]
    one = body[0]
    if (
        len(body) != 2
        or len(one.operands) != 2
        or {*one.operands} != {*block.arguments}
        or list(body[1].operands) != list(one.results)
    ):
        raise Unreadable("gflow reduces by one op of two numbers; the body is another")
    if type_of(one.results[0]) != TensorType((), type_of(op.results[0]).dtype):
        raise Unreadable("the body works in another element type")
    return one.name.removeprefix("stablehlo.")


def _barrier(op: ir.Operation, operands: Values) -> Values:
    types = [type_of(v) for v in operands]
    return list(builder.build_op("optimization_barrier", operands, {}, types).results)


_SAME: dict[str, Any] = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "remainder": "fmod",
    "maximum": "maximum", "minimum": "minimum", "power": "pow", "atan2": "atan2", "and": "and",
    "or": "or", "xor": "xor", "not": "not", "shift_left": "shift_left", "negate": "neg",
    "sign": "sign", "floor": "floor", "ceil": "ceil", "round_nearest_even": "round", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "exponential": "exp", "exponential_minus_one": "expm1", "log": "log",
    "log_plus_one": "log1p", "sine": "sin", "cosine": "cos", "tan": "tan", "tanh": "tanh",
    "logistic": "sigmoid",
}  # fmt: skip

READERS: dict[str, Reader] = {
    **{name: _same(ours) for name, ours in _SAME.items()},
    "abs": _abs,
    "is_finite": _is_finite,
    "shift_right_arithmetic": _shift_arithmetic,
    "shift_right_logical": _shift_logical,
    "compare": _compare,
    "select": _select,
    "clamp": _clamp,
    "convert": _convert,
    "constant": _constant,
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "reverse": _reverse,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "dot_general": _dot_general,
    "convolution": _convolution,
    "reduce": _reduce,
    "optimization_barrier": _barrier,
}
