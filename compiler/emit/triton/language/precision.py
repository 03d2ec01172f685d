"""Which values of a kernel need only the precision of a half-precision result.

    softmax of bfloat16: exp, sum, division in float32, then rounded to 8 bits    →    errors of 2⁻¹⁶ are allowed
    the same of float32                                                            →    they are not

For such values, math functions have forms with a third of the instructions (class "h" of an op's `triton`). In kernels
with costly functions, this decides whether they are bound by memory or by arithmetic.
"""

from __future__ import annotations

from gflow.compiler.kernel.description import Kernel
from gflow.dialects.types import HALVES

#: ops whose result is about as exact as their operands
_SMOOTH = frozenset(
    {
        "add", "sub", "mul", "div", "neg", "abs", "maximum", "minimum", "select", "sqrt", "rsqrt", "reciprocal",
        "sigmoid", "tanh", "erf", "convert", "reduce",
    }
)  # fmt: skip


def coarse(k: Kernel) -> frozenset[int]:
    """The nodes all of whose uses end in a value that is rounded to half precision."""
    stored = {s.node for s in k.stores}
    users: list[list[int]] = [[] for _ in k.nodes]
    for i, node in enumerate(k.nodes):
        for a in node.args:
            users[a].append(i)
    found: set[int] = set()
    for i in reversed(range(len(k.nodes))):
        dtype = k.nodes[i].dtype
        inner = dtype == "f32" and i not in stored and users[i]
        if dtype in HALVES or (
            inner and all(u in found and k.nodes[u].op in _SMOOTH for u in users[i])
        ):
            found.add(i)
    return frozenset(found)
