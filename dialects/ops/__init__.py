"""The table of all ops of the dialect; a file for each family."""

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
