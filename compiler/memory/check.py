"""Whether the plan that a function carries is sound, read from its IR alone.

Nothing here trusts the planner: places are read from `gflow.buffers`, lives from the order of ops.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from gflow.dialects.mlir import func, ir

from ..ssa import Body, Op, aliases, read_body
from ..views import Layout, is_view, layouts
from .in_place import reads_where_it_writes
from .liveness import ALIGN, last_uses
from .results import in_order, owners

#: what is wrong, and the op at which it is seen
Problem = tuple[str, ir.Operation]

_PLACE = re.compile(r"(arena|arg|result):(\d+)")


def problems(function: func.FuncOp) -> Iterator[Problem]:
    """Everything that is wrong with the memory plan of a function, in program order."""
    body = read_body(function)
    at = layouts(function, body)
    attributes = function.operation.attributes
    if "gflow.arena_size" not in attributes:
        yield (
            "the function has no gflow.arena_size; run gflow-plan-memory first",
            function.operation,
        )
        return
    for name in ("gflow.arena_size", "gflow.lower_bound"):
        if name in attributes and not isinstance(attributes[name], ir.IntegerAttr):
            yield f"{name} must be an integer, found {attributes[name]}", function.operation
            return
    size = ir.IntegerAttr(attributes["gflow.arena_size"]).value
    if "gflow.lower_bound" in attributes:
        bound = ir.IntegerAttr(attributes["gflow.lower_bound"]).value
        if size < bound:
            yield f"the arena of {size} bytes is below its bound of {bound}", function.operation
    places: dict[int, tuple[str, int]] = {}
    for o in body.ops:
        if o.name != "constant" and not is_view(o, at):
            found = _places(o)
            if found is None:
                yield 'needs a place for each result: gflow.buffers = ["arena:<offset>", …]', o.op
                return
            places.update(zip(o.results, found))
            places.update((at[r].base, place) for r, place in zip(o.results, found))
    yield from _arena(body, at, places, size)
    yield from _returned(body, at, places, aliases(function, body))


def _places(o: Op) -> list[tuple[str, int]] | None:
    """What the op's `gflow.buffers` says; None where it says nothing sensible."""
    if "gflow.buffers" not in o.op.attributes:
        return None
    attribute = o.op.attributes["gflow.buffers"]
    if not isinstance(attribute, ir.ArrayAttr) or len(attribute) != len(o.results):
        return None
    found = []
    for entry in attribute:
        match = _PLACE.fullmatch(entry.value) if isinstance(entry, ir.StringAttr) else None
        if match is None:
            return None
        found.append((match[1], int(match[2])))
    return found


def _arena(
    body: Body, at: list[Layout], places: dict[int, tuple[str, int]], size: int
) -> Iterator[Problem]:
    """Values in the arena lie within it, and on none that is needed still."""
    last = last_uses(body, at)
    live: list[tuple[int, int, int]] = []  # (low, high, value), by address; they don't overlap
    dying: dict[int, list[int]] = {}  # op → values that die after it
    for o in body.ops:
        for n, r in enumerate(o.results):
            space, low = places.get(r, ("", 0))
            if space != "arena":
                continue
            whole = at[r].base  # of which it may be a part
            high = low + max(body.types[whole].nbytes, 1)
            if low % ALIGN or high > size:
                yield f"bytes {low} to {high} are not an aligned part of an arena of {size}", o.op
                continue
            first = bisect_right(live, low, key=lambda entry: entry[1])
            after = bisect_left(live, high, key=lambda entry: entry[0])
            taken = live[first:after]
            for _, _, old in taken:
                if old != whole and not _may_take_over(body, at, o, n, old, last, places):
                    yield _overlap(body, o, n, old), o.op
            live[first:after] = [(low, high, whole)]
            dies = max(last.get(whole, o.index), body.producer[whole])
            dying.setdefault(dies, []).append(whole)
        yield from _scratch(o, live, size)
        for v in dying.pop(o.index, ()):
            first = bisect_left(live, places[v][1], key=lambda entry: entry[0])
            if first < len(live) and live[first][2] == v:
                del live[first]


def _scratch(o: Op, live: list[tuple[int, int, int]], size: int) -> Iterator[Problem]:
    """An op's scratch lies in the arena, on nothing that is live while it runs."""
    if "gflow.scratch" not in o.op.attributes:
        return
    attribute = o.op.attributes["gflow.scratch"]
    if not isinstance(attribute, ir.DenseI64ArrayAttr) or len(attribute) != 2 or min(attribute) < 0:
        yield f"gflow.scratch must be array<i64: offset, bytes>, found {attribute}", o.op
        return
    low, length = attribute
    if low % ALIGN or low + length > size:
        yield f"scratch of {length} bytes at {low} is no aligned part of an arena of {size}", o.op
    first = bisect_right(live, low, key=lambda entry: entry[1])
    if first < len(live) and live[first][0] < low + length:
        yield "scratch overlaps a live value", o.op


def _may_take_over(
    body: Body,
    at: list[Layout],
    o: Op,
    n: int,
    old: int,
    last: dict[int, int],
    places: dict[int, tuple[str, int]],
) -> bool:
    """Whether result `n` of `o` may lie where `old` does, which is live when `o` runs."""
    r = o.results[n]
    reads = [i for i, v in enumerate(o.operands) if at[v].base == old]
    if o.name != "fused" or len(reads) != 1 or last.get(old) != o.index or old in o.results:
        return False
    v = o.operands[reads[0]]
    same = places[old] == places[r] and body.types[old].nbytes == body.types[r].nbytes
    whole = body.types[v].numel == body.types[old].numel and in_order(at[v], body.types[v].shape)
    return same and whole and reads_where_it_writes(o.op, reads[0], n)


def _overlap(body: Body, o: Op, n: int, old: int) -> str:
    maker = body.ops[body.producer[old]]
    return (
        f"result {n} overwrites result {maker.results.index(old)} of gflow.{maker.name} "
        f"(op {maker.index}), which is needed still"
    )


def _returned(
    body: Body,
    at: list[Layout],
    places: dict[int, tuple[str, int]],
    target: list[int | None],
) -> Iterator[Problem]:
    """Returned values are where the caller looks; no old value is read after its update."""
    due: dict[int, tuple[str, int]] = {}
    for n, (v, alias) in enumerate(zip(owners(body, at, target), target)):
        if alias is not None and v == body.arguments[alias]:
            continue
        due[v] = ("result", n) if alias is None else ("arg", alias)
        if places.get(v) != due[v]:
            yield f"result {n} of the function must lie in {due[v][0]}:{due[v][1]}", body.terminator
    readers: dict[int, list[int]] = {}
    for o in body.ops:
        for v in o.operands:
            readers.setdefault(at[v].base, []).append(o.index)
    for v, (space, number) in places.items():
        o = body.ops[body.producer[v]]
        if space != "arena" and due.get(v) != (space, number):
            yield f"{space}:{number} is not this value's place", o.op
        if space != "arg" or number >= len(body.arguments):
            continue
        argument = body.arguments[number]
        for i in readers.get(argument, ()):
            if i > o.index or (i == o.index and not _in_place(at, o, v, argument)):
                yield f"reads argument {number} after gflow.{o.name} updated it", body.ops[i].op


def _in_place(at: list[Layout], o: Op, value: int, argument: int) -> bool:
    """Whether an op that reads the argument it updates does so only where it writes."""
    reads = [n for n, v in enumerate(o.operands) if at[v].base == argument]
    return o.name == "fused" and all(
        o.operands[n] == argument and reads_where_it_writes(o.op, n, o.results.index(value))
        for n in reads
    )
