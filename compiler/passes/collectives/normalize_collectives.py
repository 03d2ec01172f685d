"""Normalize collectives: along the first dimension, and in one total order.

Before:

    %0, %t = "gflow.collective"(%x) {kind = "all_gather", axes = ["tp"], ranks = 2 : i64, dim = 1 : i64,
        sequence = 0 : i64, …} : (tensor<8x4xf32>) -> (tensor<8x8xf32>, tensor<i8>)

After:

    %a = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
    %b, %t = "gflow.collective"(%a) {kind = "all_gather", axes = ["tp"], ranks = 2 : i64, sequence = 0 : i64, …}
        : (tensor<4x8xf32>) -> (tensor<8x8xf32>, tensor<i8>)
    %0 = "gflow.transpose"(%b) {permutation = array<i64: 1, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>

Communication libraries concatenate and split contiguous memory, that is along the first dimension. For another
dimension the pass inserts transposes, which fusion can merge into neighbouring kernels. The pass then chains all
collectives by their tokens in program order and numbers them. The last token becomes a result of the function.
"""

from __future__ import annotations

from typing import Any

from gflow.compiler.ir.collectives import (
    attributes_read,
    data_operands,
    kind_of,
    thread,
)
from gflow.compiler.ir.ssa import attributes_of
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.distribution import COLLECTIVE

from ..base import NoOptions, Pass


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Convert the collectives of the function to dimension 0, and chain them in one order, in place."""
    for view in list(function.regions[0].blocks[0].operations):
        op = view.operation
        if op.name == f"gflow.{COLLECTIVE}" and "dim" in op.attributes:
            _first(op)
    thread(function)


def _first(op: ir.Operation) -> None:
    attrs = attributes_read(op)
    dim = attrs.pop("dim")
    other = attrs.pop("concat_dim", dim)
    (x,) = data_operands(op)
    extra = {k: v for k, v in attributes_of(op).items() if k.startswith("gflow.")}
    with op.location, ir.InsertionPoint(op):
        if kind_of(op) == "all_to_all" and other != dim:
            value, made = _exchange(x, dim, other, attrs)
        else:
            to_front = _front(builder.type_of(x).rank, dim)
            made = builder.build_op(COLLECTIVE, [builder.transpose(x, to_front)], attrs)
            back = [to_front.index(d) for d in range(len(to_front))]
            value = builder.transpose(made.results[0], back)
    for name, attribute in extra.items():
        made.attributes[name] = attribute
    op.results[0].replace_all_uses_with(value)
    op.results[1].replace_all_uses_with(made.results[1])
    op.erase()


def _exchange(
    x: ir.Value, dim: int, other: int, attrs: dict[str, Any]
) -> tuple[ir.Value, ir.Operation]:
    """An all_to_all that splits one dimension and concatenates another one."""
    ranks, ty = attrs["ranks"], builder.type_of(x)
    to_front = _front(ty.rank, dim)
    made = builder.build_op(COLLECTIVE, [builder.transpose(x, to_front)], attrs)
    got = made.results[0]  # the shards of all ranks along the first dimension
    shape = builder.type_of(got).shape
    apart = builder.reshape(got, (ranks, shape[0] // ranks, *shape[1:]))
    # the dimension of ranks moves before the one that is concatenated
    rest = [to_front.index(d) + 1 for d in range(ty.rank)]
    rest.insert(other, 0)
    final = list(ty.shape)
    final[dim] //= ranks
    final[other] *= ranks
    return builder.reshape(builder.transpose(apart, rest), tuple(final)), made


def _front(rank: int, dim: int) -> list[int]:
    return [dim, *(d for d in range(rank) if d != dim)]


PASS = Pass("gflow-normalize-collectives", run, NoOptions, __doc__ or "")
