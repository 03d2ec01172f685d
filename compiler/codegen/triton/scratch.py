"""How much scratch each op's launches need: partial results of split reductions and products."""

from __future__ import annotations

from gflow.dialects.mlir import func

from ...targets import DEFAULT_ARCH
from .build import add_op
from .builder import Builder


def scratch_bytes(function: func.FuncOp, arch: int = DEFAULT_ARCH) -> dict[int, int]:
    """For each op that needs scratch, by its number, how many bytes.

    `gflow.buffers` must be there. An op without code needs none.
    """
    b = Builder(function, arch)
    found: dict[int, int] = {}
    for o in list(b.body.ops):
        b.scratch_bytes = 0
        try:
            add_op(b, o)
        except ValueError:
            continue
        if b.scratch_bytes:
            found[o.index] = -(-b.scratch_bytes // 64) * 64
    return found
