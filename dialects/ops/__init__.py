"""The table of all ops of the dialect; a file for each family.

attention     scaled dot product attention and its gradients
compute       reductions, contractions, convolutions and random numbers
distribution  collectives: ops in which all ranks of a group take part, and what a rank knows of its place
elementwise   elementwise ops: every operand and the result have one shape
factors       sharding rules that depend on shapes or attributes
packed        products with weights that were packed beforehand
pooling       maxima and means over windows, and their gradients
quantized     products with weights of few bits
shape         shape and layout ops, constants and indexing
sharding      where the author says how ranks are to hold a value
structure     regions and the escape hatch
"""

from __future__ import annotations

from ..opdef import OpDef
from . import (
    attention,
    compute,
    distribution,
    elementwise,
    packed,
    pooling,
    quantized,
    shape,
    sharding,
    structure,
)

OPS: dict[str, OpDef] = {
    op.name: op
    for family in (
        elementwise,
        shape,
        compute,
        pooling,
        attention,
        packed,
        quantized,
        distribution,
        sharding,
        structure,
    )
    for op in family.OPS
}

#: contractions that can have an epilogue in their kernel
CONTRACTIONS = frozenset(
    name for name, op in OPS.items() if op.category in ("contraction", "convolution")
)
