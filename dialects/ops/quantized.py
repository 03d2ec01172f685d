"""Products with weights of few bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..opdef import Attr, OpDef, VerifyError
from ..types import TensorType

#: elements of a weight that share a scale where they have 4 bits; K is always a multiple of it
GROUP = 32
BITS = (8, 4)


def weight_types(rows: int, k: int, bits: int) -> tuple[TensorType, TensorType]:
    """The types of a weight [rows, k] in so many bits, and of its scales."""
    if bits == 8:
        return TensorType((rows, k), "i8"), TensorType((rows, 1), "f32")
    return TensorType((rows, k // 2), "ui8"), TensorType((rows, k // GROUP), "f32")


def _quantized_matmul(operands: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    x, weight, scales, error = operands
    bits = attrs["bits"]
    if bits not in BITS:
        raise VerifyError(f"weights have {' or '.join(map(str, BITS))} bits, found {bits}")
    if x.rank != 2 or x.dtype != "f32" or weight.rank != 2:
        raise VerifyError(
            f"x must be [M, K] of f32 and the weight a matrix, found {x} and {weight}"
        )
    rows, k = weight.shape[0], x.shape[1]
    if k % GROUP:
        raise VerifyError(f"K must be a multiple of {GROUP}, found {k}")
    wanted = weight_types(rows, k, bits)
    if (weight, scales) != wanted or error != TensorType((), "f32"):
        raise VerifyError(
            f"weight, scales and error must be {wanted[0]}, {wanted[1]} and f32, found {weight}, {scales} and {error}"
        )
    return [TensorType((x.shape[0], rows), "f32")]


OPS: tuple[OpDef, ...] = (
    OpDef("quantized_matmul", "quantized",
          "x times the transpose of a weight in 8 or 4 bits: `weight` times `scales`. i8: one scale for each row. 4 bits: one for "
          "each 32 of a row, whose elements, 8 added, are the lower (the first 16) and upper halves of 16 bytes. Sums are of float32",
          ("x", "weight", "scales", "error"),
          {"bits": Attr("i64", "of an element of the weight"),
           "source": Attr("str", "what the weight was made from; `error` says how far from it it is, "
                          "‖w - w'‖ / ‖w‖, and is not computed with", optional=True)},
          infer=_quantized_matmul, cost=64),
)  # fmt: skip
