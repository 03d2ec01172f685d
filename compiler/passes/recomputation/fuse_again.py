"""Recomputed kernels, fused with the kernels that read them.

The search works on kernels, so a recomputation is a kernel of its own at first. Often it can share a kernel with its
reader: the derivative of an activation function, for example, is computed from its operand in registers. Before, where
`%d` is the gradient that the backward has reached:

    %h2 = "gflow.fused"(%x) ({ … "gflow.tanh" … }) {gflow.recomputed, kind = "pointwise"} : …
    %g = "gflow.fused"(%d, %h2) ({ … "gflow.mul" … }) {kind = "pointwise"} : …

After `unfuse`, for `gflow-fuse` and `gflow-schedule`:

    %b:2 = "gflow.optimization_barrier"(%x, %d) …
    %h2 = "gflow.tanh"(%b#0) {gflow.recomputed} : …
    %g = "gflow.mul"(%d, %h2) : …

After them and `mark`:

    %g = "gflow.fused"(%d, %b#0) ({ … "gflow.tanh" … "gflow.mul" … }) {gflow.recomputed, kind = "pointwise"} : …

What recomputations read passes through a barrier, together with the latest value before them. So `gflow-fuse` neither
merges a recomputation with the first run, nor do both move to the earlier place.
"""

from __future__ import annotations

from itertools import groupby

from gflow.compiler.ir.fused import inline_fused
from gflow.compiler.ir.ssa import Body, read_body
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import MIXED_GROUPS
from gflow.dialects.ops.structure import BARRIER

from .problem import RECOMPUTED


def unfuse(function: func.FuncOp) -> None:
    """Replace all kernels by the ops in them, and separate recomputations from first runs by barriers."""
    body = read_body(function)
    last = {v: o.index for o in body.ops for v in o.operands}
    for again, ops in groupby(body.ops, key=lambda o: RECOMPUTED in o.op.attributes):
        if again:
            numbers = [o.index for o in ops]
            _separate(body, last, numbers[0], numbers[-1] + 1)
    for view in list(function.regions[0].blocks[0].operations):
        if view.operation.name == "gflow.fused":
            recomputed = RECOMPUTED in view.operation.attributes
            for op in inline_fused(view.operation):
                if recomputed:
                    op.attributes[RECOMPUTED] = ir.UnitAttr.get()


def mark(function: func.FuncOp) -> None:
    """Move the marks of recomputed ops in kernels to the kernels."""
    for view in function.regions[0].blocks[0].operations:
        op = view.operation
        if op.name != "gflow.fused":
            continue
        for inner in op.regions[0].blocks[0].operations:
            if RECOMPUTED in inner.operation.attributes:
                del inner.operation.attributes[RECOMPUTED]
                op.attributes[RECOMPUTED] = ir.UnitAttr.get()


def _separate(body: Body, last: dict[int, int], first: int, after: int) -> None:
    """Build barriers for what the recomputed ops `first` … `after` - 1 read."""
    again = body.ops[first:after]
    made = {r for o in again for r in o.results}
    token = _latest(body, last, first, after)
    read = {v for o in again for v in o.operands if v not in made and v != token}
    if token < 0 or not read:
        return
    inputs = sorted(read, key=lambda v: (body.types[v], v))
    runs = [list(run) for _, run in groupby(inputs, key=lambda v: body.types[v])]
    held: dict[int, ir.Value] = {}
    before = body.ops[first].op
    with ir.InsertionPoint(before), before.location:
        for start in range(0, len(runs), MIXED_GROUPS - 1):
            group = [v for run in runs[start : start + MIXED_GROUPS - 1] for v in run]
            op = builder.build_op(BARRIER, [body.values[v] for v in (*group, token)])
            held.update(zip(group, op.results))
    for o in again:
        for n, v in enumerate(o.operands):
            if v in held:
                o.op.operands[n] = held[v]


def _latest(body: Body, last: dict[int, int], first: int, after: int) -> int:
    """The latest value before op `first` that is still read from op `after` on; -1: none."""
    for o in reversed(body.ops[:first]):
        for r in o.results:
            if last.get(r, -1) >= after and RECOMPUTED not in o.op.attributes:
                return r
    return -1
