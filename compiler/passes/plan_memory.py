"""Give every value a place: in the arena, in a result's buffer, or in the storage of the argument that it updates.

    %0 = "gflow.fused"(%a, %b) …          %0 = "gflow.fused"(%a, %b) {gflow.buffers = ["arena:0"], …} …
    %1 = "gflow.matmul"(%0, %w)      →    %1 = "gflow.matmul"(%0, %w) {gflow.buffers = ["arena:1024"]}
    return %1                             return %1     // and on the function: gflow.arena_size, gflow.lower_bound

Live ranges follow program order; views extend the life of what they look at. A kernel that reads a dying value only
where it writes takes over its buffer. Offsets come from two strategies, and the smaller arena is kept: in program
order with best fit among free blocks, and largest first at the lowest free offset. `gflow.lower_bound` is the largest
sum of live bytes at any one op, which no arena can beat in this order.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from gflow.dialects.mlir import func, ir

from ..ssa import Body, read_body
from ..views import Layout, is_view, layouts
from .base import NoOptions, Pass
from .materialize import aliases, reads_where_it_writes

_ALIGN = 64
_EXACT_LIMIT = 3000


@dataclass
class Buffer:
    """Bytes that are live from op `start` to op `end`, both included."""

    size: int
    start: int
    end: int
    offset: int = -1


def aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def lower_bound(buffers: list[Buffer]) -> int:
    """The largest sum of sizes live at one op."""
    change: dict[int, int] = {}
    for b in buffers:
        change[b.start] = change.get(b.start, 0) + b.size
        change[b.end + 1] = change.get(b.end + 1, 0) - b.size
    peak = live = 0
    for at in sorted(change):
        live += change[at]
        peak = max(peak, live)
    return peak


def by_program_order(buffers: list[Buffer]) -> tuple[int, list[int]]:
    """Allocate and free as the program runs; each buffer takes the smallest free block that holds it."""
    free: list[tuple[int, int]] = []  # (offset, size), in order of offset
    top = 0
    offsets = [0] * len(buffers)
    events = sorted(range(len(buffers)), key=lambda i: buffers[i].start)
    ends = sorted(range(len(buffers)), key=lambda i: buffers[i].end)
    done = 0
    for i in events:
        while done < len(ends) and buffers[ends[done]].end < buffers[i].start:
            _release(free, offsets[ends[done]], buffers[ends[done]].size)
            done += 1
        size = buffers[i].size
        fits = [(s, at, n) for n, (at, s) in enumerate(free) if s >= size]
        if fits:
            s, at, n = min(fits)
            free[n : n + 1] = [(at + size, s - size)] if s > size else []
        else:
            at = top
            if free and sum(free[-1]) == top:  # grow the last free block
                at = free.pop()[0]
            top = at + size
        offsets[i] = at
    return top, offsets


def _release(free: list[tuple[int, int]], offset: int, size: int) -> None:
    insort(free, (offset, size))
    n = free.index((offset, size))
    if n + 1 < len(free) and free[n][0] + free[n][1] == free[n + 1][0]:
        free[n : n + 2] = [(free[n][0], free[n][1] + free[n + 1][1])]
    if n > 0 and free[n - 1][0] + free[n - 1][1] == free[n][0]:
        free[n - 1 : n + 1] = [(free[n - 1][0], free[n - 1][1] + free[n][1])]


def by_size(buffers: list[Buffer]) -> tuple[int, list[int]]:
    """Largest first, each at the lowest offset that is free during its life."""
    placed: list[
        tuple[int, int, int, int]
    ] = []  # (offset, end offset, start, end), in order of offset
    offsets = [0] * len(buffers)
    top = 0
    for i in sorted(range(len(buffers)), key=lambda i: (-buffers[i].size, buffers[i].start)):
        b = buffers[i]
        at = 0
        for low, high, start, end in placed:
            if end < b.start or start > b.end:
                continue
            if low >= at + b.size:
                break
            at = max(at, high)
        offsets[i] = at
        insort(placed, (at, at + b.size, b.start, b.end))
        top = max(top, at + b.size)
    return top, offsets


def _takes_over(
    body: Body,
    at: list[Layout],
    index: int,
    result: int,
    last: dict[int, int],
    owner: dict[int, int],
) -> int | None:
    """A dying operand of the fused op whose buffer a result can take; None if there is none."""
    o = body.ops[index]
    ty = body.types[o.results[result]]
    for n, v in enumerate(o.operands):
        if (
            v not in owner
            or body.types[v] != ty
            or last[v] != index
            or at[v] != Layout(v, 0, at[v].strides)
        ):
            continue
        if sum(at[w].base == v for w in o.operands) == 1 and reads_where_it_writes(o.op, n, result):
            return v
    return None


def run(function: func.FuncOp, options: NoOptions) -> None:
    body = read_body(function)
    at = layouts(function, body)
    target = aliases(function, body)
    place: dict[int, str] = {}
    for n, v in enumerate(body.returned):
        alias = target[n]
        place[v] = f"result:{n}" if alias is None else f"arg:{alias}"
    last: dict[int, int] = {}
    for o in body.ops:
        for v in o.operands:
            last[at[v].base] = o.index
    owner: dict[int, int] = {}  # value → buffer number
    buffers: list[Buffer] = []
    for o in body.ops:
        if is_view(o, at) or o.name == "constant":
            continue
        for n, r in enumerate(o.results):
            if r in place:
                continue
            end = max(last.get(r, o.index), o.index)
            old = _takes_over(body, at, o.index, n, last, owner) if o.name == "fused" else None
            if old is not None and buffers[owner[old]].end == o.index:
                owner[r] = owner[old]
                buffers[owner[r]].end = end
                continue
            owner[r] = len(buffers)
            buffers.append(Buffer(max(aligned(body.types[r].nbytes), _ALIGN), o.index, end))
    strategies = [by_program_order(buffers)]
    if len(buffers) <= _EXACT_LIMIT:
        strategies.append(by_size(buffers))
    size, offsets = min(strategies, key=lambda s: s[0])
    for o in body.ops:
        if is_view(o, at) or o.name == "constant":
            continue
        where = [place.get(r) or f"arena:{offsets[owner[r]]}" for r in o.results]
        o.op.attributes["gflow.buffers"] = ir.ArrayAttr.get([ir.StringAttr.get(w) for w in where])
    i64 = ir.IntegerType.get_signless(64)
    function.operation.attributes["gflow.arena_size"] = ir.IntegerAttr.get(i64, size)
    function.operation.attributes["gflow.lower_bound"] = ir.IntegerAttr.get(
        i64, lower_bound(buffers)
    )


PASS = Pass("gflow-plan-memory", run, NoOptions, __doc__ or "")
