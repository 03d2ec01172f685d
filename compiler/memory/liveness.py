"""The buffers of a function and their live ranges.

`lives_of` works on any function of the dialect, with or without a memory plan, so passes that decide about
recomputation use it, too. Sizes are in bytes, times are op numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from gflow.dialects.mlir import func
from gflow.dialects.ops.distribution import COLLECTIVE, START

from ..ir.collectives import kind_of
from ..ir.ssa import Body, Op, aliases, read_body
from ..ir.views import Layout, extent_bytes, is_view, layouts
from .analyses import analysis
from .in_place import TAKE_OVER, FusedKernel, adds_in_place
from .results import owners, same_order

#: the alignment of buffers in bytes: a cache line, and the widest vector
ALIGN = 64


@dataclass
class Buffer:
    """`size` bytes that are live from op `start` to op `end`, both included."""

    size: int
    start: int
    end: int


def aligned(size: int) -> int:
    """The bytes that a buffer occupies: a multiple of `ALIGN`, and at least `ALIGN`."""
    return max(-(-size // ALIGN), 1) * ALIGN


def live_bytes(buffers: Iterable[Buffer], ops: int) -> list[int]:
    """For each of `ops` ops, the bytes that are live while it runs."""
    change = [0] * (ops + 1)
    for b in buffers:
        change[b.start] += b.size
        change[b.end + 1] -= b.size
    return list(accumulate(change[:ops]))


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The largest sum of live bytes at one op, which no arena can be smaller than."""
    return max(live_bytes(buffers, max((b.end + 1 for b in buffers), default=0)), default=0)


class TakesOver:
    """Whether an op's result may take over an operand's buffer (`in_place.py`), cached for each pair."""

    def __init__(self) -> None:
        self._kernels: dict[int, FusedKernel] = {}
        self._known: dict[tuple[int, int], bool] = {}

    def __call__(self, o: Op, operand: int, result: int) -> bool:
        key = (o.results[result], operand)
        if o.name in ("index_copy", "index_add", "put"):
            return operand == 0
        if o.name in (COLLECTIVE, START):
            return reduces_in_place(o) and operand == result == 0
        if key not in self._known:
            kernel = self._kernels.get(o.results[0])
            if kernel is None:
                kernel = self._kernels[o.results[0]] = FusedKernel(o.op)
            self._known[key] = kernel.reads_where_it_writes(operand, result)
        return self._known[key]


@dataclass
class Lives:
    """The buffers and live ranges of a function's values.

    Attributes:
        body: the function's values and ops.
        at: the layouts of its values.
        making: the ops that write memory, without views.
        place: for each returned value (or its base, if it is a view), where it is written: `result:<n>` or `arg:<n>`.
        buffers: the buffers of all other values.
        buffer_of: the number of a value's buffer, by value.
        taken: for values that took over the buffer of an operand: that operand.
        takes_over: says which results may take over an operand's buffer; None: none.
    """

    body: Body
    at: list[Layout]
    making: list[Op]
    place: dict[int, str]
    takes_over: TakesOver | None
    buffers: list[Buffer] = field(default_factory=list)
    buffer_of: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)

    @property
    def per_op(self) -> list[int]:
        """The bytes of live buffers at each op."""
        return live_bytes(self.buffers, len(self.body.ops))

    @property
    def lower_bound(self) -> int:
        """The greatest number of live bytes at one op: the smallest possible arena for this order of ops."""
        return max(self.per_op, default=0)


def lives_of(
    function: func.FuncOp, *, take_over: bool = True, read: tuple[Body, list[Layout]] | None = None
) -> Lives:
    """The live ranges of a function's values, in the current order of its ops.

    A view is in the buffer of its base. Before gflow-materialize, the copies that it will insert are not counted.

    Args:
        function: the function.
        take_over: whether a kernel's result may take over the buffer of an operand whose last use it is.
        read: the function's body and layouts, if they are known.
    """
    body, at = read or read_layouts(function)
    target = aliases(function, body)
    place: dict[int, str] = {}
    for n, (v, alias) in enumerate(zip(owners(body, at, target), target)):
        place[v] = f"result:{n}" if alias is None else f"arg:{alias}"
    return lives_in(body, at, place, TakesOver() if take_over else None)


def lives_at_entry(function: func.FuncOp, *, take_over: bool = True) -> Lives:
    """As `lives_of`, for a pass that has not changed the function yet: the result may come from the cache.

    The caller must not modify the result.
    """
    read = layouts_at_entry(function)
    # these ops may overwrite an operand once a kernel is chosen for them, which does not change the body
    chosen = tuple(o.index for o in read[0].ops if o.name == "index_add" and adds_in_place(o.op))
    key = (lives_at_entry, take_over, chosen)
    return analysis(function, key, lambda: lives_of(function, take_over=take_over, read=read))


def read_layouts(function: func.FuncOp) -> tuple[Body, list[Layout]]:
    """A function's body, and the layouts of its values."""
    body = read_body(function)
    return body, layouts(function, body)


def layouts_at_entry(function: func.FuncOp) -> tuple[Body, list[Layout]]:
    """As `read_layouts`, for code that has not changed the function yet: the result may come from the cache.

    The caller must not modify the result.
    """
    return analysis(function, layouts_at_entry, lambda: read_layouts(function))


def lives_in(
    body: Body, at: list[Layout], place: dict[int, str], takes_over: TakesOver | None
) -> Lives:
    """As `lives_of`, for a body in the order of `body.ops`, which may differ from the IR's order."""
    making = [o for o in body.ops if o.name != "constant" and not is_view(o, at)]
    lives = Lives(body, at, making, place, takes_over)
    last = last_uses(body, at)
    for v in body.returned:
        if at[v].base != v:  # gflow-materialize will insert a copy at the end
            last[at[v].base] = len(body.ops) - 1
    for o in making:
        for n, r in enumerate(o.results):
            if r not in place:
                _add(lives, last, o, n)
    return lives


def last_uses(body: Body, at: Sequence[Layout]) -> dict[int, int]:
    """For each value that is read, directly or through views, its last user."""
    return {at[v].base: o.index for o in body.ops for v in o.operands}


def _add(lives: Lives, last: dict[int, int], o: Op, n: int) -> None:
    """Assign a buffer to result `n` of `o`: that of an operand with its last use here, or a new one."""
    r = o.results[n]
    whole = lives.at[r].base
    if whole != r:  # a part of another value, whose live range begins here
        if whole not in lives.buffer_of:
            lives.buffer_of[whole] = len(lives.buffers)
            end = max(last.get(whole, o.index), lives.body.producer[whole])
            lives.buffers.append(Buffer(aligned(lives.body.types[whole].nbytes), o.index, end))
        lives.buffer_of[r] = lives.buffer_of[whole]
        return
    if r in lives.buffer_of:  # its parts were assigned before
        return
    end = max(last.get(r, o.index), o.index)
    old = _dying(lives, last, o, n)
    if old is None:
        lives.buffer_of[r] = len(lives.buffers)
        size = extent_bytes(lives.body.types[r], lives.at[r].strides)
        lives.buffers.append(Buffer(aligned(size), o.index, end))
    else:
        lives.taken[r] = old
        lives.buffer_of[r] = lives.buffer_of[old]
        lives.buffers[lives.buffer_of[r]].end = end


def reduces_in_place(o: Op) -> bool:
    """Whether an op is an all_reduce, or its start: backends reduce in place, and copy the operand first otherwise."""
    return o.name in (COLLECTIVE, START) and kind_of(o.op) == "all_reduce"


def dies_at(body: Body, at: Sequence[Layout], o: Op, base: int, last: Mapping[int, int]) -> bool:
    """Whether nothing reads an operand of `o` after it. The wait for a collective reads nothing of what is reduced in
    place, and nothing else may read it while that is under way.

    base: the operand, or what it is a view of. last: of `last_uses`.
    """
    if not (o.name == START and reduces_in_place(o)):
        return last.get(base) == o.index
    waits = body.users[o.results[0]]
    if len(waits) != 1 or last.get(base) != waits[0]:
        return False
    between = body.ops[o.index + 1 : waits[0]]
    return all(at[v].base != base for other in between for v in other.operands)


def _dying(lives: Lives, last: dict[int, int], o: Op, n: int) -> int | None:
    """The value whose buffer result `n` of an op can take over; None: there is none.

    It is an operand, or the base of an operand that is a view of all its elements in order.
    """
    writes_over = o.name in TAKE_OVER or adds_in_place(o.op) or reduces_in_place(o)
    if lives.takes_over is None or not writes_over:
        return None
    body, at = lives.body, lives.at
    ty = body.types[o.results[n]]
    gone = {lives.taken[r] for r in o.results if r in lives.taken}
    bases = [at[v].base for v in o.operands]
    for number, (v, base) in enumerate(zip(o.operands, bases)):
        if base not in lives.buffer_of or base in gone or not dies_at(body, at, o, base, last):
            continue
        size, whole = body.types[v], body.types[base]
        if size.numel != ty.numel or size.numel != whole.numel or size.nbytes != ty.nbytes:
            continue
        if bases.count(base) > 1 or not same_order(body, at, v, o.results[n]):
            continue  # it is also read through another view, at other positions
        if lives.takes_over(o, number, n):
            return base
    return None
