"""Shape and layout ops, constants and indexing. Those that only rename positions become views in memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..distribution.sharding import ShardingRule
from ..extents import is_ordered
from ..opdef import Attr, OpDef, VerifyError
from ..types import TensorType, counted
from . import factors

Types = Sequence[TensorType]
Attrs = dict[str, Any]


def check_dim(dim: int, rank: int, what: str = "dim") -> None:
    """Raises VerifyError: `dim` is not in [0, rank). what: the attribute's name."""
    if not 0 <= dim < rank:
        raise VerifyError(f"{what} {dim} is out of range for rank {rank}")


def _constant(operands: Types, attrs: Attrs) -> list[TensorType]:
    return [attrs["value"]]


def _iota(operands: Types, attrs: Attrs) -> list[TensorType]:
    shape, dim = attrs["shape"], attrs["dim"]
    if shape or dim:  # that of a scalar is 0
        check_dim(dim, len(shape))
    return [TensorType(tuple(shape), attrs["dtype"])]


def _reshape(operands: Types, attrs: Attrs) -> list[TensorType]:
    (x,) = operands
    shape = tuple(attrs["shape"])
    if prod(shape) != x.numel:
        raise VerifyError(
            f"cannot reshape {x} ({counted(x.numel)} elements) to {list(shape)} ({counted(prod(shape))} elements)"
        )
    return [TensorType(shape, x.dtype)]


def _transpose(operands: Types, attrs: Attrs) -> list[TensorType]:
    (x,) = operands
    perm = attrs["permutation"]
    if sorted(perm) != list(range(x.rank)):
        raise VerifyError(f"{list(perm)} is not a permutation of the {x.rank} dimensions of {x}")
    return [TensorType(tuple(x.shape[p] for p in perm), x.dtype)]


def _broadcast(operands: Types, attrs: Attrs) -> list[TensorType]:
    (x,) = operands
    shape, dims = tuple(attrs["shape"]), attrs["dims"]
    if len(dims) != x.rank:
        raise VerifyError(
            f"dims must name a result dimension for each of the {x.rank} dimensions of {x}, found {list(dims)}"
        )
    if list(dims) != sorted(set(dims)):
        raise VerifyError(f"dims must be strictly increasing, found {list(dims)}")
    for size, d in zip(x.shape, dims):
        check_dim(d, len(shape), "result dimension")
        if size not in (1, shape[d]):
            raise VerifyError(
                f"a dimension of size {size} cannot be broadcast to size {shape[d]} (result dimension {d})"
            )
    return [TensorType(shape, x.dtype)]


def _slice(operands: Types, attrs: Attrs) -> list[TensorType]:
    (x,) = operands
    starts, limits, strides = attrs["starts"], attrs["limits"], attrs["strides"]
    if not len(starts) == len(limits) == len(strides) == x.rank:
        raise VerifyError(f"starts, limits and strides must each have {x.rank} entries for {x}")
    shape = []
    for size, lo, hi, step in zip(x.shape, starts, limits, strides):
        if not (is_ordered(0, lo, hi, size) and step >= 1):
            raise VerifyError(
                f"slice [{lo}:{hi}:{step}] is out of range for a dimension of size {size}"
            )
        shape.append(-(-(hi - lo) // step))
    return [TensorType(tuple(shape), x.dtype)]


def _pad(operands: Types, attrs: Attrs) -> list[TensorType]:
    x, value = operands
    low, high = attrs["low"], attrs["high"]
    if (
        len(low) != x.rank
        or len(high) != x.rank
        or not all(is_ordered(0, n) for n in [*low, *high])
    ):
        raise VerifyError(f"low and high must each have {x.rank} non-negative entries for {x}")
    if value != TensorType((), x.dtype):
        raise VerifyError(f"the padding value must be {TensorType((), x.dtype)}, found {value}")
    return [TensorType(tuple(a + b + c for a, b, c in zip(low, x.shape, high)), x.dtype)]


def _concatenate(operands: Types, attrs: Attrs) -> list[TensorType]:
    if not operands:
        raise VerifyError("needs at least one operand")
    dim, first = attrs["dim"], operands[0]
    if first.rank == 0:
        raise VerifyError("cannot concatenate tensors of rank 0")
    check_dim(dim, first.rank)
    for x in operands:
        if (
            x.dtype != first.dtype
            or x.shape[:dim] != first.shape[:dim]
            or x.shape[dim + 1 :] != first.shape[dim + 1 :]
        ):
            raise VerifyError(f"operands must agree but for dimension {dim}: found {first} and {x}")
    total = sum(x.shape[dim] for x in operands)
    return [TensorType((*first.shape[:dim], total, *first.shape[dim + 1 :]), first.dtype)]


def _reverse(operands: Types, attrs: Attrs) -> list[TensorType]:
    for d in attrs["dims"]:
        check_dim(d, operands[0].rank)
    return [operands[0]]


def _take(operands: Types, attrs: Attrs) -> list[TensorType]:
    x, index = operands
    dim = attrs["dim"]
    if x.rank == 0:
        raise VerifyError("cannot take from a tensor of rank 0")
    check_dim(dim, x.rank)
    _check_index(index)
    return [TensorType((*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]), x.dtype)]


def _gather(operands: Types, attrs: Attrs) -> list[TensorType]:
    x, index = operands
    dim = attrs["dim"]
    if x.rank or dim:  # of a scalar it is 0, as in PyTorch
        check_dim(dim, x.rank)
    _check_index(index)
    if index.rank != x.rank or any(
        i > s for d, (i, s) in enumerate(zip(index.shape, x.shape)) if d != dim
    ):
        raise VerifyError(f"the index {index} does not fit {x} along dimension {dim}")
    return [TensorType(index.shape, x.dtype)]


def _index_add(operands: Types, attrs: Attrs) -> list[TensorType]:
    x, index, source = operands
    dim = attrs["dim"]
    check_dim(dim, x.rank)
    _check_index(index)
    want = TensorType((*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]), x.dtype)
    if source != want:
        raise VerifyError(f"the source must be {want}, found {source}")
    return [x]


def _index_copy(operands: Types, attrs: Attrs) -> list[TensorType]:
    x, index, source = operands
    dim = attrs["dim"]
    check_dim(dim, x.rank)
    _check_index(index)
    if index.rank != 1:
        raise VerifyError(f"the index must have one dimension, found {index}")
    want = TensorType((*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]), x.dtype)
    if source != want:
        raise VerifyError(f"the source must be {want}, found {source}")
    return [x]


def _put(operands: Types, attrs: Attrs) -> list[TensorType]:
    x, index, source = operands
    _check_index(index)
    if x.rank != 2 or index.shape != x.shape[:1]:
        raise VerifyError(f"x must be a matrix with one index for each row, found {x} and {index}")
    want = TensorType(x.shape[:1], x.dtype)
    if source != want:
        raise VerifyError(f"the source must be {want}, found {source}")
    return [x]


def _check_index(index: TensorType) -> None:
    if index.dtype not in ("i64", "i32"):
        raise VerifyError(f"indices must be i64 or i32, found {index.dtype}")


_DIM = Attr("i64", "the dimension")

OPS: tuple[OpDef, ...] = (
    OpDef("constant", "constant", "A constant. A scalar is a splat of the full shape", (),
          {"value": Attr("elements", "the value, of the result's type")}, infer=_constant, cost=0,
          sharding=ShardingRule(factors.constant)),
    OpDef("iota", "constant", "The position along `dim`, as `dtype`", (),
          {"shape": Attr("i64[]", "the result's shape"), "dim": _DIM, "dtype": Attr("str", "the element type")},
          infer=_iota,
          sharding=ShardingRule(factors.constant)),
    OpDef("reshape", "shape", "The same elements, in row-major order, in another shape", ("x",),
          {"shape": Attr("i64[]", "the result's shape")}, infer=_reshape, amp="clear", cost=0,
          sharding=ShardingRule(factors.reshape)),
    OpDef("transpose", "shape", "Permutes dimensions: result dimension i is operand dimension permutation[i]", ("x",),
          {"permutation": Attr("i64[]", "one operand dimension for each result dimension")}, infer=_transpose, amp="clear", cost=0,
          sharding=ShardingRule(factors.transpose)),
    OpDef("broadcast", "shape",
          "Operand dimension i becomes result dimension dims[i]. Dimensions of size 1 and missing "
"dimensions are repeated", ("x",),
          {"shape": Attr("i64[]", "the result's shape"), "dims": Attr("i64[]", "strictly increasing")},
          infer=_broadcast, amp="clear", cost=0,
          sharding=ShardingRule(factors.broadcast)),
    OpDef("slice", "shape", "x[starts:limits:strides] in every dimension", ("x",),
          {"starts": Attr("i64[]", "first positions"), "limits": Attr("i64[]", "positions after the last"),
           "strides": Attr("i64[]", "steps, at least 1")}, infer=_slice, amp="clear", cost=0,
          sharding=ShardingRule(factors.slices)),
    OpDef("pad", "shape", "Pads x with `low` copies of `value` before and `high` copies after it, for each dimension", ("x", "value"),
          {"low": Attr("i64[]", "elements before"), "high": Attr("i64[]", "elements after")}, infer=_pad, amp="clear",
          sharding=ShardingRule(factors.pad)),
    OpDef("concatenate", "shape", "Concatenates the operands along `dim`", ("*xs",), {"dim": _DIM}, infer=_concatenate, amp="clear",
          mixed=True,
          sharding=ShardingRule(factors.concatenate)),
    OpDef("reverse", "shape", "Reverses x along `dims`", ("x",), {"dims": Attr("i64[]", "the dimensions")}, infer=_reverse, amp="clear",
          sharding=ShardingRule(factors.reverse)),
    OpDef("take", "indexing", "Slices of x along `dim` at `index`, as in an embedding look-up. Negative indices are not "
"allowed",
          ("x", "index"), {"dim": _DIM}, infer=_take, amp="clear",
          sharding=ShardingRule(factors.take)),
    OpDef("gather", "indexing", "x[.., index[i.., k, ..], ..] along `dim`, as in `torch.gather`", ("x", "index"), {"dim": _DIM},
          infer=_gather, amp="clear",
          sharding=ShardingRule(factors.gather)),
    OpDef("index_add", "indexing", "x plus the slices of `source`, added along `dim` at `index`. Repeated indices accumulate",
          ("x", "index", "source"), {"dim": _DIM}, infer=_index_add,
          sharding=ShardingRule(factors.index_add)),
    OpDef("put", "indexing", "x with an element of `source` in each row, at the column that `index` has for the row, on a GPU. "
"Indices out of range change nothing. It may be written over x itself", ("x", "index", "source"), infer=_put),
    OpDef("index_copy", "indexing", "x with the slices of `source` written along `dim` at `index`, in order: of equal indices the last "
"counts. It may be written over x itself", ("x", "index", "source"), {"dim": _DIM}, infer=_index_copy, amp="clear",
          sharding=ShardingRule(factors.index_copy)),
)  # fmt: skip
