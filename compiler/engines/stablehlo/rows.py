"""The table of the dialect's ops in StableHLO."""

from __future__ import annotations

import numpy as np

from gflow.dialects.mlir import ir
from gflow.dialects.ops.compute import conv_dims
from gflow.dialects.types import FLOATS, INTEGERS, UNSIGNED, TensorType, type_of

from ..decompositions import windows
from ..form import Call, Form, Row
from . import collectives
from .writer import HALVES, Writer, numbers, pairs

Values = list[ir.Value]


def _same(name: str) -> Row:
    """A row for an op that StableHLO has with the same meaning."""

    def write(w: Writer, call: Call, operands: Values) -> Values:
        return [w.one(name, operands, call.type)]

    return Row(f"`{name}`", write)


def _floats(name: str) -> Row:
    """As `_same`, for floats only."""
    row = _same(name)
    return Row(row.shown, row.write, lambda call: call.operands[0].dtype in FLOATS)


def _wide(name: str) -> Row:
    """A row for a function that is computed in float32 for half precision, for which engines are less exact."""

    def write(w: Writer, call: Call, operands: Values) -> Values:
        operands = [w.wide(v) for v in operands]
        found = w.one(name, operands, type_of(operands[0]))
        return [w.convert(found, call.type.dtype)]

    return Row(f"`{name}`", write, lambda call: call.operands[0].dtype in FLOATS)


# -- elementwise


def _div(w: Writer, call: Call, operands: Values) -> Values:
    a, b = operands
    if call.type.dtype in FLOATS:
        return [w.one("divide", [a, b], call.type)]
    zero, one = w.splat(0, call.type), w.splat(1, call.type)
    nothing = w.compare("eq", b, zero)
    safe = w.one("select", [nothing, one, b], call.type)
    return [w.one("select", [nothing, zero, w.one("divide", [a, safe], call.type)], call.type)]


def _shift_right(w: Writer, call: Call, operands: Values) -> Values:
    kind = "logical" if call.type.dtype in UNSIGNED else "arithmetic"
    return [w.one(f"shift_right_{kind}", operands, call.type)]


def _abs(w: Writer, call: Call, operands: Values) -> Values:
    return operands if call.type.dtype in UNSIGNED else [w.one("abs", operands, call.type)]


def _convert(w: Writer, call: Call, operands: Values) -> Values:
    (x,) = operands
    if call.type.dtype == "i1" and call.operands[0].dtype != "i1":
        return [w.compare("ne", x, w.splat(0, call.operands[0]))]
    return [w.convert(x, call.type.dtype)]


def _is_inf(w: Writer, call: Call, operands: Values) -> Values:
    ty = call.operands[0]
    return [w.compare("eq", w.one("abs", operands, ty), w.splat(float("inf"), ty))]


def _round(w: Writer, call: Call, operands: Values) -> Values:
    return [w.one("round_nearest_even", operands, call.type)]


# -- shapes


def _iota(w: Writer, call: Call, operands: Values) -> Values:
    shape, dtype = call.type
    if not shape:
        return [w.splat(0, call.type)]
    at = w.one("iota", [], TensorType(shape, "i64" if dtype == "i1" else dtype),
               iota_dimension=f"{call.attrs['dim']} : i64")  # fmt: skip
    return [w.compare("ne", at, w.splat(0, TensorType(shape, "i64"))) if dtype == "i1" else at]


def _slice(w: Writer, call: Call, operands: Values) -> Values:
    a = call.attrs
    return [
        w.one("slice", operands, call.type, start_indices=numbers(a["starts"]),
              limit_indices=numbers(a["limits"]), strides=numbers(a["strides"]))
    ]  # fmt: skip


def _pad(w: Writer, call: Call, operands: Values) -> Values:
    a = call.attrs
    return [
        w.one("pad", operands, call.type, edge_padding_low=numbers(a["low"]),
              edge_padding_high=numbers(a["high"]), interior_padding=numbers([0] * call.type.rank))
    ]  # fmt: skip


def _concatenate(w: Writer, call: Call, operands: Values) -> Values:
    return [w.one("concatenate", operands, call.type, dimension=f"{call.attrs['dim']} : i64")]


def _take(w: Writer, call: Call, operands: Values) -> Values:
    x, index = call.operands
    dim = call.attrs["dim"]
    if call.type.numel == 0:
        return [w.splat(0, call.type)]
    inside = range(dim, dim + index.rank)
    offset = [d for d in range(call.type.rank) if d not in inside]
    sizes = [1 if d == dim else s for d, s in enumerate(x.shape)]
    dims = _gather_dims(offset, [dim], [dim], index.rank)
    return [
        w.one("gather", operands, call.type, dimension_numbers=dims, slice_sizes=numbers(sizes))
    ]


def _gather_dims(offset: list[int], collapsed: list[int], mapped: list[int], vector: int) -> str:
    return (
        f"#stablehlo.gather<offset_dims = {offset}, collapsed_slice_dims = {collapsed}, "
        f"start_index_map = {mapped}, index_vector_dim = {vector}>"
    )


def _gather(w: Writer, call: Call, operands: Values) -> Values:
    x, index = operands
    rank, dim = call.type.rank, call.attrs["dim"]
    if rank == 0 or call.type.numel == 0:
        return [x if rank == 0 else w.splat(0, call.type)]
    kind = type_of(index).dtype
    one = TensorType((*call.type.shape, 1), kind)
    coordinates = [
        w.reshape(index, one.shape)
        if d == dim
        else w.one("iota", [], one, iota_dimension=f"{d} : i64")
        for d in range(rank)
    ]
    places = w.one("concatenate", coordinates, TensorType((*call.type.shape, rank), kind),
                   dimension=f"{rank} : i64")  # fmt: skip
    every = list(range(rank))
    dims = _gather_dims([], every, every, rank)
    sizes = numbers([1] * rank)
    return [w.one("gather", [x, places], call.type, dimension_numbers=dims, slice_sizes=sizes)]


def _scatter_dims(windows_: list[int], dim: int, vector: int) -> str:
    return (
        f"#stablehlo.scatter<update_window_dims = {windows_}, inserted_window_dims = [{dim}], "
        f"scatter_dims_to_operand_dims = [{dim}], index_vector_dim = {vector}>"
    )


def _index_add(w: Writer, call: Call, operands: Values) -> Values:
    x, index, source = call.operands
    dim = call.attrs["dim"]
    if source.numel == 0:
        return [operands[0]]
    inside = range(dim, dim + index.rank)
    dims = _scatter_dims([d for d in range(source.rank) if d not in inside], dim, index.rank)
    op = w.op("scatter", operands, [x], 1, scatter_dimension_numbers=dims)
    w.combiner(op, "add", x.dtype)
    return list(op.results)


def _index_copy(w: Writer, call: Call, operands: Values) -> Values:
    """Write an `index_copy`. Updates with equal indices are made equal first, since `scatter` has no order."""
    x, index, source = call.operands
    dim = call.attrs["dim"]
    if source.numel == 0:
        return [operands[0]]
    to, at, updates = operands
    if index.numel > 1:
        # the number of the last update at each position, by a maximum, which does not depend on the order
        number = w.one("iota", [], TensorType(index.shape, "i64"), iota_dimension="0 : i64")
        none = TensorType((x.shape[dim],), "i64")
        last = w.op("scatter", [w.splat(-1, none), at, number], [none], 1,
                    scatter_dimension_numbers=_scatter_dims([], 0, 1))  # fmt: skip
        w.combiner(last, "maximum", "i64")
        dims = _gather_dims([], [0], [0], 1)
        from_ = w.one("gather", [last.results[0], at], TensorType(index.shape, "i64"),
                      dimension_numbers=dims, slice_sizes=numbers([1]))  # fmt: skip
        sizes = [1 if d == dim else s for d, s in enumerate(source.shape)]
        dims = _gather_dims([d for d in range(source.rank) if d != dim], [dim], [dim], 1)
        updates = w.one("gather", [updates, from_], source,
                        dimension_numbers=dims, slice_sizes=numbers(sizes))  # fmt: skip
    dims = _scatter_dims([d for d in range(source.rank) if d != dim], dim, 1)
    op = w.op("scatter", [to, at, updates], [x], 1, scatter_dimension_numbers=dims)
    w.combiner(op, None, x.dtype)
    return list(op.results)


# -- reductions and products

_COMBINERS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum",
              "any": "or", "all": "and"}  # fmt: skip


def neutral(kind: str, dtype: str) -> float:
    """The identity element of a reduction."""
    if kind in ("sum", "any"):
        return 0
    if kind in ("prod", "all"):
        return 1
    if kind == "max":
        return windows.lowest(dtype)
    if dtype in FLOATS:
        return float("inf")
    bits = 8 * TensorType((), dtype).itemsize
    return 1 if dtype == "i1" else (1 << bits) - 1 if dtype in UNSIGNED else (1 << (bits - 1)) - 1


def _reduce(w: Writer, call: Call, operands: Values) -> Values:
    kind, dtype = call.attrs["kind"], call.type.dtype
    combiner = _COMBINERS[kind]
    if dtype == "i1":
        combiner = {"maximum": "or", "minimum": "and"}.get(combiner, combiner)
    start = w.splat(neutral(kind, dtype), TensorType((), dtype))
    dims = numbers(call.attrs["dims"])
    op = w.op("reduce", [*operands, start], [call.type], 1, dimensions=dims)
    w.combiner(op, combiner, dtype)
    return list(op.results)


def _reduces(call: Call) -> bool:
    kind, dtype = call.attrs["kind"], call.operands[0].dtype
    if kind in ("argmax", "argmin") or call.attrs["dtype"] is not None:
        return False
    return kind not in ("sum", "prod") or dtype not in HALVES


def _matmul(w: Writer, call: Call, operands: Values) -> Values:
    batch = list(range(call.type.rank - 2))
    dims = (
        f"#stablehlo.dot<lhs_batching_dimensions = {batch}, rhs_batching_dimensions = {batch}, "
        f"lhs_contracting_dimensions = [{len(batch) + 1}], rhs_contracting_dimensions = [{len(batch)}]>"
    )
    dtype = call.type.dtype
    wide = TensorType(call.type.shape, "f32" if dtype in HALVES else dtype)
    return [w.convert(w.one("dot_general", operands, wide, dot_dimension_numbers=dims), dtype)]


def _layout(layout: str, rank: int, first: str, second: str) -> str:
    spatial = [str(i) for i in range(rank - 2)]
    listed = [first, second, *spatial] if layout == "NC*" else [first, *spatial, second]
    return f"[{', '.join(listed)}]"


def _window(
    w: Writer, x: ir.Value, weight: ir.Value, call: Call, layouts: tuple[str, str, str], ty: TensorType,
    stride: tuple[int, ...], padding: list[tuple[int, int]], lhs_dilation: tuple[int, ...],
) -> ir.Value:  # fmt: skip
    """A convolution; half precision is computed in float32."""
    lhs, kernel, out = layouts
    spatial = len(stride)
    found = w.one(
        "convolution",
        [w.wide(x), w.wide(weight)],
        TensorType(ty.shape, "f32" if ty.dtype in HALVES else ty.dtype),
        dimension_numbers=f"#stablehlo.conv<{lhs}x{kernel}->{out}>",
        window_strides=numbers(stride),
        padding=pairs(padding),
        lhs_dilation=numbers(lhs_dilation),
        rhs_dilation=numbers(call.attrs["dilation"]),
        window_reversal=f"array<i1: {', '.join(['false'] * spatial)}>",
        feature_group_count=f"{call.attrs['groups']} : i64",
        batch_group_count="1 : i64",
    )
    return w.convert(found, ty.dtype)


def _convolution(w: Writer, call: Call, operands: Values) -> Values:
    a, rank = call.attrs, call.type.rank
    activation = _layout(a["layout"], rank, "b", "f")
    layouts = (activation, _layout(a["layout"], rank, "o", "i"), activation)
    padding = [(p, p) for p in a["padding"]]
    ones = (1,) * (rank - 2)
    x, weight = operands
    return [_window(w, x, weight, call, layouts, call.type, a["stride"], padding, ones)]


def _convolution_input_grad(w: Writer, call: Call, operands: Values) -> Values:
    """Write an input gradient as a convolution of dy, dilated by the stride, with the reversed weight."""
    a, rank, (dy, weight) = call.attrs, call.type.rank, operands
    dy_type, w_type = call.operands
    _, _, spatial = conv_dims(a["layout"], rank)
    weight = w.one("reverse", [weight], w_type, dimensions=numbers(spatial))
    groups = a["groups"]
    if groups > 1:
        weight = _exchanged(w, weight, a["layout"], groups)
    activation = _layout(a["layout"], rank, "b", "f")
    layouts = (activation, _layout(a["layout"], rank, "i", "o"), activation)
    padding = []
    for d, at in enumerate(spatial):
        reach = a["dilation"][d] * (w_type.shape[at] - 1)
        spread = (dy_type.shape[at] - 1) * a["stride"][d] + 1
        low = reach - a["padding"][d]
        padding.append((low, call.type.shape[at] + reach - spread - low))
    ones = (1,) * (rank - 2)
    return [_window(w, dy, weight, call, layouts, call.type, ones, padding, a["stride"])]


def _exchanged(w: Writer, weight: ir.Value, layout: str, groups: int) -> ir.Value:
    """The weight [groups * o, *, i] as [o, *, groups * i]: inputs and outputs are exchanged within each group."""
    shape = type_of(weight).shape
    outputs = shape[0] // groups
    split = w.reshape(weight, (groups, outputs, *shape[1:]))
    i = 1 if layout == "NC*" else len(shape) - 1  # the dimension before which the groups are placed
    order = list(range(1, len(shape) + 1))
    order.insert(i, 0)
    moved = w.transpose(split, order)
    joined = list(type_of(moved).shape)
    joined[i : i + 2] = [joined[i] * joined[i + 1]]
    return w.reshape(moved, joined)


# -- pooling


def _reduce_window(w: Writer, call: Call, x: ir.Value, combiner: str, start: float) -> ir.Value:
    a, ty = call.attrs, type_of(x)
    _, _, dims = conv_dims(a["layout"], ty.rank)
    kernel, stride, dilation = ([1] * ty.rank for _ in range(3))
    padding = [(0, 0)] * ty.rank
    for d, at in enumerate(dims):
        kernel[at], stride[at] = a["kernel"][d], a["stride"][d]
        dilation[at] = (a.get("dilation") or [1] * 9)[d]
        reach = (call.type.shape[at] - 1) * stride[at] + dilation[at] * (kernel[at] - 1) + 1
        padding[at] = (a["padding"][d], max(0, reach - ty.shape[at] - a["padding"][d]))
    result = TensorType(call.type.shape, ty.dtype)
    op = w.op(
        "reduce_window", [x, w.splat(start, TensorType((), ty.dtype))], [result], 1,
        window_dimensions=numbers(kernel), window_strides=numbers(stride),
        window_dilations=numbers(dilation), base_dilations=numbers([1] * ty.rank),
        padding=pairs(padding),
    )  # fmt: skip
    w.combiner(op, combiner, ty.dtype)
    return op.results[0]


def _max_pool(w: Writer, call: Call, operands: Values) -> Values:
    (x,) = operands
    return [_reduce_window(w, call, x, "maximum", windows.lowest(call.type.dtype))]


def _avg_pool(w: Writer, call: Call, operands: Values) -> Values:
    x = w.wide(operands[0])
    total = _reduce_window(w, call, x, "add", 0.0)
    ty = type_of(total)
    by = windows.divisors(call.attrs, call.operands[0], call.type)
    if isinstance(by, float):
        divisor = w.splat(by, ty)
    else:
        array = by.astype(np.float64 if ty.dtype == "f64" else np.float32)
        divisor = w.broadcast(w.array(array, ty.dtype), ty.shape, range(ty.rank))
    return [w.convert(w.one("divide", [total, divisor], ty), call.type.dtype)]


def _barrier(w: Writer, call: Call, operands: Values) -> Values:
    return list(w.op("optimization_barrier", operands, call.results).results)


ROWS: dict[str, Row] = {
    # elementwise
    **{name: _same(other) for name, other in {
        "add": "add", "sub": "subtract", "mul": "multiply", "maximum": "maximum",
        "minimum": "minimum", "and": "and", "or": "or", "xor": "xor", "not": "not",
        "shift_left": "shift_left", "select": "select", "neg": "negate", "floor": "floor",
        "ceil": "ceil", "reshape": "reshape",
    }.items()},
    **{name: _wide(other) for name, other in {
        "atan2": "atan2", "sqrt": "sqrt", "rsqrt": "rsqrt", "exp": "exponential",
        "expm1": "exponential_minus_one", "log": "log", "log1p": "log_plus_one", "sin": "sine",
        "cos": "cosine", "tan": "tan", "tanh": "tanh", "sigmoid": "logistic", "pow": "power",
    }.items()},
    "fmod": _floats("remainder"),
    "div": Row("`divide`; of integers 0 where b is 0, by `select`", _div),
    "shift_right": Row("`shift_right_arithmetic`, `shift_right_logical`", _shift_right),
    "abs": Row("`abs`", _abs),
    "compare": Row("`compare`", lambda w, c, v: [w.compare(c.attrs["predicate"], *v)]),
    "convert": Row("`convert`; to i1 `compare`", _convert),
    "round": Row("`round_nearest_even`", _round),
    "is_inf": Row("`abs`, `compare`", _is_inf),
    # shapes
    "constant": Row("`constant`", lambda w, c, v: [w.constant(c.op.attributes["value"], c.type)]),
    "iota": Row("`iota`", _iota),
    "transpose": Row("`transpose`", lambda w, c, v: [w.transpose(v[0], c.attrs["permutation"])]),
    "broadcast": Row("`broadcast_in_dim`", lambda w, c, v: [w.broadcast(v[0], c.type.shape, c.attrs["dims"])]),
    "slice": Row("`slice`", _slice),
    "pad": Row("`pad`", _pad),
    "concatenate": Row("`concatenate`", _concatenate),
    "reverse": Row("`reverse`", lambda w, c, v: [w.one("reverse", v, c.type, dimensions=numbers(c.attrs["dims"]))]),
    "take": Row("`gather`", _take),
    "gather": Row("`gather`", _gather),
    "index_add": Row("`scatter`", _index_add),
    "index_copy": Row("`scatter`, `gather`", _index_copy),
    # reductions, products, windows
    "reduce": Row("`reduce`", _reduce, _reduces),
    "matmul": Row("`dot_general`", _matmul),
    "convolution": Row("`convolution`", _convolution),
    "convolution_input_grad": Row("`convolution`", _convolution_input_grad),
    "max_pool": Row("`reduce_window`", _max_pool,
                    lambda c: windows.regular(c.attrs) and c.attrs["positions"] == "none"),
    "avg_pool": Row("`reduce_window`", _avg_pool, lambda c: windows.regular(c.attrs)),
    "optimization_barrier": Row("`optimization_barrier`", _barrier),
    **collectives.ROWS,
}  # fmt: skip

FORM = Form("StableHLO", ROWS, frozenset((*FLOATS, *INTEGERS, "i1")), refuse=collectives.refuse)
