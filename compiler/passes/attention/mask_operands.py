"""Converts masks to the form of `gflow.attention`: causal, or an operand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gflow.compiler.ir.ssa import Body
from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType

from .description import Added, Attention, Select
from .masks import evaluate, every_row_sees_a_key, is_causal


@dataclass
class Mask:
    """A mask in the form of `gflow.attention`.

    Args:
        causal, bias: as of the op.
        empty: the weights of a row without a visible key, "nan" or "equal"; None if there is no such row, or the op
            gives eager's result.
    """

    causal: bool = False
    bias: ir.Value | None = None
    empty: str | None = None


#: a mask below this gives a weight of 0 beside any unmasked score
_LOW = -1e4

#: numbers below this are added to scores instead of setting them: a score of usual size is lost by rounding
_ABSORBING = -1e30


def mask_of(body: Body, a: Attention, amp: bool, own: bool) -> Mask | None:
    """Build the mask of an attention before it; None if `gflow.attention` cannot express it.

    Args:
        amp: whether operands will be in half precision.
        own: for gflow's own CPU kernel, as in `RecognizeOptions`.
    """
    if own and any(isinstance(part, Select) for part in a.mask):
        return _hidden(body, a)
    added = [part for part in a.mask if isinstance(part, Added)]
    selects = [part for part in a.mask if isinstance(part, Select)]
    biases = [_known(body, a, part.value) for part in added]
    low = np.max if not selects else np.min  # of each row, or of all
    if not all(x is not None and (low(x, -1) > _LOW).all() for x in biases):
        exact = (
            body.types[a.q].dtype in ("f32", "f64") and not amp
        )  # in half precision, fills may be infinite
        if a.gradients is not None or not exact or any(s.fill > _ABSORBING for s in selects):
            return None
        return Mask(bias=_bias(body, a), empty="nan")  # where a sum is of -inf alone
    if len({part.fill for part in selects}) > 1:
        return None
    positions, keys = body.types[a.q].shape[-2], body.types[a.v].shape[-2]
    keep = _seen(body, a, selects, biases)
    if keep is not None and is_causal(keep, positions, keys) and not own:
        return Mask(causal=True)
    found = Mask(bias=_bias(body, a, -math.inf))
    if selects and (keep is None or not every_row_sees_a_key(keep)):
        found.empty = "nan" if math.isinf(selects[0].fill) else "equal"
    return found


def _hidden(body: Body, a: Attention) -> Mask | None:
    """A mask that sets scores, as an operand of i1: it hides any score, also NaN.

    Values that are added as well may stay next to a causal mask, if all are added before scores are set, and are
    finite.
    """
    selects = [part for part in a.mask if isinstance(part, Select)]
    added = [part for part in a.mask if isinstance(part, Added)]
    if len({part.fill for part in selects}) > 1:
        return None
    positions, keys = body.types[a.q].shape[-2], body.types[a.v].shape[-2]
    keep = _seen(body, a, selects, [])
    causal = keep is not None and is_causal(keep, positions, keys)
    if added:
        biases = [_known(body, a, part.value) for part in added]
        known = all(x is not None and (x > _LOW).all() for x in biases)
        last = any(isinstance(part, Select) for part in a.mask[len(selects) :])
        if not causal or not known or last:
            return None
        only = replace(a, mask=list(added))
        return Mask(causal=True, bias=_bias(body, only))
    if causal:
        return Mask(causal=True)
    found = Mask(bias=_kept(body, a, selects))
    if keep is None or not every_row_sees_a_key(keep):
        found.empty = "nan" if math.isinf(selects[0].fill) else "equal"
    return found


def _kept(body: Body, a: Attention, selects: Sequence[Select]) -> ir.Value:
    """The visible keys, as i1."""
    kept: ir.Value | None = None
    for part in selects:
        here = _small(body, a, part.condition)
        here = builder.build("not", [here]) if part.where else here
        kept = here if kept is None else builder.build("and", fit(kept, here))
    assert kept is not None
    return kept


def _known(body: Body, a: Attention, value: int) -> np.ndarray | None:
    """The elements of a mask in the shape of the scores (or one that broadcasts to it), as `evaluate` gives them."""
    found, shape = evaluate(body, value), body.types[a.weights].shape
    if found is None or body.types[value].shape == shape:
        return found
    each = np.broadcast_to(found, body.types[value].shape).reshape(-1, *shape[-2:])
    return each[:1] if (each == each[:1]).all() else each.reshape(shape)


def _seen(
    body: Body, a: Attention, selects: Sequence[Select], biases: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    """The visible keys of each position, if the mask depends only on constants and positions; else None."""
    seen: np.ndarray | None = None
    parts = [(_known(body, a, s.condition), s.where) for s in selects]
    for bias in biases:
        if bias is None or not np.isin(bias, (0.0, -np.inf)).all():
            return None
        parts.append((bias == 0, False))
    for known, where in parts:
        if known is None:
            return None
        keep = np.logical_not(known) if where else known
        seen = keep if seen is None else np.logical_and(seen, keep)
    return seen


def _bias(body: Body, a: Attention, fill: float | None = None) -> ir.Value | None:
    """The mask as numbers that are added: its ops applied to zeros.

    fill: the number to which scores are set; None for the program's.
    """
    bias, dtype = None, body.types[a.q].dtype
    for part in reversed(a.mask):  # from the product on
        if isinstance(part, Added):
            value = builder.convert(_small(body, a, part.value), dtype)
            bias = value if bias is None else builder.build("add", fit(bias, value))
        else:
            condition = _small(body, a, part.condition)
            number = part.fill if fill is None else fill
            bias = _masked(condition, part.where, number, bias, dtype)
    return bias


def _masked(
    condition: ir.Value, where: bool, fill: float, bias: ir.Value | None, dtype: str
) -> ir.Value:
    ty = TensorType(builder.type_of(condition).shape, dtype)
    condition, bias = fit(condition, builder.splat(0.0, ty) if bias is None else bias)
    values = [builder.splat(fill, builder.type_of(bias)), bias]
    return builder.build("select", [condition, *(values if where else values[::-1])])


def fit(a: ir.Value, b: ir.Value) -> list[ir.Value]:
    """Two values of rank 4, broadcast to one shape."""
    shape = [max(x, y) for x, y in zip(builder.type_of(a).shape, builder.type_of(b).shape)]
    every = tuple(range(4))
    return [
        x if list(builder.type_of(x).shape) == shape else builder.broadcast(x, shape, every)
        for x in (a, b)
    ]


def _small(body: Body, a: Attention, value: int) -> ir.Value:
    """A mask as [batch or 1, head or 1, position or 1, key or 1]: a broadcast is replaced by its operand.

    One of another shape than the scores is reshaped as a whole.
    """
    lead, scores, source = a.lead, body.types[a.weights].shape, body.values[value]
    rank = len(scores)
    dims = tuple(range(rank))
    p = body.producer[value]
    if body.types[value].shape != scores:
        source = builder.reshape(source, scores)
    elif p >= 0 and body.ops[p].name == "broadcast":
        o = body.ops[p]
        source, dims = body.values[o.operands[0]], read(OPS["broadcast"], o.op.attributes)["dims"]
    sizes = [1] * rank
    for size, dim in zip(builder.type_of(source).shape, dims):
        sizes[dim] = size
    outer, inner = sizes[:-2], sizes[-2:]
    if len(lead) < 2:
        return builder.reshape(source, (*(outer or [1]), 1, *inner))
    if len(lead) > 2 and any(n > 1 for n in outer[:-1]):
        whole = (*lead[:-1], *sizes[-3:])  # of several dimensions of batches some repeat
        source = builder.broadcast(source, whole, dims)
        outer = [*lead[:-1], outer[-1]]
    return builder.reshape(source, (math.prod(outer[:-1]), outer[-1], *inner))
