"""Move pointwise kernels that read only arguments to the start, next to each other, so they can share launches.

Before:

    %0 = "gflow.matmul"(%x, %w) : (tensor<2x4xf16>, tensor<4x4xf16>) -> tensor<2x4xf16>
    %1 = "gflow.fused"(%v) ({
    ^bb0(%a: tensor<4x4xf32>):
      %c = "gflow.convert"(%a) {dtype = "f16"} : (tensor<4x4xf32>) -> tensor<4x4xf16>
      "gflow.yield"(%c) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf16>) -> ()
    }) {kind = "pointwise", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>,
        resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>) -> tensor<4x4xf16>
    %2 = "gflow.matmul"(%0, %1) : (tensor<2x4xf16>, tensor<4x4xf16>) -> tensor<2x4xf16>

After:

    %0 = "gflow.fused"(%v) …
    %1 = "gflow.matmul"(%x, %w) : …
    %2 = "gflow.matmul"(%1, %0) : …

A moved result is live from the start of the function. The pass therefore moves only small results (up to `small`
bytes), and results that are live at the memory peak in any case: a weight that the backward reads again, but not one
that inference reads once.
"""

from __future__ import annotations

from dataclasses import field

from gflow.compiler.ir.ssa import Body, Op, fused_kind
from gflow.compiler.ir.views import is_view
from gflow.compiler.memory.liveness import Lives, lives_of
from gflow.dialects.marks import LAUNCH
from gflow.dialects.mlir import func
from gflow.dialects.records import record

from ..base import Pass


@record
class HoistOptions:
    """Options of gflow-hoist."""

    small: int = field(
        default=65536, metadata={"doc": "the most bytes of a result that may always be moved"}
    )


def run(function: func.FuncOp, options: HoistOptions) -> None:
    """Move pointwise kernels that read arguments alone to the front of the function."""
    lives = lives_of(function)
    body, at = lives.body, lives.at
    if not body.ops:
        return
    peak = max(range(len(body.ops)), key=lives.per_op.__getitem__)
    early: set[int] = set()
    for o in body.ops:
        free = is_view(o, at) or o.name == "constant"
        if not free and not _is_pointwise(o):
            continue
        if not {body.producer[v] for v in o.operands} - {-1} <= early:
            continue
        if free or all(_costs_nothing(lives, r, peak, options.small) for r in o.results):
            early.add(o.index)
    _move_first(body, early)


def _is_pointwise(o: Op) -> bool:
    return fused_kind(o.op) == "pointwise" and LAUNCH not in o.op.attributes


def _costs_nothing(lives: Lives, value: int, peak: int, small: int) -> bool:
    """Whether a value may be live from the start of the function: it is small, or it is live at the memory peak in any
    case."""
    if value not in lives.buffer_of or value in lives.taken:
        return False
    needed = lives.body.producer[value] <= peak <= lives.buffers[lives.buffer_of[value]].end
    return needed or lives.body.types[value].nbytes <= small


def _move_first(body: Body, early: set[int]) -> None:
    first = next((o for o in body.ops if o.index not in early), None)
    if first is not None:
        for o in body.ops:
            if o.index in early and o.index > first.index:
                o.op.move_before(first.op)


PASS = Pass("gflow-hoist", run, HoistOptions, __doc__ or "")
