"""Scaled dot product attention and its gradients.

Tensors are [batch, position, head, channel], as projections make them, so that neither heads nor positions
have to be moved in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..distribution.sharding import ShardingRule
from ..opdef import Attr, OpDef, VerifyError
from ..types import FLOATS, TensorType
from . import factors

Types = Sequence[TensorType]
Attrs = dict[str, Any]

RNG = TensorType((2,), "i64")


class Extras(NamedTuple):
    """Which operands, by number, are there besides the needed ones; None: not there. documents: the number of that of
    q's positions, which that of k's follows."""

    bias: int | None
    rng: int | None
    documents: int | None


def extras(operands: Types, needed: int) -> Extras:
    """The optional operands, which follow the `needed` ones.

    Raises:
        VerifyError: they are no bias, generator's state and pair of documents, in this order.
    """
    bias = rng = documents = None
    given = len(operands)
    for i, ty in enumerate(operands[needed:], needed):
        if documents is not None and i == documents + 1 and ty.rank == 2:
            continue
        if ty == RNG and rng is None and documents is None:
            rng = i
        elif ty.rank == 4 and bias is None and rng is None and documents is None:
            bias = i
        elif ty.rank == 2 and documents is None and i + 2 == given:
            documents = i
        else:
            raise VerifyError(
                f"operand #{i} must be a bias of rank 4, then the generator state {RNG}, or, last, one of two "
                f"documents of rank 2, found {ty}"
            )
    return Extras(bias, rng, documents)


#: by op, how many of its first operands have the type of its products: q, k and v; dy, q, k, v and y
_MULTIPLIED = {"attention": 3, "attention_grad": 5}


def multiplied(name: str, operands: int) -> tuple[int, ...]:
    """The numbers of the values, operands before results, that a kernel whose products are of bfloat16 values reads and
    writes as they are; () for other ops than attention.

    Args:
        name: the op's name.
        operands: the number of its operands.
    """
    first = tuple(range(_MULTIPLIED.get(name, 0)))
    return (*first, operands) if name == "attention" else first


def bounds(attrs: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """How many positions before and after its own a position sees, by `causal` and `window`; None: all."""
    left, right = attrs["window"] or (None, None)
    if not attrs["causal"]:
        return left, right
    return left, 0 if right is None else min(right, 0)


def statistics_dtype(dtype: str) -> str:
    """The element type of logarithms of sums: that of sums."""
    return "f64" if dtype == "f64" else "f32"


def _check(q: TensorType, k: TensorType, v: TensorType) -> None:
    if not q.rank == k.rank == v.rank == 4 or not q.dtype == k.dtype == v.dtype:
        raise VerifyError(
            "q, k and v must be [batch, position, head, channel] of one element type, "
            f"found {q}, {k} and {v}"
        )
    if q.dtype not in FLOATS:
        raise VerifyError(f"element type {q.dtype} is not one of {', '.join(FLOATS)}")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise VerifyError(
            f"batch sizes, k's and v's positions and heads, and q's and k's channels must be equal, found {q}, {k} and {v}"
        )
    heads, shared = q.shape[2], k.shape[2]
    if heads != shared and (shared == 0 or heads % shared):
        raise VerifyError(f"{heads} heads of q cannot share {shared} heads of k and v evenly")


def _check_extras(operands: Types, needed: int, q: TensorType, k: TensorType, attrs: Attrs) -> None:
    found = extras(operands, needed)
    if found.bias is not None:
        bias = operands[found.bias]
        full = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
        if any(size not in (1, want) for size, want in zip(bias.shape, full)):
            raise VerifyError(f"the bias must broadcast to {list(full)}, found {bias}")
        if bias.dtype not in (q.dtype, "f32", "i1"):
            raise VerifyError(f"the bias must have element type {q.dtype}, f32 or i1, found {bias}")
    if found.documents is not None:
        wanted = ((q.shape[0], q.shape[1]), (k.shape[0], k.shape[1]))
        given = operands[found.documents : found.documents + 2]
        same = given[0].dtype == given[1].dtype in ("i32", "i64")
        if not same or tuple(ty.shape for ty in given) != wanted:
            raise VerifyError(
                "documents must be i32 or i64 of [batch, position of q] and [batch, position of k], "
                f"found {given[0]} and {given[1]}"
            )
    if attrs["window"] is not None and len(attrs["window"]) != 2:
        raise VerifyError(f"window must be two numbers, found {len(attrs['window'])}")
    dropout = attrs["dropout"] or 0.0
    if not 0.0 <= dropout < 1.0:
        raise VerifyError(f"dropout must be in [0, 1), found {dropout}")
    if bool(dropout) != (found.rng is not None) or bool(dropout) != (attrs["stream"] is not None):
        raise VerifyError("dropout goes with a generator state and a stream, and they with it")


def _attention(operands: Types, attrs: Attrs) -> list[TensorType]:
    q, k, v = operands[:3]
    _check(q, k, v)
    _check_extras(operands, 3, q, k, attrs)
    batch, positions, heads, _ = q.shape
    return [
        TensorType((batch, positions, heads, v.shape[3]), q.dtype),
        TensorType((batch, heads, positions), statistics_dtype(q.dtype)),
    ]


def _attention_grad(operands: Types, attrs: Attrs) -> list[TensorType]:
    dy, q, k, v, y, logsumexp = operands[:6]
    _check(q, k, v)
    _check_extras(operands, 6, q, k, attrs)
    batch, positions, heads, _ = q.shape
    wanted = [TensorType((batch, positions, heads, v.shape[3]), q.dtype)] * 2
    wanted.append(TensorType((batch, heads, positions), statistics_dtype(q.dtype)))
    for name, found, want in zip(("dy", "y", "logsumexp"), (dy, y, logsumexp), wanted):
        if found != want:
            raise VerifyError(f"{name} must be {want}, found {found}")
    if not attrs["bias_grad"]:
        return [q, k, v]
    bias = extras(operands, 6).bias
    if bias is None or operands[bias].dtype == "i1":
        raise VerifyError("bias_grad needs a bias of floats")
    return [q, k, v, operands[bias]]


_ATTRS = {
    "scale": Attr("f64", "the factor of the products of q and k"),
    "causal": Attr("bool", "whether position i attends only to positions 0 … i"),
    "window": Attr(
        "i64[]",
        "left and right: position i attends only to positions i - left … i + right, as well as `causal`",
        optional=True,
    ),
    "dropout": Attr("f64", "the probability that a weight is set to 0", optional=True),
    "stream": Attr(
        "i64",
        "the stream of the dropout's random numbers, as in `random`: element [b, h, i, j]",
        optional=True,
    ),
    "formula": Attr(
        "bool",
        "whether non-finite numbers propagate as in two products and a softmax, so a row whose "
        "scores are all -inf is NaN instead of 0; PyTorch's kernels don't do that",
        optional=True,
    ),
}

OPS: tuple[OpDef, ...] = (
    OpDef("attention", "attention",
          "softmax(scale * q k^T + bias) v for each batch and head, and the logarithms of the sums of"
" the softmax. q, k and v are [batch, position, head, channel], the logarithms [batch, "
"head, position]. k and v may have fewer heads than q; groups of heads of q then share them"
" (grouped-query attention). The bias is [batch, head, position of q, position of k] and "
"broadcasts along sizes of 1. A bias of i1 is a mask, true where the key takes part. Documents "
"are numbers of [batch, position of q] and of [batch, position of k]: a position attends only to keys of an equal "
"number. A row without any key gives 0",
          ("q", "k", "v", "bias?", "rng?", "q_documents?", "k_documents?"), _ATTRS, results=2, infer=_attention, cost=64, amp="allow",
          full_results=(1,), mixed=True, sharding=ShardingRule(factors.attention(3, extras))),
    OpDef("attention_grad", "attention",
          "The gradients of `attention` with respect to q, k, v and, with `bias_grad`, the bias", ("dy", "q", "k", "v", "y", "logsumexp", "bias?", "rng?", "q_documents?", "k_documents?"),
          {**_ATTRS, "bias_grad": Attr("bool", "whether the gradient of the bias is a result", optional=True)}, results=None,
          infer=_attention_grad, cost=64, amp="allow", full_operands=(5,), mixed=True,
          sharding=ShardingRule(factors.attention(6, extras))),
)  # fmt: skip
