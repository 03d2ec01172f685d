"""Reductions, contractions, convolutions and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..distribution.sharding import ShardingRule
from ..opdef import Attr, OpDef, VerifyError
from ..types import FLOATS, TensorType
from . import factors
from .shape import check_dim

Types = Sequence[TensorType]
Attrs = dict[str, Any]

#: by kind of a reduction, the op that combines two of its elements
COMBINED_BY = {
    "sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and",
}  # fmt: skip
REDUCE_KINDS = (*COMBINED_BY, "argmax", "argmin")
RANDOM_KINDS = ("uniform", "normal", "bits")


def _reduce(operands: Types, attrs: Attrs) -> list[TensorType]:
    (x,) = operands
    dims, kind = attrs["dims"], attrs["kind"]
    if list(dims) != sorted(set(dims)):
        raise VerifyError(f"dims must be strictly increasing, found {list(dims)}")
    if dims and x.rank == 0:
        raise VerifyError("a tensor of rank 0 has no dimensions to reduce")
    for d in dims:
        check_dim(d, x.rank)
    if kind in ("any", "all") and x.dtype != "i1":
        raise VerifyError(f"kind {kind} needs element type i1, found {x.dtype}")
    if kind in ("max", "min", "argmax", "argmin") and any(x.shape[d] == 0 for d in dims):
        raise VerifyError(f"kind {kind} has no value over zero elements")
    if kind in ("argmax", "argmin") and len(dims) != 1:
        raise VerifyError(f"kind {kind} reduces one dimension, found {list(dims)}")
    dtype = "i64" if kind in ("argmax", "argmin") else x.dtype
    if attrs.get("dtype") is not None:
        if (kind, x.dtype, attrs["dtype"]) != ("sum", "f32", "f64"):
            raise VerifyError(
                f"a sum of f32 may be given as f64, not a {kind} of {x.dtype} as {attrs['dtype']}"
            )
        dtype = "f64"
    return [TensorType(tuple(s for d, s in enumerate(x.shape) if d not in dims), dtype)]


def _partial_sums(operands: Types, attrs: Attrs) -> list[TensorType]:
    (x,) = operands
    run = attrs["run"]
    if x.rank < 2 or x.dtype not in FLOATS:
        raise VerifyError(f"x must have rows of floats, found {x}")
    if run < 1:
        raise VerifyError(f"run must be at least 1, found {run}")
    rows = prod(x.shape[:-1])
    return [TensorType((-(-rows // run), x.shape[-1]), x.dtype)]


def _softmax_runs(operands: Types, attrs: Attrs) -> list[TensorType]:
    x, index = operands
    run = attrs["run"]
    if x.rank != 2 or x.dtype != "f32":
        raise VerifyError(f"x must be a matrix of f32, found {x}")
    if index.shape != x.shape[:1] or index.dtype not in ("i64", "i32"):
        raise VerifyError(
            f"there must be one index, i64 or i32, for each row of {x}, found {index}"
        )
    if run < 1 or not x.shape[1]:
        raise VerifyError(f"run must be at least 1, and rows not empty, found {run} and {x}")
    of_runs = TensorType((-(-x.shape[1] // run), x.shape[0]), "f32")
    return [x, of_runs, of_runs, TensorType(x.shape[:1], "f32")]


def _scaled_matmul(operands: Types, attrs: Attrs) -> list[TensorType]:
    a, b, scale = operands
    run = attrs["run"]
    found = _matmul([a, b], attrs)
    if a.rank != 2 or a.dtype not in FLOATS:
        raise VerifyError(f"operands must be matrices of floats, found {a}")
    if run < 1:
        raise VerifyError(f"run must be at least 1, found {run}")
    cut, kept = a.shape[::-1] if attrs["along"] == "columns" else a.shape
    want = TensorType((-(-cut // run), kept), "f32")
    if scale != want:
        raise VerifyError(f"the scale must be {want}, found {scale}")
    return found


def _matmul(operands: Types, attrs: Attrs) -> list[TensorType]:
    a, b = operands
    if a.rank < 2 or a.rank != b.rank or a.shape[:-2] != b.shape[:-2] or a.dtype != b.dtype:
        raise VerifyError(
            f"operands must be [..., M, K] and [..., K, N] with equal batch dimensions and types, found {a} and {b}"
        )
    if a.shape[-1] != b.shape[-2]:
        raise VerifyError(
            f"the contracted dimensions differ: {a.shape[-1]} in {a}, {b.shape[-2]} in {b}"
        )
    return [TensorType((*a.shape[:-1], b.shape[-1]), a.dtype)]


def conv_dims(layout: str, rank: int) -> tuple[int, int, tuple[int, ...]]:
    """The batch, channel and spatial dimensions of an activation in `layout` ("NC*" or "N*C")."""
    if layout == "NC*":
        return 0, 1, tuple(range(2, rank))
    return 0, rank - 1, tuple(range(1, rank - 1))


def kernel_dims(layout: str, rank: int) -> tuple[int, int, tuple[int, ...]]:
    """The output-channel, input-channel and spatial dimensions of a weight: OI* under "NC*", O*I under "N*C"."""
    return conv_dims(layout, rank)


def _conv_attrs(x: TensorType, attrs: Attrs) -> int:
    spatial = x.rank - 2
    if spatial < 1:
        raise VerifyError(f"operands need at least one spatial dimension, found {x}")
    for name in ("stride", "padding", "dilation"):
        if len(attrs[name]) != spatial:
            raise VerifyError(
                f"{name} must have {spatial} entries for {x}, found {list(attrs[name])}"
            )
    if (
        attrs["groups"] < 1
        or min(attrs["stride"]) < 1
        or min(attrs["dilation"]) < 1
        or min(attrs["padding"]) < 0
    ):
        raise VerifyError("groups, stride and dilation must be at least 1 and padding at least 0")
    return spatial


def _activation(layout: str, n: int, c: int, spatial: Sequence[int], dtype: str) -> TensorType:
    return TensorType((n, c, *spatial) if layout == "NC*" else (n, *spatial, c), dtype)


def conv_out(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Output positions of a convolution along one dimension."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _convolution(operands: Types, attrs: Attrs) -> list[TensorType]:
    x, w = operands
    _conv_attrs(x, attrs)
    layout = attrs["layout"]
    if w.rank != x.rank or w.dtype != x.dtype:
        raise VerifyError(
            f"input and weight must agree in rank and element type, found {x} and {w}"
        )
    n, c, sp = conv_dims(layout, x.rank)
    o, i, ksp = kernel_dims(layout, w.rank)
    if x.shape[c] != w.shape[i] * attrs["groups"] or w.shape[o] % attrs["groups"]:
        raise VerifyError(
            f"{x.shape[c]} input channels do not fit weight {w} with groups = {attrs['groups']}"
        )
    out = [
        conv_out(x.shape[d], w.shape[k], s, p, dl)
        for d, k, s, p, dl in zip(sp, ksp, attrs["stride"], attrs["padding"], attrs["dilation"])
    ]
    if min(out) < 0:
        raise VerifyError(f"the kernel of {w} is larger than the padded input {x}")
    return [_activation(layout, x.shape[n], w.shape[o], out, x.dtype)]


def _conv_input_grad(operands: Types, attrs: Attrs) -> list[TensorType]:
    dy, w = operands
    _conv_attrs(dy, attrs)
    shape = tuple(attrs["shape"])
    if _convolution([TensorType(shape, dy.dtype), w], attrs)[0] != dy:
        raise VerifyError(
            f"a convolution of {TensorType(shape, dy.dtype)} with {w} does not give {dy}"
        )
    return [TensorType(shape, dy.dtype)]


def _conv_weight_grad(operands: Types, attrs: Attrs) -> list[TensorType]:
    x, dy = operands
    _conv_attrs(dy, attrs)
    shape = tuple(attrs["shape"])
    if _convolution([x, TensorType(shape, dy.dtype)], attrs)[0] != dy:
        raise VerifyError(
            f"a convolution of {x} with {TensorType(shape, dy.dtype)} does not give {dy}"
        )
    return [TensorType(shape, dy.dtype)]


def _random(operands: Types, attrs: Attrs) -> list[TensorType]:
    (rng,) = operands
    if rng != TensorType((2,), "i64"):
        raise VerifyError(f"the generator state must be tensor<2xi64> (seed, offset), found {rng}")
    kind, dtype = attrs["kind"], attrs["dtype"]
    if (dtype in FLOATS) == (kind == "bits"):
        raise VerifyError(f"kind {kind} does not give element type {dtype}")
    return [TensorType(tuple(attrs["shape"]), dtype)]


_CONV_ATTRS = {
    "stride": Attr("i64[]", "one entry for each spatial dimension"),
    "padding": Attr("i64[]", "zeros on both sides, one entry for each spatial dimension"),
    "dilation": Attr("i64[]", "one entry for each spatial dimension"),
    "groups": Attr("i64", "channel groups"),
    "layout": Attr(
        "str", "channels first (weights OI*) or last (weights O*I)", choices=("NC*", "N*C")
    ),
}

OPS: tuple[OpDef, ...] = (
    OpDef("reduce", "reduction",
          "Reduces x along `dims`, which are removed. Over zero elements sum gives 0, prod 1, any "
"false and all true. max and min propagate NaN. argmax and argmin give the first position, "
"as i64. With `dtype`, a sum of f32 elements is returned as it was accumulated, not rounded"
" to f32",
          ("x",), {"kind": Attr("str", "the combiner", choices=REDUCE_KINDS), "dims": Attr("i64[]", "strictly increasing"),
                   "dtype": Attr("str", "the result's element type, where it is not x's: f64", optional=True)},
          infer=_reduce, amp_kinds=dict.fromkeys(("max", "min", "argmax", "argmin"), "clear"),
          sharding=ShardingRule(factors.reduce)),
    OpDef("partial_sums", "reduction",
          "Sums of blocks of `run` rows of x. All dimensions but the last count as one dimension of "
"rows. The last block may have fewer rows",
          ("x",), {"run": Attr("i64", "rows in a block")}, infer=_partial_sums),
    OpDef("softmax_runs", "reduction",
          "The parts of a softmax over runs of `run` columns, part of the kernel of a matrix product on a GPU: exp(x - m) "
"with the maxima m of each row's runs (at least the lowest finite number), these maxima, the sums of the exponentials "
"of each run, and x at column `index` of each row, clamped into range. Maxima and sums have a row for each run. The "
"last run may be shorter",
          ("x", "index"), {"run": Attr("i64", "columns in a run")}, results=4, infer=_softmax_runs, cost=4),
    OpDef("matmul", "contraction", "Matrix product of [..., M, K] and [..., K, N]. Half-precision products accumulate in "
"float32", ("a", "b"), infer=_matmul, cost=64, amp="allow",
          sharding=ShardingRule("... m k, ... k n -> ... m n", ((0,), (1,)))),
    OpDef("scaled_matmul", "contraction",
          "Matrix product of a, each element of which is first multiplied by the scale of its run and rounded to a's type, "
"and b, on a GPU. Columns of a (or rows) are cut into runs of `run`; the scale has a row for each run, and a column for "
"each row (or column) of a", ("a", "b", "scale"),
          {"run": Attr("i64", "columns, or rows, in a run"), "along": Attr("str", "what is cut into runs", choices=("columns", "rows"))},
          infer=_scaled_matmul, cost=64),
    OpDef("convolution", "convolution", "Cross-correlation of an activation with a weight", ("x", "weight"), _CONV_ATTRS,
          infer=_convolution, cost=64, amp="allow",
          sharding=ShardingRule(factors.convolution)),
    OpDef("convolution_input_grad", "convolution", "The gradient of `convolution` with respect to its input, which has `shape`", ("dy", "weight"),
          {**_CONV_ATTRS, "shape": Attr("i64[]", "the input's shape")}, infer=_conv_input_grad, cost=64, amp="allow",
          sharding=ShardingRule(factors.convolution_input_grad)),
    OpDef("convolution_weight_grad", "convolution", "The gradient of `convolution` with respect to its weight, which has `shape`", ("x", "dy"),
          {**_CONV_ATTRS, "shape": Attr("i64[]", "the weight's shape")}, infer=_conv_weight_grad, cost=64, amp="allow",
          sharding=ShardingRule(factors.convolution_weight_grad)),
    OpDef("random", "random",
          "Stateless random numbers (Philox 4x32-10, docs/random.md). Element i depends only on "
"(seed, offset, stream, i). They are uniform in [0, 1), standard normal, or raw bits", ("rng",),
          {"kind": Attr("str", "the distribution", choices=RANDOM_KINDS), "stream": Attr("i64", "a number that distinguishes the random ops of one step"),
           "shape": Attr("i64[]", "the result's shape"), "dtype": Attr("str", "the element type")}, infer=_random, cost=32,
          sharding=ShardingRule(factors.random)),
)  # fmt: skip
