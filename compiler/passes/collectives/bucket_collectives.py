"""Merge small collectives into buckets, so that fewer messages pay the network latency.

Before:

    %a, %t = "gflow.collective"(%g) {kind = "all_reduce", gflow.gradient = "w", …} : (tensor<4x2xf32>) -> …
    %b, %u = "gflow.collective"(%h, %t) {kind = "all_reduce", gflow.gradient = "b", …} : (tensor<4xf32>, …) -> …

After:

    %0 = "gflow.reshape"(%g) {shape = array<i64: 8>} : …
    %1 = "gflow.concatenate"(%0, %h) {dim = 0 : i64, …} : (tensor<8xf32>, tensor<4xf32>) -> tensor<12xf32>
    %2, %t = "gflow.collective"(%1) {kind = "all_reduce", …} : (tensor<12xf32>) -> …
    %3 = "gflow.slice"(%2) {starts = array<i64: 0>, limits = array<i64: 8>, …} : …
    %a = "gflow.reshape"(%3) {shape = array<i64: 4, 2>} : …
    %b = "gflow.slice"(%2) {starts = array<i64: 8>, limits = array<i64: 12>, …} : …

A bucket holds collectives of one kind, along the same axes, of one element type, that don't depend on each other.
They are taken in the order in which their operands are computed, up to `bytes` in total; for an all_gather the size of
the result counts. A larger collective gets a bucket of its own. If the function has `gflow.buckets`, its nth number of
bytes limits the nth bucket, and its last number all further buckets.

A bucket is placed where its last operand is computed, so communication starts during the backward. An all_gather is
placed just before its first reader, since its result is larger than its operand. The gathers of one bucket belong to
one phase, and each gathers one value.

In the bucket of an all_reduce, the operands are contiguous, one after the other. The bucket of a reduce_scatter or
all_gather has a row for each rank, which holds the shards of that rank. Only collectives that gflow inserted are
merged (those with `gflow.gradient`). Collectives of the author are not changed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from gflow.compiler.ir.collectives import (
    BUCKETS,
    GRADIENT,
    attributes_read,
    kind_of,
    thread,
    unthread,
)
from gflow.compiler.ir.locations import source_of
from gflow.compiler.ir.ssa import Body, Op, read_body
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import MIXED_GROUPS
from gflow.dialects.ops.distribution import COLLECTIVE
from gflow.dialects.records import record

from ..base import Pass

_KINDS = ("all_reduce", "reduce_scatter", "all_gather")


@record
class BucketOptions:
    """Options of gflow-bucket-collectives."""

    bytes: int = field(
        default=25 << 20,
        metadata={"doc": "the largest bucket, in bytes (DDP's bucket_cap_mb is 25 MiB)"},
    )


def run(function: func.FuncOp, options: BucketOptions) -> None:
    """Merge small collectives of gradients of the function into buckets, in place."""
    if not any(
        GRADIENT in v.operation.attributes for v in function.regions[0].blocks[0].operations
    ):
        return
    unthread(function)
    body = read_body(function)
    found = [o for o in body.ops if o.name == COLLECTIVE and GRADIENT in o.op.attributes]
    found = [o for o in found if kind_of(o.op) in _KINDS]
    ops = [*(o.op for o in body.ops), body.terminator]
    for bucket in _buckets(body, found, options.bytes):
        # gathers come late, since their results are large; others as soon as their operands are computed
        late = kind_of(bucket.ops[0].op) == "all_gather"
        _join(bucket.ops, ops[bucket.read if late else bucket.made + 1])
    gone = {o.index for o in found}
    for o in reversed(body.ops):
        if o.index in gone:
            o.op.erase()
    thread(function)


def _made(body: Body, o: Op) -> int:
    """The number of the op that produces a collective's operand."""
    return body.producer[o.operands[0]]


def _read(body: Body, o: Op) -> int:
    """The number of the first op that reads a collective's result; that of the terminator without one."""
    return min(body.users[o.results[0]], default=len(body.ops))


@dataclass
class _Bucket:
    """A bucket of collectives.

    Args:
        ops: the collectives.
        operands: their operands.
        size: their bytes.
        made: the number of the last op that computes an operand.
        read: the number of the first op that reads a result.
    """

    ops: list[Op]
    operands: set[int]
    size: int
    made: int
    read: int

    def takes(self, other: _Bucket, limit: int) -> bool:
        """Whether another collective may join: all operands must be computed before any result is read."""
        apart = max(self.made, other.made) >= min(self.read, other.read)
        fits = self.size + other.size <= limit
        return fits and not apart and self.operands.isdisjoint(other.operands)

    def add(self, other: _Bucket) -> None:
        """Add a collective to this bucket."""
        self.ops += other.ops
        self.operands |= other.operands
        self.size += other.size
        self.made, self.read = max(self.made, other.made), min(self.read, other.read)


def _buckets(body: Body, found: list[Op], most: int) -> list[_Bucket]:
    """The buckets: in each, all operands are produced before any result is read."""
    buckets: list[_Bucket] = []
    open_: dict[tuple[object, ...], _Bucket] = {}
    opened: Counter[tuple[object, ...]] = Counter()
    for o in sorted(found, key=partial(_rank, body)):
        attrs = attributes_read(o.op)
        limits = _limits(o, most)
        key = (
            attrs["kind"],
            attrs.get("axes"),
            attrs.get("group"),
            attrs.get("reduction"),
            body.types[o.operands[0]].dtype,
            limits,
            # a value that only the backward reads is not gathered in the forward
            attrs["kind"] == "all_gather" and source_of(o.op).phase,
        )
        one = _Bucket([o], {o.operands[0]}, _nbytes(body, o), _made(body, o), _read(body, o))
        limit = limits[min(opened[key], len(limits)) - 1]
        if key in open_ and open_[key].takes(one, limit):
            open_[key].add(one)
        else:
            open_[key] = one
            opened[key] += 1
            buckets.append(one)
    return buckets


def _nbytes(body: Body, o: Op) -> int:
    """The bytes of a collective's whole tensor: the result of an all_gather, the operand of others."""
    whole = o.results[0] if kind_of(o.op) == "all_gather" else o.operands[0]
    return body.types[whole].nbytes


def _limits(o: Op, most: int) -> tuple[int, ...]:
    """The maximal bytes of the first bucket, of the second, …; the last number holds for all further ones."""
    if BUCKETS not in o.op.attributes:
        return (most,)
    return tuple(ir.DenseI64ArrayAttr(o.op.attributes[BUCKETS]))


def _rank(body: Body, o: Op) -> tuple[int, int]:
    """The sort key of a collective: gathers in the order in which their results are read, others in the order in which
    their operands are computed."""
    return (_read(body, o) if kind_of(o.op) == "all_gather" else _made(body, o), o.index)


def _join(bucket: list[Op], before: ir.Operation) -> None:
    """Replace several collectives by one."""
    attrs = attributes_read(bucket[0].op)
    kind, ranks = attrs["kind"], attrs["ranks"]
    with bucket[0].op.location, ir.InsertionPoint(before):
        parts = [_part(o.op.operands[0], kind, ranks) for o in bucket]
        dim = 1 if kind == "reduce_scatter" else 0
        joined = _concatenated(parts, dim)
        made = builder.build_op(COLLECTIVE, [joined], attrs)
        names = [ir.StringAttr(o.op.attributes[GRADIENT]).value for o in bucket]
        made.attributes[GRADIENT] = ir.StringAttr.get(",".join(names))
        got = made.results[0]
        if kind != "all_reduce":
            width = builder.type_of(joined).numel // (ranks if kind == "reduce_scatter" else 1)
            got = builder.reshape(got, (width,) if kind == "reduce_scatter" else (ranks, width))
        at = 0
        for o, part in zip(bucket, parts):
            size = builder.type_of(part).shape[dim]
            piece = _slice(got, at, at + size)
            at += size
            result = o.op.results[0]
            result.replace_all_uses_with(builder.reshape(piece, builder.type_of(result).shape))


def _part(value: ir.Value, kind: str, ranks: int) -> ir.Value:
    size = builder.type_of(value).numel
    return builder.reshape(value, (ranks, size // ranks) if kind == "reduce_scatter" else (size,))


def _concatenated(parts: list[ir.Value], dim: int) -> ir.Value:
    """Concatenate values, by ops of a few operands each: an op's operands have a limited number of types."""
    while len(parts) > 1:
        groups = [parts[n : n + MIXED_GROUPS] for n in range(0, len(parts), MIXED_GROUPS)]
        parts = [
            builder.build("concatenate", group, {"dim": dim}) if len(group) > 1 else group[0]
            for group in groups
        ]
    return parts[0]


def _slice(value: ir.Value, low: int, high: int) -> ir.Value:
    """A slice of the last dimension."""
    shape = builder.type_of(value).shape
    starts = [*([0] * (len(shape) - 1)), low]
    limits = [*shape[:-1], high]
    return builder.build(
        "slice", [value], {"starts": starts, "limits": limits, "strides": [1] * len(shape)}
    )


PASS = Pass("gflow-bucket-collectives", run, BucketOptions, __doc__ or "")
