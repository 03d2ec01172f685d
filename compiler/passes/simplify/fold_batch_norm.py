"""Fold a batch norm in inference (a scale and a shift for each channel) into the weight of the convolution before it.

Before:

    %0 = "gflow.matmul"(%x, %w) : (tensor<512x8xf32>, tensor<8x4xf32>) -> tensor<512x4xf32>
    %1 = "gflow.broadcast"(%mean) {dims = array<i64: 1>, shape = array<i64: 512, 4>}
       : (tensor<4xf32>) -> tensor<512x4xf32>
    %2 = "gflow.sub"(%0, %1) : (tensor<512x4xf32>, tensor<512x4xf32>) -> tensor<512x4xf32>
    %3 = "gflow.broadcast"(%scale) {dims = array<i64: 1>, shape = array<i64: 512, 4>}
       : (tensor<4xf32>) -> tensor<512x4xf32>
    %4 = "gflow.mul"(%2, %3) : (tensor<512x4xf32>, tensor<512x4xf32>) -> tensor<512x4xf32>

After `gflow-fold-batch-norm,gflow-simplify`:

    %0 = "gflow.neg"(%mean) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "gflow.mul"(%0, %scale) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %2 = "gflow.broadcast"(%scale) {dims = array<i64: 1>, shape = array<i64: 8, 4>} : …
    %3 = "gflow.mul"(%w, %2) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %4 = "gflow.matmul"(%x, %3) : (tensor<512x8xf32>, tensor<8x4xf32>) -> tensor<512x4xf32>
    %5 = "gflow.broadcast"(%1) {dims = array<i64: 1>, shape = array<i64: 512, 4>} : …
    %6 = "gflow.add"(%4, %5) : (tensor<512x4xf32>, tensor<512x4xf32>) -> tensor<512x4xf32>

The pass handles convolutions and matrix products. It folds chains of additions, subtractions, multiplications and
divisions by one number for each channel, under three conditions: the values inside the chain have no other reader, the
weight is smaller than the result by the factor `ratio`, and the function does not update the weight. With `frozen`, it
folds frozen weights of any size with frozen numbers alone, and `gflow-freeze` computes the result once. Rounding
differs from the original order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gflow.compiler.ir.frozen import CALL, ONCE, follow
from gflow.compiler.ir.ssa import Body, Op, aliases, read_body
from gflow.compiler.ir.views import VIEW_OPS
from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.ops.compute import conv_dims, kernel_dims
from gflow.dialects.records import record
from gflow.dialects.types import FLOATS

from ..base import Pass


@record
class FoldOptions:
    """Options of gflow-fold-batch-norm."""

    ratio: int = field(
        default=4, metadata={"doc": "a weight must be smaller than the result by this factor"}
    )
    frozen: bool = field(
        default=False,
        metadata={"doc": "only values that depend on frozen arguments alone, of any size"},
    )


def run(function: func.FuncOp, options: FoldOptions) -> None:
    """Fold scales and shifts of channels of the function into weights, in place."""
    body = read_body(function)
    updated = {body.arguments[a] for a in aliases(function, body) if a is not None}
    kinds = follow(function, body) if options.frozen else []
    for o in body.ops:
        if o.name not in ("convolution", "matmul"):
            continue
        result, weight = body.types[o.results[0]], body.types[o.operands[1]]
        if result.dtype not in FLOATS:
            continue
        if options.frozen:
            if kinds[o.operands[1]] != ONCE:
                continue
        elif weight.numel * options.ratio > result.numel:
            continue
        if o.name == "matmul" and result.rank != 2:
            continue
        if _argument(body, o.operands[1]) in updated:
            continue
        _fold(body, o, kinds)


def _argument(body: Body, value: int) -> int:
    """The value at the start of a chain of views."""
    while (p := body.producer[value]) >= 0 and body.ops[p].name in VIEW_OPS:
        value = body.ops[p].operands[0]
    return value


def _channels(o: Op) -> tuple[int, int]:
    """The output-channel dimensions of the result and of the weight."""
    if o.name == "matmul":
        return 1, 1
    layout = read(OPS[o.name], o.op.attributes)["layout"]
    rank = builder.type_of(o.op.results[0]).rank
    return conv_dims(layout, rank)[1], kernel_dims(layout, rank)[0]


@dataclass
class _Affine:
    """x · scale + shift for each channel. None: scale 1, shift 0."""

    scale: ir.Value | None = None
    shift: ir.Value | None = None

    def then(self, name: str, vector: ir.Value, first: bool) -> None:
        """The composition with an op that combines x with `vector`. first: whether x is its first operand."""

        def with_(op: str, x: ir.Value | None) -> ir.Value | None:
            return None if x is None else builder.build(op, [x, vector])

        if name == "add":
            self.shift = with_("add", self.shift) or vector
        elif name == "sub" and first:
            self.shift = with_("sub", self.shift) or builder.build("neg", [vector])
        elif name == "sub":
            self.scale = builder.build("neg", [self.scale or _one(vector)])
            self.shift = (
                vector if self.shift is None else builder.build("sub", [vector, self.shift])
            )
        elif name == "mul":
            self.scale, self.shift = with_("mul", self.scale) or vector, with_("mul", self.shift)
        else:
            self.scale = builder.build("div", [self.scale or _one(vector), vector])
            self.shift = with_("div", self.shift)


def _one(like: ir.Value) -> ir.Value:
    return builder.splat(1.0, builder.type_of(like))


def _fold(body: Body, o: Op, kinds: list[int]) -> None:
    """Fold the chain of ops after a contraction. kinds: says which values are frozen; empty: all may be folded."""
    channel, weight_channel = _channels(o)
    chain: list[
        tuple[Op, Op, bool]
    ] = []  # (op, the broadcast that it reads, whether x is its first operand)
    value = o.results[0]
    while True:
        found = _next(body, value, channel)
        if found is None or (kinds and kinds[found[1].operands[0]] == CALL):
            break
        chain.append(found)
        (value,) = found[0].results
    if not any(c[0].name in ("mul", "div") for c in chain):
        return
    last = chain[-1][0].op
    with ir.InsertionPoint(last), last.location:
        affine = _Affine()
        for step, broadcast, first in chain:
            affine.then(step.name, broadcast.op.operands[0], first)
        x, weight = o.op.operands
        assert affine.scale is not None
        scale = _spread(affine.scale, body.types[o.operands[1]].shape, weight_channel)
        attrs = read(OPS[o.name], o.op.attributes)
        with o.op.location:
            folded = builder.build(o.name, [x, builder.build("mul", [weight, scale])], attrs)
        if affine.shift is not None:
            shape = body.types[o.results[0]].shape
            folded = builder.build("add", [folded, _spread(affine.shift, shape, channel)])
    last.results[0].replace_all_uses_with(folded)
    for step, _, _ in reversed(chain):
        step.op.erase()
    o.op.erase()


def _spread(vector: ir.Value, shape: tuple[int, ...], dim: int) -> ir.Value:
    return builder.build("broadcast", [vector], {"shape": shape, "dims": (dim,)})


def _next(body: Body, value: int, channel: int) -> tuple[Op, Op, bool] | None:
    """The only user of `value`, if it combines it with one number for each channel; otherwise None."""
    users = body.users[value]
    if len(users) != 1 or value in body.returned:
        return None
    o = body.ops[users[0]]
    if o.name not in ("add", "sub", "mul", "div"):
        return None
    first = o.operands[0] == value
    other = o.operands[1 if first else 0]
    p = body.producer[other]
    if o.name == "div" and not first:
        return None
    if p < 0 or body.ops[p].name != "broadcast":
        return None
    vector = body.ops[p].operands[0]
    dims = read(OPS["broadcast"], body.ops[p].op.attributes)["dims"]
    size = body.types[value].shape[channel]
    if tuple(dims) != (channel,) or body.types[vector].shape != (size,):
        return None
    return o, body.ops[p], first


PASS = Pass("gflow-fold-batch-norm", run, FoldOptions, __doc__ or "")
