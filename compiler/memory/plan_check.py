"""Verification of a function's memory plan, from its IR alone.

It does not rely on the planner: places are read from `gflow.buffers`, live ranges from the order of ops, layouts from
the function's attributes. Its time is linear in the number of ops, so it runs in every compilation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import groupby

from gflow.dialects.marks import (
    LAUNCH,
    kind_of,
    launch_of,
    precision,
    result_written_first,
    widened,
)
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.attention import multiplied
from gflow.dialects.ops.structure import CHECK, ENGINE
from gflow.dialects.types import (
    HALVES,
    TensorType,
    is_row_major,
    row_major_strides,
    share_memory,
    type_of,
)

from ..ir.fused import root_of, root_operands
from ..ir.ssa import Body, Op, aliases, read_body
from ..ir.views import Layout, extent_bytes, is_view, layouts, readers, row_of
from .in_place import OVERWRITES, TAKE_OVER, adds_in_place
from .layouts import readable, writable
from .liveness import ALIGN, TakesOver, dies_at, last_uses, reduces_in_place
from .places import PlanPlace, given_addresses, places_of
from .results import owners, same_order
from .spans import Together

#: the message of an error, and the op at which it was found
Problem = tuple[str, ir.Operation]


def problems(function: func.FuncOp) -> Iterator[Problem]:
    """The errors of a function's memory plan, in program order."""
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
    places: dict[int, PlanPlace] = {}
    making = [o for o in body.ops if o.name != "constant" and not is_view(o, at)]
    for o in making:
        found = places_of(o.op)
        if found is None:
            yield 'needs a place for each result: gflow.buffers = ["arena:<offset>", …]', o.op
            return
        for r, place in zip(o.results, found):
            whole = places.setdefault(at[r].base, place)  # a result may be a part of another value
            if whole != place:
                yield f"lies in {place}, and what it is a part of in {whole}", o.op
            places[r] = place
    yield from _layouts(body, at, places, making)
    may = TakesOver()
    yield from _arena(body, at, places, size, may)
    yield from _returned(body, at, places, aliases(function, body), may)
    yield from _launches(body, at, places)
    for o in making:
        number = result_written_first(o.op)
        if number is not None and not _can_be_written_first(body, at, places, o, number):
            yield (
                f"cannot write its contraction to result {number} (into of gflow.kernel) first",
                o.op,
            )
        if precision(o.op) == "bf16" and any(ty.dtype != "bf16" for ty in _multiplied(o)):
            yield "multiplies as bfloat16 (precision of gflow.kernel) what is no bfloat16", o.op
        if widened(o.op) and not _widens_halves(o):
            yield (
                "must widen all operands and results in half precision (widened of gflow.kernel)",
                o.op,
            )


def _contracted(o: Op) -> list[TensorType]:
    """The types of operands and results of an op, or of its contraction."""
    op = (root_of(o.op) if o.name == "fused" else None) or o.op
    return [type_of(v) for v in (*op.operands, *op.results)]


def _multiplied(o: Op) -> list[TensorType]:
    """The types of the values that a product in "bf16" has to do with."""
    types = _contracted(o)
    return [types[n] for n in multiplied(o.name, len(o.operands))] or types


def _widens_halves(o: Op) -> bool:
    """Whether an op's kernel widens all values in half precision of the op, or of its contraction, and no others.

    Products in "bf16" may read bfloat16 operands as they are, and widen the result alone; attention widens a bias and
    gradients.
    """
    root = root_of(o.op) if o.name == "fused" else None
    every = [*o.operands, *o.results]
    if root is not None:
        every = [*(o.operands[n] for n in root_operands(root)), -1]
    types, numbers = _contracted(o), widened(o.op)
    halves = {v for v, ty in zip(every, types, strict=True) if ty.dtype in HALVES}
    if precision(o.op) == "bf16" and numbers == (len(types) - 1,):
        return True
    if precision(o.op) == "bf16":
        halves -= {every[n] for n in multiplied(o.name, len(o.operands))}
    return all(0 <= n < len(every) for n in numbers) and {every[n] for n in numbers} == halves


def _can_be_written_first(
    body: Body, at: list[Layout], places: dict[int, PlanPlace], o: Op, number: int
) -> bool:
    """Whether an op's contraction, which it does not return, fits into the buffer of one of its results, and no operand
    is there."""
    root = root_of(o.op) if o.name == "fused" else None
    if root is None or not 0 <= number < len(o.results):
        return False
    value, r = root.results[0], o.results[number]
    ty, own = type_of(value), body.types[r]
    if any(v == value for v in root.block.operations[-1].operation.operands):
        return False
    arguments = len(body.arguments)
    bases = [at[v].base for v in o.operands]
    taken = [
        ("arg", v) if v < arguments else places[v][:2]
        for v in bases
        if v < arguments or v in places
    ]
    fits = (own.dtype, own.numel) == (ty.dtype, ty.numel) and is_row_major(own.shape, at[r].strides)
    return fits and places[r][:2] not in taken


def _layouts(
    body: Body, at: list[Layout], places: dict[int, PlanPlace], making: list[Op]
) -> Iterator[Problem]:
    """Check that ops support the strides with which values are placed: producers for writing, users for reading."""
    for o in body.ops:
        for n, v in enumerate(o.operands):
            if not readable(o, n, body.types[v].shape, at):
                yield f"cannot read operand {n} with strides {[*at[v].strides]}", o.op
    for o in making:
        for n, r in enumerate(o.results):
            shape, strides = body.types[r].shape, at[r].strides
            place = places[r]
            if place.space != "arg":
                dense = at[r].base != r or is_row_major(shape, strides)
                dense = dense or (place.space == "arena" and row_of(body, at, r) is not None)
                if place.strides is not None or not dense:
                    yield f"result {n} in {place} is read with strides {[*strides]}", o.op
            elif (place.strides or row_major_strides(shape)) != strides:
                yield f"result {n} in {place} is read with strides {[*strides]}", o.op
            if not writable(o, shape, strides):
                yield f"cannot write result {n} with strides {[*strides]}", o.op
            if share_memory(shape, strides):
                yield f"elements of result {n} share memory: its strides are {[*strides]}", o.op


def _arena(
    body: Body, at: list[Layout], places: dict[int, PlanPlace], size: int, may: TakesOver
) -> Iterator[Problem]:
    """Check that values in the arena are within it, and do not overlap values that are still live."""
    last = last_uses(body, at)
    live: list[tuple[int, int, int]] = []  # (low, high, value), sorted by address, disjoint
    dying: dict[int, list[int]] = {}  # by op: the values whose last use it is
    for o in body.ops:
        for n, r in enumerate(o.results):
            if r not in places or places[r].space != "arena":
                continue
            low = places[r].number
            whole = at[r].base  # of which it may be a part
            high = low + max(extent_bytes(body.types[whole], at[whole].strides), 1)
            if low % ALIGN or high > size:
                yield f"bytes {low} to {high} are not an aligned part of an arena of {size}", o.op
                continue
            first = bisect_right(live, low, key=lambda entry: entry[1])
            after = bisect_left(live, high, key=lambda entry: entry[0])
            taken = live[first:after]
            for _, _, old in taken:
                if old != whole and not _may_take_over(body, at, o, n, old, last, places, may):
                    yield _overlap(body, o, n, old), o.op
            live[first:after] = [(low, high, whole)]
            dies = max(last.get(whole, o.index), body.producer[whole])
            dying.setdefault(dies, []).append(whole)
        yield from _scratch(o, live, size)
        for v in dying.pop(o.index, ()):
            first = bisect_left(live, places[v].number, key=lambda entry: entry[0])
            if first < len(live) and live[first][2] == v:
                del live[first]


def _scratch(o: Op, live: list[tuple[int, int, int]], size: int) -> Iterator[Problem]:
    """Check that an op's scratch is within the arena, and does not overlap values that are live while the op runs."""
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
    places: dict[int, PlanPlace],
    may: TakesOver,
) -> bool:
    """Whether result `n` of `o` may overlap the value `old`, which is live when `o` runs."""
    r = o.results[n]
    reads = [i for i, v in enumerate(o.operands) if at[v].base == old]
    writes_over = o.name in TAKE_OVER or adds_in_place(o.op) or reduces_in_place(o)
    if not writes_over or len(reads) != 1 or old in o.results:
        return False
    if not dies_at(body, at, o, old, last):
        return False
    v = o.operands[reads[0]]
    same = places[old] == places[r] and body.types[old].nbytes == body.types[r].nbytes
    whole = body.types[v].numel == body.types[old].numel and same_order(body, at, v, r)
    return same and whole and may(o, reads[0], n)


def _overlap(body: Body, o: Op, n: int, old: int) -> str:
    maker = body.ops[body.producer[old]]
    return (
        f"result {n} overwrites result {maker.results.index(old)} of gflow.{maker.name} "
        f"(op {maker.index}), which is needed still"
    )


def _returned(
    body: Body,
    at: list[Layout],
    places: dict[int, PlanPlace],
    target: list[int | None],
    may: TakesOver,
) -> Iterator[Problem]:
    """Check that returned values are at the caller's places, and that no argument is read after its update."""
    due: dict[int, tuple[str, int]] = {}
    for n, (v, alias) in enumerate(zip(owners(body, at, target), target)):
        if alias is not None and v == body.arguments[alias]:
            continue
        due[v] = ("result", n) if alias is None else ("arg", alias)
        if v not in places or places[v][:2] != due[v]:
            yield f"result {n} of the function must lie in {due[v][0]}:{due[v][1]}", body.terminator
    reads = readers(body, at)
    checks = [o.index for o in body.ops if o.name == CHECK]
    for v, (space, number, _) in places.items():
        o = body.ops[body.producer[v]]
        if space == "arg" and checks and o.index < checks[-1]:
            yield f"updates argument {number} before gflow.{CHECK} (op {checks[-1]})", o.op
        if space != "arena" and due.get(v) != (space, number):
            yield f"{space}:{number} is not this value's place", o.op
        if space != "arg" or number >= len(body.arguments):
            continue
        argument = body.arguments[number]
        for i in reads.get(argument, ()):
            if i > o.index or (i == o.index and not _in_place(at, o, v, argument, may)):
                yield f"reads argument {number} after gflow.{o.name} updated it", body.ops[i].op


def _in_place(at: list[Layout], o: Op, value: int, argument: int, may: TakesOver) -> bool:
    """Whether an op that reads the argument that it updates reads each position before it writes it."""
    reads = [n for n, v in enumerate(o.operands) if at[v].base == argument]
    if o.name == ENGINE:  # an engine has read its operands before it writes
        return True
    return o.name in OVERWRITES and all(
        o.operands[n] == argument and may(o, n, o.results.index(value)) for n in reads
    )


def _launches(body: Body, at: list[Layout], places: dict[int, PlanPlace]) -> Iterator[Problem]:
    """Check that ops of one `gflow.launch` are adjacent, and that none reads or writes memory that another one writes.

    On a CPU, such ops may only update arguments.
    """
    done: set[int] = set()
    if not any(LAUNCH in o.op.attributes for o in body.ops):
        return
    where = given_addresses(body) | {v: place.address for v, place in places.items()}
    for launch, group in groupby(body.ops, key=lambda o: launch_of(o.op)):
        if launch is None:
            continue
        ops = list(group)
        if launch in done:
            yield f"the ops of launch {launch} do not stand together", ops[0].op
        done.add(launch)
        together = Together(body, at, where)
        for o in ops:
            shares = len(ops) > 1 and kind_of(o.op) not in ("merged", "product")
            for place in (places[r] for r in o.results if shares and r in places):
                if place.space != "arg":
                    yield (
                        f"launch {launch} writes {place}; only updates of arguments share one",
                        o.op,
                    )
            span = together.conflict(o)
            if span is not None:
                memory = f"bytes {span.low} to {span.high} of {span.space}:{span.index}"
                yield f"meets another op of launch {launch} in {memory}", o.op
            together.add(o)
