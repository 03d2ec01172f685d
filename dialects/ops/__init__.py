"""The table of all ops of the dialect; a file for each family.

attention    scaled dot product attention and its gradients
compute      reductions, contractions, convolutions and random numbers
elementwise  elementwise ops: every operand and the result have one shape
pooling      maxima and means over windows, and their gradients
shape        shape and layout ops, constants and indexing
structure    regions and the escape hatch
"""

from __future__ import annotations

from ..opdef import OpDef
from . import attention, compute, elementwise, pooling, shape, structure

OPS: dict[str, OpDef] = {
    op.name: op
    for family in (elementwise, shape, compute, pooling, attention, structure)
    for op in family.OPS
}

#: contractions that can have an epilogue in their kernel
CONTRACTIONS = frozenset(
    name for name, op in OPS.items() if op.category in ("contraction", "convolution")
)
