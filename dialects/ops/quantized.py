"""Products with weights of few bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..opdef import Attr, OpDef, VerifyError
from ..types import TensorType

#: elements of a weight that share a scale where they have 4 bits; K is always a multiple of it
GROUP = 32
#: the number of outputs whose weights are contiguous, for each position of K
STRIP = 64
#: the number of contiguous positions of K with 4 bits, in 4 bytes
WORD = 8
BITS = (8, 4)


def weight_types(columns: int, k: int, bits: int) -> tuple[TensorType, TensorType]:
    """The types of a weight of so many outputs and positions of K in so many bits, and of its scales."""
    strips = -(-columns // STRIP)
    scales = STRIP if bits == 8 else k // GROUP * STRIP
    weight = TensorType((strips, k * STRIP * bits // 8), "i8" if bits == 8 else "ui8")
    return weight, TensorType((strips, scales), "f32")


def _quantized_matmul(operands: Sequence[TensorType], attrs: dict[str, Any]) -> list[TensorType]:
    x, weight, scales, error = operands
    bits, columns = attrs["bits"], attrs["columns"]
    if bits not in BITS:
        raise VerifyError(f"weights have {' or '.join(map(str, BITS))} bits, found {bits}")
    if x.rank != 2 or x.dtype != "f32" or columns < 1:
        raise VerifyError(f"x must be [M, K] of f32, and columns positive, found {x} and {columns}")
    if x.shape[1] % GROUP:
        raise VerifyError(f"K must be a multiple of {GROUP}, found {x.shape[1]}")
    wanted = weight_types(columns, x.shape[1], bits)
    if (weight, scales) != wanted or error != TensorType((), "f32"):
        raise VerifyError(
            f"weight, scales and error must be {wanted[0]}, {wanted[1]} and f32, found {weight}, {scales} and {error}"
        )
    return [TensorType((x.shape[0], columns), "f32")]


OPS: tuple[OpDef, ...] = (
    OpDef("quantized_matmul", "quantized",
          "x times the transpose of a weight in 8 or 4 bits: `weight` times `scales`. In strips of 64 outputs, the outputs are "
          "contiguous for each position of K. i8: one scale for each output. 4 bits: one scale for each 32 positions of K; a byte "
          "has two positions with 8 added, the first in its lower bits, and four bytes of an output are contiguous",
          ("x", "weight", "scales", "error"),
          {"bits": Attr("i64", "the bits of an element of the weight"), "columns": Attr("i64", "the number of outputs, without the padding of the last strip"),
           "source": Attr("str", "the origin of the weight. The operand `error` is the relative error of the quantized weight, "
                          "‖w - w'‖ / ‖w‖, and no kernel reads it", optional=True)},
          infer=_quantized_matmul, cost=64),
)  # fmt: skip
