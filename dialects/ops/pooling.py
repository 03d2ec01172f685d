"""Maxima and means over windows, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..distribution.sharding import ShardingRule
from ..opdef import Attr, OpDef, VerifyError
from ..types import FLOATS, TensorType
from . import factors
from .compute import conv_dims

Types = Sequence[TensorType]
Attrs = dict[str, Any]

#: element types of positions, by what they count from
POSITIONS = {"plane": "i64", "window": "ui8"}
#: elements of a window that a byte can count
MOST_COUNTED = 256

#: what says where windows begin and end; `size` says it alone
_REGULAR = ("kernel", "stride", "padding")


def _pooled(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    """How many windows there are along one dimension; the last one begins in the input or in its left padding."""
    rest = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (rest + (stride - 1 if ceil else 0)) // stride + 1
    return count - 1 if ceil and (count - 1) * stride >= size + padding else count


def _check_entries(attrs: Attrs, spatial: int) -> None:
    for name in (*_REGULAR, "dilation", "size"):
        value = attrs.get(name)
        if value is not None and len(value) != spatial:
            raise VerifyError(f"{name} must have {spatial} entries, found {list(value)}")
        low = 0 if name in ("padding", "size") else 1
        if value is not None and any(v < low for v in value):
            raise VerifyError(f"{name} must be at least {low}, found {list(value)}")
    if attrs.get("padding") is not None:
        for k, p in zip(attrs["kernel"], attrs["padding"]):
            if 2 * p > k:
                raise VerifyError(f"a window of {k} cannot have padding of {p}: at most half of it")


def pooled_type(x: TensorType, attrs: Attrs) -> TensorType:
    """One element for each window and channel.

    Raises:
        VerifyError: the input or the windows' attributes do not fit each other.
    """
    spatial = x.rank - 2
    if spatial not in (1, 2, 3):
        raise VerifyError(f"the input must have 1, 2 or 3 spatial dimensions, found {x}")
    given = [name for name in _REGULAR if attrs.get(name) is not None]
    if (attrs.get("size") is None) != (len(given) == len(_REGULAR)) or (
        attrs.get("size") is not None and given
    ):
        raise VerifyError("windows need kernel, stride and padding, or size alone")
    _check_entries(attrs, spatial)
    _, _, dims = conv_dims(attrs["layout"], x.rank)
    if any(x.shape[d] == 0 for d in dims):
        raise VerifyError(f"the input must have something in each window, found {x}")
    if attrs.get("size") is not None:
        sizes = list(attrs["size"])
    else:
        walk = zip(
            dims,
            attrs["kernel"],
            attrs["stride"],
            attrs["padding"],
            attrs.get("dilation") or (1,) * spatial,
        )
        ceil = bool(attrs.get("ceil_mode"))
        sizes = [_pooled(x.shape[d], k, s, p, dl, ceil) for d, k, s, p, dl in walk]
        if min(sizes) < 1:
            raise VerifyError(f"the window {list(attrs['kernel'])} is larger than the padded {x}")
    shape = list(x.shape)
    for d, size in zip(dims, sizes):
        shape[d] = size
    return TensorType(tuple(shape), x.dtype)


def _max_pool(operands: Types, attrs: Attrs) -> list[TensorType]:
    (x,) = operands
    if x.dtype == "i1" or x.dtype.startswith("complex"):
        raise VerifyError(f"element type {x.dtype} has no order")
    result, positions = pooled_type(x, attrs), attrs["positions"]
    if positions == "none":
        return [result]
    if positions == "window":
        _check_counted(attrs)
    return [result, TensorType(result.shape, POSITIONS[positions])]


def _check_counted(attrs: Attrs) -> None:
    """Whether a byte holds the number of an element in its window."""
    if attrs.get("size") is not None or prod(attrs["kernel"]) > MOST_COUNTED:
        raise VerifyError(
            f"positions in windows need a kernel of at most {MOST_COUNTED} elements, found "
            f"{attrs.get('kernel') or 'size'}"
        )


def _avg_pool(operands: Types, attrs: Attrs) -> list[TensorType]:
    (x,) = operands
    if x.dtype not in FLOATS:
        raise VerifyError(f"element type {x.dtype} is not one of {', '.join(FLOATS)}")
    if attrs.get("divisor") == 0:
        raise VerifyError("divisor must not be 0")
    return [pooled_type(x, attrs)]


def _input(dy: TensorType, attrs: Attrs) -> TensorType:
    """The type of the input whose gradient it is."""
    x = TensorType(tuple(attrs["shape"]), dy.dtype)
    if x.rank != dy.rank or pooled_type(x, attrs) != dy:
        raise VerifyError(f"pooling of {x} does not give {dy}")
    return x


def _max_pool_grad(operands: Types, attrs: Attrs) -> list[TensorType]:
    dy, positions = operands
    if positions.shape != dy.shape or positions.dtype not in POSITIONS.values():
        raise VerifyError(f"positions must be {TensorType(dy.shape, 'i64')}, found {positions}")
    if positions.dtype == POSITIONS["window"]:
        _check_counted(attrs)
    return [_input(dy, attrs)]


def _avg_pool_grad(operands: Types, attrs: Attrs) -> list[TensorType]:
    (dy,) = operands
    x = _input(dy, attrs)
    _avg_pool([x], attrs)
    return [x]


_WINDOWS = {
    "kernel": Attr("i64[]", "window sizes; this and the following arrays have one entry for each spatial dimension", optional=True),
    "stride": Attr("i64[]", "distance between windows", optional=True),
    "padding": Attr("i64[]", "positions before the first element and after the last", optional=True),
    "ceil_mode": Attr("bool", "whether the last window may extend beyond the padding", optional=True),
    "size": Attr("i64[]", "for adaptive pooling, instead of `kernel`, `stride` and `padding`: the number of windows; "
"window i of n has the elements from floor(i * size / n) up to ceil((i + 1) * size / n)", optional=True),
    "layout": Attr("str", "channels first or last", choices=("NC*", "N*C")),
}  # fmt: skip
_DILATION = {"dilation": Attr("i64[]", "distance between the elements of a window", optional=True)}
_MAX = {**_WINDOWS, **_DILATION}
_AVG = {
    **_WINDOWS,
    "count_padding": Attr("bool", "whether the mean includes padding, as zeros", optional=True),
    "divisor": Attr(
        "i64", "the divisor of the sums; without it the number of elements", optional=True
    ),
}
_SHAPE = {"shape": Attr("i64[]", "the input's shape")}

OPS: tuple[OpDef, ...] = (
    OpDef("max_pool", "pooling",
          "The maximum of each window and channel and, if `positions` asks for it, its position. Of "
"equal elements the first counts, of NaNs the last", ("x",),
          {**_MAX, "positions": Attr("str", "the second result: none, row-major positions in the channel's plane (i64), or in the "
"window, which then has at most 256 elements (ui8)", choices=("none", "plane", "window"))}, results=None, infer=_max_pool,
          cost=8, amp="clear", mixed=True,
          sharding=ShardingRule(factors.pooling())),
    OpDef("max_pool_grad", "pooling", "The gradient of `max_pool` with respect to its input, which has `shape`, from the "
"positions of the maxima",
          ("dy", "positions"), {**_MAX, **_SHAPE}, infer=_max_pool_grad, cost=8, amp="clear",
          sharding=ShardingRule(factors.pooling((0,)))),
    OpDef("avg_pool", "pooling", "The mean of each window, by channel", ("x",), _AVG, infer=_avg_pool, cost=8, amp="promote",
          sharding=ShardingRule(factors.pooling((0,)))),
    OpDef("avg_pool_grad", "pooling", "The gradient of `avg_pool` with respect to its input, which has `shape`", ("dy",), {**_AVG, **_SHAPE},
          infer=_avg_pool_grad, cost=8,
          sharding=ShardingRule(factors.pooling((0,)))),
)  # fmt: skip
