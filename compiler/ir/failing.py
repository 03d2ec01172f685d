"""Which steps can fail at run time."""

from __future__ import annotations

from gflow.dialects.mlir import ir
from gflow.dialects.ops.distribution import ORDERED

from .ssa import Op

#: parts of the names of ATen ops that check values: indices, or whether a matrix can be factorized
_BY_VALUE = (
    "index", "gather", "scatter", "take", "put", "embedding", "nll_loss", "ctc_loss", "one_hot", "bincount",
    "histc", "multinomial", "bernoulli", "repeat_interleave", "linalg", "cholesky", "lu_", "svd", "qr", "inverse",
    "lstsq", "eig", "solve", "segment_reduce", "_assert",
)  # fmt: skip


def may_fail(o: Op) -> bool:
    """Whether an op can raise an error at run time: custom ops, collectives in the author's code, and ops that check
    values.

    Collectives along a mesh do not count, although they can fail: then a rank is lost, and its part of the state with
    it. Updates therefore need not wait for the last of them.
    """
    if o.name != "aten":
        return o.name in ORDERED and "axes" not in o.op.attributes
    overload = ir.StringAttr(o.op.attributes["overload"]).value
    space, _, name = overload.partition(".")
    if space not in ("aten", "prims"):
        return True
    return any(part in name for part in _BY_VALUE)
