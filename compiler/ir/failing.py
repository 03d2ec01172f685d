"""Which steps can fail when they run, for reasons that compilation does not see."""

from __future__ import annotations

from gflow.dialects.collectives import is_collective
from gflow.dialects.mlir import ir

from .ssa import Op

#: parts of the names of ATen ops that look at values: at indices, or whether a matrix can be factored
_BY_VALUE = (
    "index", "gather", "scatter", "take", "put", "embedding", "nll_loss", "ctc_loss", "one_hot", "bincount",
    "histc", "multinomial", "bernoulli", "repeat_interleave", "linalg", "cholesky", "lu_", "svd", "qr", "inverse",
    "lstsq", "eig", "solve", "segment_reduce", "_assert",
)  # fmt: skip


def may_fail(o: Op) -> bool:
    """Whether an op can raise an error: custom ops, collectives, and what depends on values."""
    if o.name != "aten":
        return False
    overload = ir.StringAttr(o.op.attributes["overload"]).value
    space, _, name = overload.partition(".")
    if space not in ("aten", "prims"):
        return True
    return is_collective(overload) or any(part in name for part in _BY_VALUE)
