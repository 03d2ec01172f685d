"""One `gflow.attention` for softmax(scale · q kᵀ + mask) v, and one op for its gradients.

Before:

    %0 = "gflow.matmul"(%q, %kt) : (tensor<16x128x64xf32>, tensor<16x64x128xf32>) -> tensor<16x128x128xf32>
    %1 = "gflow.mul"(%0, %scale) : …
    %2 = "gflow.reduce"(%1) {dims = array<i64: 2>, kind = "max"} : (tensor<16x128x128xf32>) -> tensor<16x128xf32>
    …
    %7 = "gflow.div"(%5, %6) : (tensor<16x128x128xf32>, tensor<16x128x128xf32>) -> tensor<16x128x128xf32>
    %8 = "gflow.matmul"(%7, %v) : (tensor<16x128x128xf32>, tensor<16x128x64xf32>) -> tensor<16x128x64xf32>

After `gflow-recognize-attention,gflow-simplify`:

    %0 = "gflow.reshape"(%q) {shape = array<i64: 16, 128, 1, 64>} : …
    …
    %3:2 = "gflow.attention"(%0, %1, %2) {causal = false, scale = 1.250000e-01 : f64, …}
       : (tensor<16x128x1x64xf32>, …) -> (tensor<16x128x1x64xf32>, tensor<16x1x128xf32>)
    %4 = "gflow.reshape"(%3#0) {shape = array<i64: 16, 128, 64>} : …

The scores are never in memory as a whole, neither in the forward nor for the backward. Nothing is taken whose
scores or weights something else reads. A mask becomes `causal` where constants and positions say so, and a bias
otherwise. A row that sees no key is what it is in eager: NaN where scores are set to -inf, and so is v's gradient;
equal weights where they are set to a large number. What is added to scores and comes from outside is taken in
inference alone, in float32 and float64: logarithms of sums of such rows are too coarse for gradients. A score that is
set to less than -1e8 counts as masked (in float16 to the lowest number); where all others of its row are lower still,
eager would give it weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gflow.compiler.ir.ssa import Body, read_body
from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType

from ..base import Pass, target_of
from .description import Added, Attention, Gradients, Select
from .masks import evaluate, every_row_sees_a_key, is_causal
from .match import attentions

#: channels of the widest heads that kernels take
_CHANNELS = 256
_BHPC = (0, 2, 1, 3)


@dataclass(frozen=True)
class RecognizeOptions:
    """Options of gflow-recognize-attention."""

    target: str = field(
        default="cpu", metadata={"doc": "where the program runs: kernels of CPUs take no dropout"}
    )
    amp: bool = field(
        default=False,
        metadata={"doc": "operands will be halves, in which large numbers are infinite"},
    )
    min_scores: int = field(
        default=64 * 64, metadata={"doc": "scores of one head (positions times keys) from which on"}
    )


@dataclass
class _Mask:
    """causal, bias: as of `gflow.attention`. empty: what the weights of a row are that sees no key, "nan" or "equal";
    None where there is none, or where the op gives what eager does."""

    causal: bool = False
    bias: ir.Value | None = None
    empty: str | None = None


def run(function: func.FuncOp, options: RecognizeOptions) -> None:
    target = target_of(options.target)
    gpu = target is not None and target.gpu
    done: set[int] = set()
    body = read_body(function)
    for a in attentions(body):
        if not a.ops & done and _is_worth(body, a, gpu, options.min_scores):
            done |= a.ops if _rewrite(body, a, options.amp) else set()


def _is_worth(body: Body, a: Attention, gpu: bool, least: int) -> bool:
    q, v, y = body.types[a.q], body.types[a.v], body.types[a.y]
    channels, keys = q.shape[-1], v.shape[-2]
    if not q.dtype == v.dtype == y.dtype or 0 in (*q.shape, *v.shape):
        return False
    if channels != v.shape[-1] or channels > _CHANNELS or q.shape[-2] * keys < least:
        return False
    return gpu or a.dropout is None


def _rewrite(body: Body, a: Attention, amp: bool) -> bool:
    """Whether its mask can be said."""
    product = body.ops[body.producer[a.y]].op
    with ir.InsertionPoint(product), product.location:
        mask = _mask(body, a, amp)
        if mask is None:
            return False
        batch, heads = _batches(a.lead)
        form = _Form(body, batch, heads)
        q, k, v = form.rows(a.q), form.columns(a.k_t), form.rows(a.v)
        attrs = {"scale": a.scale, "causal": mask.causal}
        extras = [] if mask.bias is None else [mask.bias]
        if a.dropout is not None:
            extras.append(body.values[a.dropout.rng])
            attrs |= {"dropout": a.dropout.p, "stream": a.dropout.stream}
        y, sums = builder.build_op("attention", [q, k, v, *extras], attrs).results
        shown, rows = y, None
        if mask.empty is not None:
            assert mask.bias is not None
            rows = _Rows(mask.bias, sums, mask.empty)
            shown, sums = rows.result(y, v), rows.finite(sums)
        _replace(body, a.y, form.back(shown, a.y))
    if a.gradients is not None:
        _gradients(body, a.gradients, form, [q, k, v, y, sums, *extras], attrs, rows)
    return True


def _gradients(
    body: Body, g: Gradients, form: _Form, operands: Sequence[ir.Value], attrs: Mapping[str, Any],
    rows: _Rows | None,
) -> None:  # fmt: skip
    first = body.ops[g.first].op
    with ir.InsertionPoint(first), first.location:
        dy = form.rows(g.dy)
        passed = dy if rows is None else rows.others(dy)
        dq, dk, dv = builder.build_op("attention_grad", [passed, *operands], dict(attrs)).results[
            :3
        ]
        if rows is not None:
            dv = rows.v_gradient(dv, dy)
        if g.ratio != 1.0:
            dq, dk = (_times(x, g.ratio) for x in (dq, dk))
        for grad, found in ((dq, g.dq), (dk, g.dk), (dv, g.dv)):
            if found is not None:
                value, transposed = found
                _replace(body, value, form.back(grad, value, transposed))


def _replace(body: Body, value: int, by: ir.Value) -> None:
    """Also for attentions that come later, and read it."""
    body.values[value].replace_all_uses_with(by)
    body.values[value] = by


def _batches(lead: tuple[int, ...]) -> tuple[int, int]:
    """Batch and heads: the dimension before positions has the heads where there are two and more."""
    return (math.prod(lead[:-1]), lead[-1]) if len(lead) > 1 else (math.prod(lead), 1)


@dataclass
class _Form:
    """Between operands of products, [.., position, channel], and those of attention."""

    body: Body
    batch: int
    heads: int

    def rows(self, value: int) -> ir.Value:
        """[.., position, channel] as [batch, position, head, channel]."""
        shape = self.body.types[value].shape[-2:]
        split = builder.reshape(self.body.values[value], (self.batch, self.heads, *shape))
        return builder.transpose(split, _BHPC)

    def columns(self, value: int) -> ir.Value:
        """[.., channel, position] as [batch, position, head, channel]."""
        shape = self.body.types[value].shape[-2:]
        split = builder.reshape(self.body.values[value], (self.batch, self.heads, *shape))
        return builder.transpose(split, (0, 3, 1, 2))

    def back(self, x: ir.Value, like: int, transposed: bool = False) -> ir.Value:
        """[batch, position, head, channel] in the form of a product's result."""
        order = (0, 2, 3, 1) if transposed else _BHPC
        return builder.reshape(builder.transpose(x, order), self.body.types[like].shape)


class _Rows:
    """Rows that see no key.

    bias: what is added to scores, of rank 4. sums: the logarithms of sums, [batch, head, position]. weights: of such
    a row, "nan" or "equal".
    """

    def __init__(self, bias: ir.Value, sums: ir.Value, weights: str) -> None:
        self.ty, self.weights = builder.type_of(sums), weights
        most = builder.build("reduce", [bias], {"dims": (3,), "kind": "max"})
        least = builder.splat(-math.inf, builder.type_of(most))
        empty = builder.build("compare", [most, least], {"predicate": "eq"})
        self.empty = builder.broadcast(empty, self.ty.shape, (0, 1, 2))
        self.by_row = builder.transpose(self.empty, (0, 2, 1))

    def finite(self, sums: ir.Value) -> ir.Value:
        """The logarithms with 0 for such rows, by which the weights in the backward are 0."""
        return builder.build("select", [self.empty, builder.splat(0.0, self.ty), sums])

    def result(self, y: ir.Value, v: ir.Value) -> ir.Value:
        """The result, with what eager gives for such rows."""
        return builder.build("select", [self._spread(y), self._instead(y, v), y])

    def _instead(self, y: ir.Value, v: ir.Value) -> ir.Value:
        ty = builder.type_of(y)
        if self.weights == "nan":
            return builder.splat(math.nan, ty)
        total = builder.build("reduce", [v], {"dims": (1,), "kind": "sum"})
        mean = _times(total, 1 / builder.type_of(v).shape[1])
        return builder.broadcast(mean, ty.shape, (0, 2, 3))

    def others(self, dy: ir.Value) -> ir.Value:
        """dy of the rows that see keys, and 0: it may be NaN where the result is."""
        zero = builder.splat(0.0, builder.type_of(dy))
        return builder.build("select", [self._spread(dy), zero, dy])

    def v_gradient(self, dv: ir.Value, dy: ir.Value) -> ir.Value:
        """The gradient by v, to which such rows pass dy on: their weights are not 0. By q and k they have none, since
        the program sets their scores."""
        ty = builder.type_of(dv)
        if self.weights == "equal":
            zero = builder.splat(0.0, builder.type_of(dy))
            theirs = builder.build("select", [self._spread(dy), dy, zero])
            total = builder.build("reduce", [theirs], {"dims": (1,), "kind": "sum"})
            share = builder.broadcast(_times(total, 1 / ty.shape[1]), ty.shape, (0, 2, 3))
            return builder.build("add", [dv, share])
        counts = builder.convert(self.by_row, ty.dtype)
        some = builder.build("reduce", [counts], {"dims": (1,), "kind": "max"})
        zero = builder.splat(0.0, builder.type_of(some))
        hit = builder.build("compare", [some, zero], {"predicate": "gt"})
        spread = builder.broadcast(hit, ty.shape, (0, 2))
        return builder.build("select", [spread, builder.splat(math.nan, ty), dv])

    def _spread(self, like: ir.Value) -> ir.Value:
        return builder.broadcast(self.by_row, builder.type_of(like).shape, (0, 1, 2))


def _times(x: ir.Value, by: float) -> ir.Value:
    return builder.build("mul", [x, builder.splat(by, builder.type_of(x))])


# -- masks

#: a score that is less than this by its mask has no weight beside one that is not masked
_LOW = -1e4

#: scores are set to numbers below this by adding them: any score of a usual size is lost in the sum
_ABSORBING = -1e30


def _mask(body: Body, a: Attention, amp: bool) -> _Mask | None:
    """The mask of an attention, as ops before it; None where `gflow.attention` cannot have it."""
    added = [part for part in a.mask if isinstance(part, Added)]
    selects = [part for part in a.mask if isinstance(part, Select)]
    biases = [evaluate(body, part.value) for part in added]
    low = np.max if not selects else np.min  # of each row, or of all
    if not all(x is not None and (low(x, -1) > _LOW).all() for x in biases):
        exact = (
            body.types[a.q].dtype in ("f32", "f64") and not amp
        )  # fills of halves may be infinite
        if a.gradients is not None or not exact or any(s.fill > _ABSORBING for s in selects):
            return None
        return _Mask(bias=_bias(body, a), empty="nan")  # where a sum is of -inf alone
    if len({part.fill for part in selects}) > 1:
        return None
    positions, keys = body.types[a.q].shape[-2], body.types[a.v].shape[-2]
    keep = _seen(body, selects, biases)
    if keep is not None and is_causal(keep, positions, keys):
        return _Mask(causal=True)
    found = _Mask(bias=_bias(body, a, -math.inf))
    if selects and (keep is None or not every_row_sees_a_key(keep)):
        found.empty = "nan" if math.isinf(selects[0].fill) else "equal"
    return found


def _seen(
    body: Body, selects: Sequence[Select], biases: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    """Which keys each position sees, where constants and positions say so, and nothing else is in the mask."""
    seen: np.ndarray | None = None
    parts = [(evaluate(body, s.condition), s.where) for s in selects]
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
    """The mask as numbers that are added: what is done to scores, done to zeros.

    fill: what scores are set to; None for what the program has.
    """
    bias, dtype = None, body.types[a.q].dtype
    for part in reversed(a.mask):  # from the product on
        if isinstance(part, Added):
            value = builder.convert(_small(body, part.value, a.lead), dtype)
            bias = value if bias is None else builder.build("add", _fit(bias, value))
        else:
            condition = _small(body, part.condition, a.lead)
            number = part.fill if fill is None else fill
            bias = _masked(condition, part.where, number, bias, dtype)
    return bias


def _masked(
    condition: ir.Value, where: bool, fill: float, bias: ir.Value | None, dtype: str
) -> ir.Value:
    ty = TensorType(builder.type_of(condition).shape, dtype)
    condition, bias = _fit(condition, builder.splat(0.0, ty) if bias is None else bias)
    values = [builder.splat(fill, builder.type_of(bias)), bias]
    return builder.build("select", [condition, *(values if where else values[::-1])])


def _fit(a: ir.Value, b: ir.Value) -> list[ir.Value]:
    """Two values of rank 4, repeated to one shape."""
    shape = [max(x, y) for x, y in zip(builder.type_of(a).shape, builder.type_of(b).shape)]
    every = tuple(range(4))
    return [
        x if list(builder.type_of(x).shape) == shape else builder.broadcast(x, shape, every)
        for x in (a, b)
    ]


def _small(body: Body, value: int, lead: tuple[int, ...]) -> ir.Value:
    """A mask as [batch or 1, head or 1, position or 1, key or 1]: of a broadcast, what it repeats."""
    rank, source = body.types[value].rank, body.values[value]
    dims = tuple(range(rank))
    p = body.producer[value]
    if p >= 0 and body.ops[p].name == "broadcast":
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


PASS = Pass("gflow-recognize-attention", run, RecognizeOptions, __doc__ or "")
