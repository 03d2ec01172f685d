"""Which values of a row are kept in scratch between the passes over it, instead of being recomputed."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.compiler.kernel.description import Kernel
from gflow.compiler.targets.processors import ANY
from gflow.dialects.ops import OPS

#: values that cost less (an add costs 1) are recomputed
_WORTH = 8

#: element types that have 32 or 64 bits in registers
_TYPES = ("f16", "bf16", "f32", "f64", "i32", "i64", "ui32", "ui64")


def choose(k: Kernel, vector: int, phases: Sequence[tuple[int, int]], row: int) -> dict[int, int]:
    """The nodes to keep, and for each the first pass that computes it.

    Args:
        k: the kernel.
        vector: the dimension that vectors run along.
        phases: (node, pass) for each node that a pass over the row needs.
        row: the elements of a row.
    """
    if row > ANY.row:
        return {}
    needed: dict[int, set[int]] = {}
    for node, phase in phases:
        needed.setdefault(node, set()).add(phase)
    found: dict[int, int] = {}
    for i in range(len(k.nodes) - 1, -1, -1):
        value, when = k.nodes[i], needed.get(i, set())
        if not when or value.op == "reduce" or vector not in value.dims:
            continue
        if len(when) > 1 and _cost(k, i, vector) >= _WORTH and value.dtype in _TYPES:
            found[i] = min(when)
            when = {min(when)}
        for a in value.args:
            needed.setdefault(a, set()).update(when)
    return found


def _cost(k: Kernel, i: int, vector: int) -> int:
    node = k.nodes[i]
    if node.op == "load":
        return 1 if k.loads[node.slot].strides[vector] == 1 else 2 * _WORTH
    if node.op == "random":
        return 32
    return OPS[node.op].cost if node.op in OPS else 0


def width(row: int, lanes: int) -> int:
    """The 64-bit cells of a row in scratch: whole cache lines, with room for a last incomplete vector."""
    return -(-(row + lanes) // 8) * 8
