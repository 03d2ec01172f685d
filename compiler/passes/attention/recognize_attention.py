"""Replace softmax(scale · q kᵀ + mask) v by one `gflow.attention`, and its gradients by one op.

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

The scores are then never stored as a whole, in the forward or for the backward.

The rules of recognition:

- The scores and weights must have no other reader.
- A mask becomes `causal` if constants and positions show that it is, and a bias otherwise.
- Scores may have another shape where a mask is applied to them (keys as rows and columns of an image). The mask is
  reshaped. A softmax over parts of rows is not recognized.
- A row without a visible key has eager's result: NaN if its scores are set to -inf (also in the gradient of v), equal
  weights if they are set to a large negative number.
- A bias from outside is recognized only in inference, in float32 and float64: for such rows the logarithm of the sum is
  too inexact for gradients.
- A score that is set to less than -1e8 counts as masked (in float16: to the lowest number). This differs from eager if
  all other scores of the row are lower still: eager would give the score a weight.

With `own`, the pass recognizes attention for gflow's own CPU kernel, which computes exactly the program's formula,
also for non-finite numbers. It supports float32 only. A mask that sets scores is an operand of i1 (it hides NaN); a
mask that is added stays an addition (NaN plus -inf is NaN); a weight of 0 times an infinite value is NaN. The ops get
`formula = true`, so no other kernel is chosen for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gflow.compiler.ir.ssa import Body, read_body
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record

from ..base import Pass, target_of
from .description import Attention, Gradients
from .empty_rows import Rows, times
from .mask_operands import mask_of
from .match import attentions

#: the maximal number of channels of a head that kernels support
_CHANNELS = 256
_BHPC = (0, 2, 1, 3)


@record
class RecognizeOptions:
    """Options of gflow-recognize-attention."""

    target: str = field(
        default="cpu", metadata={"doc": "the target; CPU kernels support no dropout"}
    )
    own: bool = field(
        default=False,
        metadata={
            "doc": "only attention for gflow's own CPU kernel, which computes the program's formula exactly, also for "
            "non-finite numbers: float32; dropout of weights is supported"
        },
    )
    amp: bool = field(
        default=False,
        metadata={"doc": "operands will be in half precision, where large numbers are infinite"},
    )
    min_scores: int = field(
        default=64 * 64, metadata={"doc": "the fewest scores of a head (positions times keys)"}
    )


def run(function: func.FuncOp, options: RecognizeOptions) -> None:
    """Replace attention that a program writes out by `gflow.attention`, where that is faster on the target."""
    if not _has_softmax(function):
        return
    target = target_of(options.target)
    gpu = target is not None and target.gpu
    done: set[int] = set()
    body = read_body(function)
    for a in attentions(body):
        if not a.ops & done and _is_worth(body, a, gpu, options):
            done |= a.ops if _rewrite(body, a, options) else set()


def _has_softmax(function: func.FuncOp) -> bool:
    """Whether an exponential is divided by a value, as in softmax. This is a quick test before the whole body is
    read."""
    for view in function.regions[0].blocks[0].operations:
        op = view.operation
        if op.name == "gflow.div":
            by = op.operands[0].owner
            if not isinstance(by, ir.Block) and by.operation.name == "gflow.exp":
                return True
    return False


def _is_worth(body: Body, a: Attention, gpu: bool, options: RecognizeOptions) -> bool:
    q, v, y = body.types[a.q], body.types[a.v], body.types[a.y]
    channels, keys = q.shape[-1], v.shape[-2]
    if not q.dtype == v.dtype == y.dtype or 0 in (*q.shape, *v.shape):
        return False
    if q.shape[-2] * keys < options.min_scores:
        return False
    if options.own:
        converted = any(body.ops[i].name == "convert" for i in a.ops)
        return q.dtype == "f32" and not converted
    if channels != v.shape[-1] or channels > _CHANNELS:
        return False
    return gpu or a.dropout is None


def _rewrite(body: Body, a: Attention, options: RecognizeOptions) -> bool:
    """Replace one attention; returns whether its mask can be expressed."""
    product = body.ops[body.producer[a.y]].op
    with ir.InsertionPoint(product), product.location:
        mask = mask_of(body, a, options.amp, options.own)
        if mask is None:
            return False
        batch, heads = _batches(a.lead)
        form = _Form(body, batch, heads)
        q, k, v = form.rows(a.q), form.columns(a.k_t), form.rows(a.v)
        attrs = {"scale": a.scale, "causal": mask.causal}
        if options.own:
            attrs["formula"] = True
        extras = [] if mask.bias is None else [mask.bias]
        if a.dropout is not None:
            extras.append(body.values[a.dropout.rng])
            attrs |= {"dropout": a.dropout.p, "stream": a.dropout.stream}
        y, sums = builder.build_op("attention", [q, k, v, *extras], attrs).results
        shown, rows = y, None
        if mask.empty == "equal" or (mask.empty is not None and not options.own):
            assert mask.bias is not None
            rows = Rows(mask.bias, sums, mask.empty)
            shown, sums = rows.result(y, v), rows.finite(sums)
        _replace(body, a.y, form.back(shown, a.y))
    if a.gradients is not None:
        _gradients(body, a.gradients, form, [q, k, v, y, sums, *extras], attrs, rows)
    return True


def _gradients(
    body: Body, g: Gradients, form: _Form, operands: Sequence[ir.Value], attrs: Mapping[str, Any],
    rows: Rows | None,
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
            dq, dk = (times(x, g.ratio) for x in (dq, dk))
        for grad, found in ((dq, g.dq), (dk, g.dk), (dv, g.dv)):
            if found is not None:
                value, transposed = found
                _replace(body, value, form.back(grad, value, transposed))


def _replace(body: Body, value: int, by: ir.Value) -> None:
    """Replace a value, also in the attentions that come later and read it."""
    body.values[value].replace_all_uses_with(by)
    body.values[value] = by


def _batches(lead: tuple[int, ...]) -> tuple[int, int]:
    """The sizes of batch and heads: with two or more dimensions before positions, the last of them is the heads."""
    return (math.prod(lead[:-1]), lead[-1]) if len(lead) > 1 else (math.prod(lead), 1)


@dataclass
class _Form:
    """Conversions between operands of products, [.., position, channel], and those of attention."""

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


PASS = Pass("gflow-recognize-attention", run, RecognizeOptions, __doc__ or "")
