"""Which steps can fail when they run, for reasons that compilation does not see."""

from __future__ import annotations

from gflow.dialects.mlir import ir
from gflow.dialects.ops.distribution import ORDERED

from .ssa import Op

#: parts of the names of ATen ops that look at values: at indices, or whether a matrix can be factored
_BY_VALUE = (
    "index", "gather", "scatter", "take", "put", "embedding", "nll_loss", "ctc_loss", "one_hot", "bincount",
    "histc", "multinomial", "bernoulli", "repeat_interleave", "linalg", "cholesky", "lu_", "svd", "qr", "inverse",
    "lstsq", "eig", "solve", "segment_reduce", "_assert",
)  # fmt: skip


def may_fail(o: Op) -> bool:
    """Whether an op can raise an error: custom ops, an author's collectives, and what depends on values.

    Collectives along a mesh are part of how a program is divided: where one fails, a rank is gone, and with it a
    part of the state, so updates do not wait for the last of them.
    """
    if o.name != "aten":
        return o.name in ORDERED and "axes" not in o.op.attributes
    overload = ir.StringAttr(o.op.attributes["overload"]).value
    space, _, name = overload.partition(".")
    if space not in ("aten", "prims"):
        return True
    return any(part in name for part in _BY_VALUE)
