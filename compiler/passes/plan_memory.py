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

from ..memory.in_place import reads_where_it_writes
from ..memory.offsets import Buffer, aligned, best, lower_bound
from ..ssa import Body, Op, aliases, read_body
from ..views import Layout, is_view, layouts
from .base import NoOptions, Pass


class _Lives:
    """Buffers of the arena, as the program goes on.

    buffer_of: value → number of the buffer that it lies in.
    """

    def __init__(self, body: Body, at: list[Layout]) -> None:
        self.body, self.at = body, at
        self.buffers: list[Buffer] = []
        self.buffer_of: dict[int, int] = {}
        self._taken: set[int] = set()  # values whose buffer another has taken over
        self._last = {at[v].base: o.index for o in body.ops for v in o.operands}

    def add(self, o: Op, n: int) -> None:
        """A buffer for result `n` of `o`: a dying operand's, or a new one."""
        r = o.results[n]
        end = max(self._last.get(r, o.index), o.index)
        old = self._dying(o, n) if o.name == "fused" else None
        if old is None:
            self.buffer_of[r] = len(self.buffers)
            self.buffers.append(Buffer(aligned(self.body.types[r].nbytes), o.index, end))
        else:
            self._taken.add(old)
            self.buffer_of[r] = self.buffer_of[old]
            self.buffers[self.buffer_of[r]].end = end

    def _dying(self, o: Op, n: int) -> int | None:
        """An operand of a fused op whose buffer result `n` can take over; None without any."""
        ty = self.body.types[o.results[n]]
        for number, v in enumerate(o.operands):
            if v not in self.buffer_of or v in self._taken or self.body.types[v] != ty:
                continue
            if self._last[v] != o.index:
                continue
            # a view of it beside it would be read at other positions
            alone = sum(self.at[w].base == v for w in o.operands) == 1
            if alone and reads_where_it_writes(o.op, number, n):
                return v
        return None


def run(function: func.FuncOp, options: NoOptions) -> None:
    body = read_body(function)
    at = layouts(function, body)
    place: dict[int, str] = {}
    for n, (v, alias) in enumerate(zip(body.returned, aliases(function, body))):
        place[v] = f"result:{n}" if alias is None else f"arg:{alias}"
    making = [o for o in body.ops if o.name != "constant" and not is_view(o, at)]
    lives = _Lives(body, at)
    for o in making:
        for n, r in enumerate(o.results):
            if r not in place:
                lives.add(o, n)
    size, offsets = best(lives.buffers)
    for o in making:
        where = [place.get(r) or f"arena:{offsets[lives.buffer_of[r]]}" for r in o.results]
        o.op.attributes["gflow.buffers"] = ir.ArrayAttr.get([ir.StringAttr.get(w) for w in where])
    i64 = ir.IntegerType.get_signless(64)
    for name, value in (("arena_size", size), ("lower_bound", lower_bound(lives.buffers))):
        function.operation.attributes[f"gflow.{name}"] = ir.IntegerAttr.get(i64, value)


PASS = Pass("gflow-plan-memory", run, NoOptions, __doc__ or "")
