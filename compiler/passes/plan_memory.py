"""Give every value a place: the arena, a result's buffer, or the argument that it updates.

    %0 = "gflow.fused"(%a, %b) …          %0 = "gflow.fused"(%a, %b)
                                                 {gflow.buffers = ["arena:0"], …} …
    %1 = "gflow.matmul"(%0, %w)      →    %1 = "gflow.matmul"(%0, %w)
                                                 {gflow.buffers = ["result:0"]}
    return %1                             return %1
                                          // on the function: gflow.arena_size, gflow.lower_bound

Live ranges follow program order; views extend the life of what they look at. A kernel that
reads a dying value only where it writes takes over its buffer. Offsets (in bytes) come from two
strategies, and the smaller arena is kept: in program order with best fit among free blocks, and
largest first at the lowest free offset. `gflow.lower_bound` is the largest sum of live bytes at
any one op, which no arena can beat in this order.
"""

from __future__ import annotations

from gflow.dialects.mlir import func, ir

from ..memory.liveness import lives_of
from ..memory.offsets import best
from .base import NoOptions, Pass


def run(function: func.FuncOp, options: NoOptions) -> None:
    lives = lives_of(function)
    size, offsets = best(lives.buffers)
    for o in lives.making:
        where = [lives.place.get(r) or f"arena:{offsets[lives.buffer_of[r]]}" for r in o.results]
        o.op.attributes["gflow.buffers"] = ir.ArrayAttr.get([ir.StringAttr.get(w) for w in where])
    i64 = ir.IntegerType.get_signless(64)
    for name, value in (("arena_size", size), ("lower_bound", lives.lower_bound)):
        function.operation.attributes[f"gflow.{name}"] = ir.IntegerAttr.get(i64, value)


PASS = Pass("gflow-plan-memory", run, NoOptions, __doc__ or "")
