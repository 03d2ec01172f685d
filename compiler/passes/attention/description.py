"""One attention that a program writes out, as value numbers of its function body."""

from __future__ import annotations

from dataclasses import dataclass, field

from gflow.dialects.records import record


@record
class Select:
    """A mask that sets scores to `fill` at positions where `condition` (a value number of i1) equals `where`.

    Its shape is that of the scores, or one to which they were reshaped.
    """

    condition: int
    where: bool
    fill: float


@record
class Added:
    """A mask that is added to the scores, in their shape or in one to which they were reshaped."""

    value: int


@dataclass
class Dropout:
    """Dropout of the weights.

    Args:
        keep: the mask of kept weights, a value number of i1.
        p: the probability of zero.
        rng, stream: as of `gflow.random`.
    """

    keep: int
    p: float
    rng: int
    stream: int


@dataclass
class Gradients:
    """The backward of an attention.

    Args:
        dy: the value number of the gradient of the result.
        first: the op before which all of its operands are computed.
        dq, dk, dv: value numbers of the products that compute them, each with whether it computes the transpose; None
            for gradients that are not computed.
        ratio: the factor from the products for dq and dk to the gradients, if the scale is multiplied later.
    """

    dy: int
    first: int
    ratio: float = 1.0
    dq: tuple[int, bool] | None = None
    dk: tuple[int, bool] | None = None
    dv: tuple[int, bool] | None = None


@dataclass
class Attention:
    """One attention that a program writes out.

    Args:
        q, k_t, v: value numbers of the products' operands, [.., position, channel], [.., channel, key] and [.., key,
            channel].
        weights: the softmax.
        kept: the operand of the product with v (the softmax after dropout).
        y: the result.
        product: the index of the op that computes y.
        lead: the sizes of the batch dimensions of the softmax.
        ops: the indices of the ops that one op replaces.
    """

    q: int
    k_t: int
    v: int
    weights: int
    kept: int
    y: int
    product: int
    lead: tuple[int, ...]
    scale: float
    mask: list[Select | Added]
    dropout: Dropout | None
    ops: set[int] = field(default_factory=set)
    gradients: Gradients | None = None
