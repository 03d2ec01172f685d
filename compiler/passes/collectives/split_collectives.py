"""Split each collective into its start and its wait, so other work can run in between.

Before:

    %0, %t = "gflow.collective"(%x) {kind = "all_reduce", axes = ["dp"], ranks = 2 : i64, reduction = "sum",
        sequence = 0 : i64, …} : (tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<i8>)

After:

    %s, %t = "gflow.collective_start"(%x) {kind = "all_reduce", axes = ["dp"], ranks = 2 : i64, reduction = "sum",
        sequence = 0 : i64, …} : (tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<i8>)
    %0 = "gflow.collective_wait"(%s, %x) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>

The wait has the operand of the collective as an operand, too, so the operand stays live and unchanged until the wait.
The result of the wait has the buffer of the start's result. A wait is placed as late as possible: just before the first
op that reads its result, or that writes to the buffer of the operand. Reductions of gradients (`gflow.gradient`) are
also waited for before the second one after them starts: by then one link has sent them, and their operands, whole
gradients, need no memory until the update. A start keeps the place of the collective, which the schedule has moved to
where the operand is ready. The pass runs after `gflow-materialize`, which copies operands.
"""

from __future__ import annotations

from gflow.compiler.ir.collectives import GRADIENT, attributes_read, data_operands, kind_of
from gflow.compiler.ir.ssa import aliases, attributes_of, read_body
from gflow.compiler.ir.views import VIEW_OPS, layouts
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.distribution import COLLECTIVE, START, WAIT

from ..base import Kept, NoOptions, Pass

#: the maximal number of reductions of gradients in flight
IN_FLIGHT = 2


def run(function: func.FuncOp, options: NoOptions) -> Kept | None:
    """Split the collectives of the function into a start and a wait, in place."""
    block = function.regions[0].blocks[0]
    if not any(view.operation.name == f"gflow.{COLLECTIVE}" for view in block.operations):
        return Kept.BODY
    _sink_views(function)
    body = read_body(function)
    at = layouts(function, body)
    # the op that writes each argument
    written = {
        body.arguments[alias]: body.producer[v]
        for v, alias in zip(body.returned, aliases(function, body))
        if alias is not None and body.producer[v] >= 0
    }
    sums = [o.index for o in body.ops if o.name == COLLECTIVE and _reduces_gradient(o.op)]
    soon = dict(zip(sums, sums[IN_FLIGHT:]))
    found: list[tuple[int, int]] = []  # each collective, and the op before which its wait is placed
    for o in body.ops:
        if o.name != COLLECTIVE:
            continue
        users = body.users[o.results[0]]
        bases = {at[v].base for v in o.operands[: len(data_operands(o.op))]}
        limits = [written[b] for b in bases if written.get(b, -1) > o.index]
        limits += [soon[o.index]] if o.index in soon else []
        found.append((o.index, min([*users, *limits], default=len(body.ops))))
    ops = [*(o.op for o in body.ops), body.terminator]
    for index, before in reversed(found):
        ops[index] = _split(ops[index], ops[before])
    return None


def _reduces_gradient(op: ir.Operation) -> bool:
    return GRADIENT in op.attributes and kind_of(op) in ("reduce_scatter", "all_reduce")


def _sink_views(function: func.FuncOp) -> None:
    """Move views just before the first op that reads them."""
    body = read_body(function)
    first: dict[int, int] = {}  # op → the op before which it is now
    for o in reversed(body.ops):
        users = [first.get(u, u) for r in o.results for u in body.users[r]]
        if o.name in VIEW_OPS and users and o.results[0] not in body.returned:
            first[o.index] = min(users)
    for o in body.ops:
        if o.index in first:
            o.op.move_before(body.ops[first[o.index]].op)


def _split(op: ir.Operation, before: ir.Operation) -> ir.Operation:
    """Replace `op` by its start, and place its wait before another op. Returns the start."""
    attrs = attributes_read(op)
    extra = {k: v for k, v in attributes_of(op).items() if k.startswith("gflow.")}
    with op.location:
        with ir.InsertionPoint(op):
            start = builder.build_op(START, list(op.operands), attrs)
        for name, attribute in extra.items():
            start.attributes[name] = attribute
        with ir.InsertionPoint(before):
            wait = builder.build_op(WAIT, [start.results[0], *data_operands(op)])
    op.results[0].replace_all_uses_with(wait.results[0])
    op.results[1].replace_all_uses_with(start.results[1])
    op.erase()
    return start


PASS = Pass("gflow-split-collectives", run, NoOptions, __doc__ or "")
