"""The table of the dialect's ops in ONNX (opset 21)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gflow.dialects.constants import element_bytes, is_splat
from gflow.dialects.extents import varies
from gflow.dialects.mlir import ir
from gflow.dialects.ops.attention import extras
from gflow.dialects.ops.compute import conv_dims, kernel_dims

from ..decompositions import windows
from ..form import ON_RANKS, Call, Form, Row, call_of
from ..sizes import is_size
from .writer import NUMPY, Writer

Names = list[str]
When = Callable[[Call], bool]


def _dtype(call: Call) -> str:
    return call.operands[0].dtype


def _of(*dtypes: str) -> When:
    return lambda call: _dtype(call) in dtypes


#: the element types that engines compute with; 8-bit integers are computed in int32
_NUMBERS = _of("f32", "f64", "i64", "i32", "ui8")
_FLOATS, _F32 = _of("f32", "f64"), _of("f32")


def _node(kind: str, when: When = _NUMBERS, partly: bool = True) -> Row:
    """A row for an op that ONNX has with the same meaning."""

    def write(w: Writer, call: Call, names: Names) -> Names:
        return [w.node(kind, names)]

    return Row(f"`{kind}`", write, when if partly else None)


def _arithmetic(kind: str) -> Row:
    """A row for an arithmetic op; 8-bit integers are computed in int32."""

    def write(w: Writer, call: Call, names: Names) -> Names:
        if _dtype(call) != "ui8":
            return [w.node(kind, names)]
        return [w.cast(w.node(kind, [w.cast(x, "i32") for x in names]), "ui8")]

    return Row(f"`{kind}`", write)


def _extreme(kind: str, of_bools: str) -> Row:
    """A row for maximum or minimum, which gives NaN where an operand is NaN."""

    def write(w: Writer, call: Call, names: Names) -> Names:
        dtype = _dtype(call)
        if dtype == "i1":
            return [w.node(of_bools, names)]
        if dtype == "ui8":
            return [w.cast(w.node(kind, [w.cast(x, "i32") for x in names]), "ui8")]
        if dtype in ("f32", "f64"):
            a, b = map(number_of, call.op.operands)
            if (number := a if b is None else b) is not None:
                return [_bounded(w, names[b is None], kind, number, dtype)]
        found = w.node(kind, names)
        if dtype in ("f32", "f64"):
            bad = w.node("Or", [w.node("IsNaN", [x]) for x in names])
            found = w.node("Where", [bad, w.scalar(float("nan"), dtype), found])
        return [found]

    return Row(f"`{kind}`, `IsNaN`, `Where`; with a number `Clip` or `Relu`", write)


def _bounded(w: Writer, x: str, kind: str, number: float, dtype: str) -> str:
    """The maximum or minimum of a value and a number, with NaN propagated, as `Clip` or `Relu` where possible."""
    if kind == "Max" and number == 0:
        return w.node("Relu", [x])
    # the default of a missing bound is the greatest finite number
    ends = (number, math.inf) if kind == "Max" else (-math.inf, number)
    return w.node("Clip", [x, *(w.scalar(end, dtype) for end in ends)])


def number_of(value: ir.Value) -> float | None:
    """The number of a splat constant of floats that isn't NaN; None for other values."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "gflow.constant":
        return None
    attribute = owner.operation.attributes["value"]
    if not is_splat(attribute):
        return None
    number = ir.FloatAttr(ir.DenseElementsAttr(attribute).get_splat_value()).value
    return None if math.isnan(number) else number


def _bits(of_bools: str, of_integers: str) -> Row:
    def write(w: Writer, call: Call, names: Names) -> Names:
        return [w.node(of_bools if _dtype(call) == "i1" else of_integers, names)]

    return Row(f"`{of_bools}`, `{of_integers}`", write)


def _div(w: Writer, call: Call, names: Names) -> Names:
    a, b = names
    dtype = _dtype(call)
    if dtype in ("f32", "f64"):
        return [w.node("Div", names)]
    wide = "i32" if dtype == "ui8" else dtype
    if dtype == "ui8":
        a, b = w.cast(a, "i32"), w.cast(b, "i32")
    zero, one = w.scalar(0, wide), w.scalar(1, wide)
    nothing = w.node("Equal", [b, zero])
    found = w.node("Div", [a, w.node("Where", [nothing, one, b])])
    found = w.node("Where", [nothing, zero, found])
    return [w.cast(found, "ui8") if dtype == "ui8" else found]


def _neg(w: Writer, call: Call, names: Names) -> Names:
    if _dtype(call) != "ui8":
        return [w.node("Neg", names)]
    return [w.cast(w.node("Neg", [w.cast(names[0], "i32")]), "ui8")]


_COMPARISONS = {"eq": "Equal", "ne": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater",
                "ge": "GreaterOrEqual"}  # fmt: skip


def _compare(w: Writer, call: Call, names: Names) -> Names:
    if _dtype(call) in ("i1", "ui8"):
        names = [w.cast(x, "i32") for x in names]
    predicate = call.attrs["predicate"]
    found = w.node(_COMPARISONS[predicate], names)
    return [w.node("Not", [found]) if predicate == "ne" else found]


_BOUNDS = {"lt": "Max", "le": "Max", "gt": "Min", "ge": "Min"}


def _bound(call: Call) -> tuple[str, float] | None:
    """For a `select` that clamps a value to a number: "maximum" or "minimum", and the number; None for others."""
    pred, number, x = call.op.operands
    owner = pred.owner
    if call.type.dtype not in ("f32", "f64") or isinstance(owner, ir.Block):
        return None
    if owner.operation.name != "gflow.compare" or (least := number_of(number)) is None:
        return None
    left, right = owner.operation.operands
    kind = _BOUNDS.get(call_of(owner.operation).attrs["predicate"])
    if kind is None or left != x or number_of(right) != least:
        return None
    return kind, least


def _select(w: Writer, call: Call, names: Names) -> Names:
    pred, a, b = names
    if (found := _bound(call)) is not None and not w.is_narrow(b):
        return [_bounded(w, b, *found, call.type.dtype)]
    if call.type.dtype != "i1":
        return [w.node("Where", names)]
    return [w.cast(w.node("Where", [pred, w.cast(a, "i32"), w.cast(b, "i32")]), "i1")]


def _convert(w: Writer, call: Call, names: Names) -> Names:
    return [w.cast(names[0], call.type.dtype)]


# -- shapes


def _constant(w: Writer, call: Call, names: Names) -> Names:
    attribute, ty = call.op.attributes["value"], call.type
    data: np.ndarray = np.frombuffer(element_bytes(attribute, ty), NUMPY[ty.dtype])
    if ty.dtype in ("i64", "i32") and data.size == 1 and is_size(int(data[0])):
        one = w.reshape(w.cast(w.size(int(data[0])), ty.dtype), [1] * ty.rank)
        return [one if ty.numel == 1 else w.node("Expand", [one, w.ints(ty.shape)])]
    if is_splat(attribute) and ty.numel > 1:
        one = w.constant(data[:1].reshape([1] * ty.rank))
        return [w.expand(one, ty.shape)]
    return [w.constant(data[: ty.numel].reshape(ty.shape))]


def _iota(w: Writer, call: Call, names: Names) -> Names:
    shape, dim, dtype = call.type.shape, call.attrs["dim"], call.type.dtype
    if not shape:
        return [w.scalar(0, dtype)]
    line = w.positions(shape[dim]) if dtype == "i64" else w.cast(w.positions(shape[dim]), dtype)
    line = w.reshape(line, [shape[dim] if d == dim else 1 for d in range(len(shape))])
    return [w.node("Expand", [line, w.ints(shape)])]


def _broadcast(w: Writer, call: Call, names: Names) -> Names:
    inner = [1] * call.type.rank
    for size, d in zip(call.operands[0].shape, call.attrs["dims"]):
        inner[d] = size
    return [w.expand(w.reshape(names[0], inner), call.type.shape)]


def _slice(w: Writer, call: Call, names: Names) -> Names:
    if not call.type.rank:
        return names
    a = call.attrs
    axes = range(call.type.rank)
    parts = [w.ints(v) for v in (a["starts"], a["limits"], axes, a["strides"])]
    return [w.node("Slice", [names[0], *parts])]


def _pad(w: Writer, call: Call, names: Names) -> Names:
    if not call.type.rank:
        return names[:1]
    pads = w.ints([*call.attrs["low"], *call.attrs["high"]])
    if call.type.dtype != "i1":
        return [w.node("Pad", [names[0], pads, names[1]])]
    x, value = (w.cast(v, "i32") for v in names)
    return [w.cast(w.node("Pad", [x, pads, value]), "i1")]


def _reverse(w: Writer, call: Call, names: Names) -> Names:
    dims = list(call.attrs["dims"])
    ends = [-(1 << 62)] * len(dims)
    parts = [w.ints(v) for v in ([-1] * len(dims), ends, dims, [-1] * len(dims))]
    return [w.node("Slice", [names[0], *parts])]


def _gather(w: Writer, call: Call, names: Names) -> Names:
    if not call.type.rank:
        return names[:1]
    return [w.node("GatherElements", names, axis=call.attrs["dim"])]


def _index_add(w: Writer, call: Call, names: Names) -> Names:
    if not call.operands[2].numel:
        return names[:1]
    return [_scattered(w, call, names, reduction="add")]


def _scattered(w: Writer, call: Call, names: Names, **attributes: str) -> str:
    """ScatterElements of slices along a dimension."""
    x, index, _ = call.operands
    dim = call.attrs["dim"]
    flat = (*x.shape[:dim], index.numel, *x.shape[dim + 1 :])
    line = w.reshape(names[1], [index.numel if d == dim else 1 for d in range(x.rank)])
    places = w.node("Expand", [line, w.ints(flat)])
    updates = w.reshape(names[2], flat)
    return w.node("ScatterElements", [names[0], places, updates], axis=dim, **attributes)


def _index_copy(w: Writer, call: Call, names: Names) -> Names:
    """Write an `index_copy`. Updates with equal indices are made equal first, since `ScatterElements` has no order."""
    x, index, source = call.operands
    dim = call.attrs["dim"]
    if not source.numel:
        return names[:1]
    to, at, updates = names
    if index.numel > 1:
        # the number of the last update at each position, by a maximum, which does not depend on the order
        number = w.positions(index.numel)
        none = w.node("Expand", [w.ints([-1]), w.ints([x.shape[dim]])])
        last = w.node("ScatterElements", [none, at, number], axis=0, reduction="max")
        updates = w.node("Gather", [updates, w.node("Gather", [last, at], axis=0)], axis=dim)
    return [_scattered(w, call, [to, at, updates])]


# -- reductions, products, windows

_REDUCTIONS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin",
               "any": "ReduceMax", "all": "ReduceMin"}  # fmt: skip


def _reduce(w: Writer, call: Call, names: Names) -> Names:
    kind, dims = call.attrs["kind"], list(call.attrs["dims"])
    if not dims:
        return names
    dtype = call.type.dtype
    (x,) = names
    if dtype in ("i1", "ui8"):
        x = w.cast(x, "i32")
    found = w.node(_REDUCTIONS[kind], [x, w.ints(dims)], keepdims=0)
    if kind == "any":  # the maximum of nothing is the least number
        found = w.node("Max", [found, w.scalar(0, "i32")])
    if dtype in ("i1", "ui8"):
        return [w.cast(found, dtype)]
    if kind in ("max", "min") and dtype in ("f32", "f64"):
        bad = w.cast(w.node("IsNaN", [x]), "i32")
        bad = w.cast(w.node("ReduceMax", [bad, w.ints(dims)], keepdims=0), "i1")
        found = w.node("Where", [bad, w.scalar(float("nan"), dtype), found])
    return [found]


def _reduces(call: Call) -> bool:
    return call.attrs["kind"] not in ("argmax", "argmin") and call.attrs["dtype"] is None


def _first(w: Writer, call: Call, x: str, rank: int) -> str:
    """The value with channels first."""
    n, c, spatial = conv_dims(call.attrs["layout"], rank)
    return w.transpose(x, (n, c, *spatial))


def _back(w: Writer, call: Call, x: str) -> str:
    n, c, spatial = conv_dims(call.attrs["layout"], call.type.rank)
    order = (n, c, *spatial)
    return w.transpose(x, [order.index(d) for d in range(call.type.rank)])


def _convolution(w: Writer, call: Call, names: Names) -> Names:
    a, rank = call.attrs, call.type.rank
    x, weight = (_first(w, call, v, rank) for v in names)
    found = w.node(
        "Conv", [x, weight], strides=list(a["stride"]), pads=[*a["padding"], *a["padding"]],
        dilations=list(a["dilation"]), group=a["groups"],
    )  # fmt: skip
    return [_back(w, call, found)]


def _output_padding(call: Call) -> list[int]:
    a, (dy, weight) = call.attrs, call.operands
    _, _, spatial = conv_dims(a["layout"], call.type.rank)
    _, _, sizes = kernel_dims(a["layout"], call.type.rank)
    return [
        call.type.shape[d] - ((dy.shape[d] - 1) * s + dl * (weight.shape[k] - 1) + 1 - 2 * p)
        for d, k, s, p, dl in zip(spatial, sizes, a["stride"], a["padding"], a["dilation"])
    ]


def _convolution_input_grad(w: Writer, call: Call, names: Names) -> Names:
    a, rank = call.attrs, call.type.rank
    more = _output_padding(call)
    one, two = (_first(w, call, v, rank) for v in names)
    found = w.node(
        "ConvTranspose", [one, two], strides=list(a["stride"]), pads=[*a["padding"], *a["padding"]],
        dilations=list(a["dilation"]), group=a["groups"], output_padding=more,
    )  # fmt: skip
    return [_back(w, call, found)]


def _avg_pool(w: Writer, call: Call, names: Names) -> Names:
    a = call.attrs
    found = w.node(
        "AveragePool", [_first(w, call, names[0], call.type.rank)], kernel_shape=list(a["kernel"]),
        strides=list(a["stride"]), pads=[*a["padding"], *a["padding"]],
        count_include_pad=int(bool(a.get("count_padding"))),
    )  # fmt: skip
    return [_back(w, call, found)]


def _averages(call: Call) -> bool:
    a = call.attrs
    return windows.regular(a) and _F32(call) and a["divisor"] is None and not a["ceil_mode"]


def _max_pool(w: Writer, call: Call, names: Names) -> Names:
    a = call.attrs
    dilation = list(a["dilation"] or (1,) * len(a["kernel"]))
    high = list(a["padding"])
    if a["ceil_mode"]:  # ONNX has another rule for windows that begin beyond the input
        dims = conv_dims(a["layout"], call.type.rank)[2]
        high = [
            max(0, (call.type.shape[d] - 1) * s + by * (k - 1) + 1 - call.operands[0].shape[d] - p)
            for d, k, s, p, by in zip(dims, a["kernel"], a["stride"], a["padding"], dilation)
        ]
    found = w.node(
        "MaxPool", [_first(w, call, names[0], call.type.rank)], kernel_shape=list(a["kernel"]),
        strides=list(a["stride"]), pads=[*a["padding"], *high], dilations=dilation,
    )  # fmt: skip
    return [_back(w, call, found)]


def _max_pool_of_numbers(w: Writer, call: Call, names: Names) -> Names:
    """Write a max pooling with NaN and infinities.

    ONNX Runtime's MaxPool ignores NaN, and gives a finite number for a window of -inf. If the sum of all elements isn't
    finite, both are corrected.
    """
    (x,) = names
    (found,) = _max_pool(w, call, names)
    total = w.node("ReduceSum", [x], keepdims=0)
    finite = w.node("Less", [w.node("Abs", [total]), w.scalar(math.inf, "f32")])

    def exact() -> str:
        some = w.cast(_max_pool(w, call, [w.cast(w.node("IsNaN", [x]), "f32")])[0], "i1")
        least = w.scalar(-math.inf, "f32")
        above = w.cast(w.node("Greater", [x, least]), "f32")
        least = w.node("Where", [w.cast(_max_pool(w, call, [above])[0], "i1"), found, least])
        return w.node("Where", [some, w.scalar(math.nan, "f32"), least])

    return [w.choice(finite, lambda: w.node("Identity", [found]), exact)]


def _max_pool_with_probe(w: Writer, call: Call, names: Names) -> Names:
    """Write a max pooling, and a value that tells whether `_max_pool_of_numbers` is needed.

    An `If` would end the blocked layout of the convolutions around the pooling, and their fusions. A GlobalAveragePool
    of the pooling's input keeps both.
    """
    found = _max_pool(w, call, names)
    means = w.node("GlobalAveragePool", [_first(w, call, names[0], call.type.rank)])
    w.probes.append(w.node("ReduceSum", [means], keepdims=0))
    return found


def _pools(call: Call) -> bool:
    return windows.regular(call.attrs) and _F32(call) and call.attrs["positions"] == "none"


def _attention(w: Writer, call: Call, names: Names) -> Names:
    """Write an attention as matrix products and a softmax. Rows without keys are 0."""
    q, k = call.operands[:2]
    (b, t, heads, c), (_, keys, shared, _) = q.shape, k.shape
    rows = w.transpose(names[0], (0, 2, 1, 3))
    if shared != heads:
        rows = w.reshape(rows, (b, shared, heads // shared * t, c))
    scores = w.node("MatMul", [rows, w.transpose(names[1], (0, 2, 3, 1))])
    scores = w.node("Mul", [scores, w.scalar(float(call.attrs["scale"]), "f32")])
    if shared != heads:
        scores = w.reshape(scores, (b, heads, t, keys))
    seen, nothing = None, w.scalar(-math.inf, "f32")
    at = extras(call.operands, 3).bias
    if at is not None and call.operands[at].dtype == "i1":
        seen = names[at]
    elif at is not None:
        scores = w.node("Add", [scores, names[at]])
    if call.attrs["causal"]:
        columns, line = w.positions(keys), w.reshape(w.positions(t), (t, 1))
        before = w.node("LessOrEqual", [columns, line])
        seen = before if seen is None else w.node("And", [seen, before])
    if seen is not None:
        scores = w.node("Where", [seen, scores, nothing])
    weights = w.node("Softmax", [scores], axis=3)
    if shared != heads:
        weights = w.reshape(weights, (b, shared, heads // shared * t, keys))
    found = w.node("MatMul", [weights, w.transpose(names[2], (0, 2, 1, 3))])
    if shared != heads:
        found = w.reshape(found, (b, heads, t, c))
    if at is not None:
        some = names[at] if seen is None else seen
        if call.operands[at].dtype != "i1":
            some = w.node("Not", [w.node("Equal", [names[at], nothing])])
            some = some if seen is None else w.node("And", [some, seen])
        some = w.cast(w.node("ReduceMax", [w.cast(some, "i32"), w.ints([3])], keepdims=1), "i1")
        found = w.node("Where", [some, found, w.scalar(0.0, "f32")])
    return [w.transpose(found, (0, 2, 1, 3)), ""]


def _attends(call: Call) -> bool:
    """Whether an attention has no dropout, window or documents, and its log-sum-exp is not used."""
    found, attrs = extras(call.operands, 3), call.attrs
    unread = next(iter(call.op.results[1].uses), None) is None
    plain = not attrs["dropout"] and not attrs["window"] and found.documents is None
    return _F32(call) and plain and unread


def _identity(w: Writer, call: Call, names: Names) -> Names:
    return list(names)


def _reshape(w: Writer, call: Call, names: Sequence[str]) -> Names:
    """OpenVINO ends with a segmentation fault where a product is reshaped to no dimensions."""
    if call.type.shape or not call.operands[0].rank:
        return [w.reshape(names[0], call.type.shape)]
    return [w.node("Squeeze", [names[0], w.ints(range(call.operands[0].rank))])]


def _shaped(kind: str) -> Callable[[Writer, Call, Sequence[str]], Names]:
    return lambda w, call, names: [w.node(kind, names, axis=call.attrs["dim"])]


ROWS: dict[str, Row] = {
    **{name: _arithmetic(kind) for name, kind in {"add": "Add", "sub": "Sub", "mul": "Mul"}.items()},
    "div": Row("`Div`; of integers 0 where b is 0, by `Where`", _div),
    "maximum": _extreme("Max", "Or"),
    "minimum": _extreme("Min", "And"),
    "pow": _node("Pow", _FLOATS),
    "fmod": Row("`Mod`", lambda w, c, v: [w.node("Mod", v, fmod=1)], _FLOATS),
    "and": _bits("And", "BitwiseAnd"),
    "or": _bits("Or", "BitwiseOr"),
    "xor": _bits("Xor", "BitwiseXor"),
    "not": _bits("Not", "BitwiseNot"),
    "compare": Row("`Equal`, `Less`, `Greater`, …", _compare),
    "select": Row("`Where`; of a bound `Clip` or `Relu`", _select),
    "convert": Row("`Cast`", _convert),
    "neg": Row("`Neg`", _neg),
    **{name: _node(kind, partly=False) for name, kind in {
        "abs": "Abs", "floor": "Floor", "ceil": "Ceil", "round": "Round", "is_nan": "IsNaN",
        "is_inf": "IsInf", "sqrt": "Sqrt", "reciprocal": "Reciprocal", "exp": "Exp", "log": "Log",
        "tanh": "Tanh", "sigmoid": "Sigmoid", "sin": "Sin", "cos": "Cos",
    }.items()},
    **{name: _node(kind, _F32) for name, kind in {
        "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "asinh": "Asinh",
        "erf": "Erf",
    }.items()},
    "constant": Row("initializer, `Expand`", _constant),
    "iota": Row("initializer, `Expand`", _iota),
    "reshape": Row("`Reshape`; to no dimensions `Squeeze`", _reshape),
    "transpose": Row("`Transpose`", lambda w, c, v: [w.transpose(v[0], c.attrs["permutation"])]),
    "broadcast": Row("`Reshape`, `Expand`", _broadcast),
    "slice": Row("`Slice`", _slice),
    "pad": Row("`Pad`", _pad),
    "concatenate": Row("`Concat`", _shaped("Concat")),
    "reverse": Row("`Slice`", _reverse),
    "take": Row("`Gather`", _shaped("Gather")),
    "gather": Row("`GatherElements`", _gather),
    "index_add": Row("`ScatterElements`", _index_add),
    "index_copy": Row("`ScatterElements`, `Gather`", _index_copy),
    "reduce": Row("`ReduceSum`, `ReduceMax`, …", _reduce, _reduces),
    "matmul": _node("MatMul", partly=False),
    "convolution": Row("`Conv`", _convolution),
    "convolution_input_grad": Row("`ConvTranspose`", _convolution_input_grad),
    "max_pool": Row("`MaxPool`", _max_pool, _pools),
    "attention": Row("`MatMul`, `Softmax`", _attention, _attends),
    "avg_pool": Row("`AveragePool`", _avg_pool, _averages),
    "optimization_barrier": Row("none: its operands", _identity),
}  # fmt: skip

#: ops without float64 kernels in engines, neither for them nor for their decompositions
_F32_ONLY = frozenset(
    {
        "convolution",
        "convolution_input_grad",
        "convolution_weight_grad",
        "atan",
        "atan2",
        "asin",
        "acos",
    }
)


def _refuse(call: Call) -> str:
    if call.name in _F32_ONLY and call.type.dtype == "f64":
        return f"engines that read ONNX have no gflow.{call.name} of f64 on the CPU"
    if call.name == "convolution_input_grad" and any(map(varies, _output_padding(call))):
        return "the padding of ConvTranspose is fixed, and this one's depends on a size that varies"
    return ""


FORM = Form("ONNX", ROWS, frozenset(NUMPY), ON_RANKS, _refuse)

#: the rows for ONNX Runtime inside gflow's programs, where NaN and infinities must be as in gflow's kernels
EXACT = replace(
    FORM, rows={**ROWS, "max_pool": Row("`MaxPool`, `If`", _max_pool_of_numbers, _pools)}
)
#: the same with a probe: a faster model, whose results are used if the probe is finite
PROBED = replace(FORM, rows={**ROWS, "max_pool": Row("`MaxPool`", _max_pool_with_probe, _pools)})
