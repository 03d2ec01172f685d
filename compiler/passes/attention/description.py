"""One attention that a program writes out, as value numbers of its function body."""

from __future__ import annotations

from dataclasses import dataclass, field

from gflow.dialects.records import record


@record
class Select:
    """A mask that sets scores to `fill` at positions where `condition` (a value number of i1) equals `where`."""

    condition: int
    where: bool
    fill: float


@record
class Added:
    """A mask that is added to the scores."""

    value: int


@dataclass
class Dropout:
    """keep: the value of i1 that says what stays. p: the probability to become zero. rng, stream: as in `random`."""

    keep: int
    p: float
    rng: int
    stream: int


@dataclass
class Gradients:
    """The backward. dy: of the product with v. first: the op before which all of its operands are there.
    dq, dk, dv: the products that give them, each with whether it gives the transpose; None where none is wanted.
    ratio: of what the products for dq and dk give to the gradients, where the scale is multiplied with later."""

    dy: int
    first: int
    ratio: float = 1.0
    dq: tuple[int, bool] | None = None
    dk: tuple[int, bool] | None = None
    dv: tuple[int, bool] | None = None


@dataclass
class Attention:
    """Operands are value numbers of the products: q [.., position, channel], k_t [.., channel, key],
    v [.., key, channel]; weights the softmax, kept what is multiplied with v (after dropout), y the result.
    lead: sizes of the batch dimensions of the softmax. product: the index of the op that makes y.
    ops: indices of those that one op replaces."""

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
