"""Products with weights that were packed beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from ..opdef import Attr, OpDef, VerifyError
from ..types import TensorType
from .compute import conv_out


def strip_of(weight: TensorType, k: int) -> int:
    """Outputs of a strip of a packed weight [strips, K * outputs of a strip]."""
    return weight.shape[1] // k if k else 0


def packed_k(x: TensorType, attrs: Mapping[str, Any]) -> int:
    """K, over which a packed product of `x` sums: channels at all positions of the kernel, or one channel."""
    return prod(attrs["kernel"]) * (1 if attrs.get("depthwise") else x.shape[-1])


def _packed_product(operands: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    x, weight = operands
    columns, kernel = attrs["columns"], attrs["kernel"]
    rank = len(kernel)
    if any(len(attrs[name]) != rank for name in ("stride", "padding", "dilation")):
        raise VerifyError(f"stride, padding and dilation must have {rank} entries, as kernel")
    if x.rank < 2 or (rank and x.rank != rank + 2) or x.dtype != "f32":
        wanted = "[…, K]" if not rank else "[N, spatial dimensions…, C]"
        raise VerifyError(f"x must be {wanted} of f32, found {x}")
    if columns < 1 or min([*kernel, *attrs["stride"], *attrs["dilation"]], default=1) < 1:
        raise VerifyError("columns, kernel, stride and dilation must be positive")
    if min(attrs["padding"], default=0) < 0:
        raise VerifyError(f"padding must be at least 0, found {list(attrs['padding'])}")
    if attrs.get("depthwise") and (not rank or columns != x.shape[-1]):
        raise VerifyError(
            "a depthwise convolution has a kernel, and as many columns as x has channels"
        )
    k = packed_k(x, attrs)
    strip = strip_of(weight, k) if weight.rank == 2 else 0
    if not strip or weight != TensorType((-(-columns // strip), k * strip), "f32"):
        raise VerifyError(
            f"weight must be [strips, K * outputs of a strip] of f32 for {columns} columns and K = {k}, found {weight}"
        )
    if not rank:
        return [TensorType((*x.shape[:-1], columns), "f32")]
    moved = (attrs[name] for name in ("stride", "padding", "dilation"))
    spatial = [conv_out(*sizes) for sizes in zip(x.shape[1:-1], kernel, *moved)]
    if min(spatial) < 0:
        raise VerifyError(f"the kernel {list(kernel)} is larger than the padded input {x}")
    return [TensorType((x.shape[0], *spatial, columns), "f32")]


OPS: tuple[OpDef, ...] = (
    OpDef("packed_product", "contraction",
          "x times the transpose of a packed weight, or a channels-last convolution of x with one. The weight consists of strips of "
          "outputs, which are contiguous for each position of K; the last strip is padded with zeros. K is the last dimension of "
          "x; in a convolution, all positions of the kernel, each with all channels",
          ("x", "weight"),
          {"columns": Attr("i64", "outputs"), "kernel": Attr("i64[]", "spatial sizes of the kernel; empty for a product of matrices"),
           "stride": Attr("i64[]", "strides of the window"), "padding": Attr("i64[]", "zeros on both sides"), "dilation": Attr("i64[]", "dilations of the window"),
           "depthwise": Attr("bool", "each output reads only its own channel", optional=True)},
          infer=_packed_product, cost=64),
)  # fmt: skip
