"""Which bytes are live when: the buffers of a function, and from which op to which each is needed.

`lives_of` answers for any function of the dialect, planned or not, so passes that decide what to
keep and what to compute again can ask it too. Sizes are in bytes, times are op numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from gflow.dialects.mlir import func

from ..ir.ssa import Body, Op, aliases, read_body
from ..ir.views import Layout, extent_bytes, is_view, layouts
from .analyses import analysis
from .in_place import FusedKernel
from .results import owners, same_order

#: buffers start at multiples of this: a cache line, and the widest vector
ALIGN = 64


@dataclass
class Buffer:
    """`size` bytes that are live from op `start` to op `end`, both included."""

    size: int
    start: int
    end: int


def aligned(size: int) -> int:
    """The bytes that a buffer takes up: a multiple of `ALIGN`, and never none."""
    return max(-(-size // ALIGN), 1) * ALIGN


def live_bytes(buffers: Iterable[Buffer], ops: int) -> list[int]:
    """For each of `ops` ops the bytes that are live while it runs."""
    change = [0] * (ops + 1)
    for b in buffers:
        change[b.start] += b.size
        change[b.end + 1] -= b.size
    return list(accumulate(change[:ops]))


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The largest sum of sizes live at one op: no arena can be smaller."""
    return max(live_bytes(buffers, max((b.end + 1 for b in buffers), default=0)), default=0)


class TakesOver:
    """Whether a kernel's result may lie where an operand does, asked once for each pair."""

    def __init__(self) -> None:
        self._kernels: dict[int, FusedKernel] = {}
        self._known: dict[tuple[int, int], bool] = {}

    def __call__(self, o: Op, operand: int, result: int) -> bool:
        key = (o.results[result], operand)
        if o.name == "index_copy":
            return operand == 0
        if key not in self._known:
            kernel = self._kernels.get(o.results[0])
            if kernel is None:
                kernel = self._kernels[o.results[0]] = FusedKernel(o.op)
            self._known[key] = kernel.reads_where_it_writes(operand, result)
        return self._known[key]


@dataclass
class Lives:
    """What of a function lies where, and when.

    body, at: the function, and how its values lie. making: the ops that write memory of their own.
    place: returned value, or what it shows → `result:<n>` or `arg:<n>`, where the op that makes it writes it.
    buffers: of all other values. buffer_of: value → number of the buffer that it lies in.
    taken: value → the operand whose buffer it took over. takes_over: which may; None: none.
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
        """The bytes of buffers that are live at each op."""
        return live_bytes(self.buffers, len(self.body.ops))

    @property
    def lower_bound(self) -> int:
        """The largest of them: the smallest arena that this order of ops could do with."""
        return max(self.per_op, default=0)


def lives_of(
    function: func.FuncOp, *, take_over: bool = True, read: tuple[Body, list[Layout]] | None = None
) -> Lives:
    """The lives of a function's values, in the order in which its ops stand.

    Views live in what they look at. Before gflow-materialize the copies that it will insert are
    not there to be counted.

    Args:
        take_over: let a kernel's result take over the buffer of an operand that dies in it.
        read: the function as it stands and its layouts, where these are known.
    """
    if read is None:
        body = read_body(function)
        read = body, layouts(function, body)
    body, at = read
    target = aliases(function, body)
    place: dict[int, str] = {}
    for n, (v, alias) in enumerate(zip(owners(body, at, target), target)):
        place[v] = f"result:{n}" if alias is None else f"arg:{alias}"
    return lives_in(body, at, place, TakesOver() if take_over else None)


def lives_at_entry(function: func.FuncOp, *, take_over: bool = True) -> Lives:
    """As `lives_of`, for a pass that asks before it changes anything: they may be known from the pass before it, and
    are not to be changed."""
    key = (lives_at_entry, take_over)
    return analysis(function, key, lambda: lives_of(function, take_over=take_over))


def lives_in(
    body: Body, at: list[Layout], place: dict[int, str], takes_over: TakesOver | None
) -> Lives:
    """As `lives_of`, of a body in the order of `body.ops`, which may be another one than the IR's."""
    making = [o for o in body.ops if o.name != "constant" and not is_view(o, at)]
    lives = Lives(body, at, making, place, takes_over)
    last = last_uses(body, at)
    for v in body.returned:
        if at[v].base != v:  # gflow-materialize will copy it at the end
            last[at[v].base] = len(body.ops) - 1
    for o in making:
        for n, r in enumerate(o.results):
            if r not in place:
                _add(lives, last, o, n)
    return lives


def last_uses(body: Body, at: Sequence[Layout]) -> dict[int, int]:
    """For each value that is read, itself or through views, the last op that does."""
    return {at[v].base: o.index for o in body.ops for v in o.operands}


def _add(lives: Lives, last: dict[int, int], o: Op, n: int) -> None:
    """A buffer for result `n` of `o`: a dying operand's, or a new one."""
    r = o.results[n]
    whole = lives.at[r].base
    if whole != r:  # a part of another value, whose buffer it begins
        if whole not in lives.buffer_of:
            lives.buffer_of[whole] = len(lives.buffers)
            end = max(last.get(whole, o.index), lives.body.producer[whole])
            lives.buffers.append(Buffer(aligned(lives.body.types[whole].nbytes), o.index, end))
        lives.buffer_of[r] = lives.buffer_of[whole]
        return
    if r in lives.buffer_of:  # its parts lie there already
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


def _dying(lives: Lives, last: dict[int, int], o: Op, n: int) -> int | None:
    """An operand of a fused op whose buffer result `n` can take over; None without any.

    The value that lies in the buffer, where the operand is a view of all of it in its order.
    """
    if lives.takes_over is None or o.name != "fused":
        return None
    body, at = lives.body, lives.at
    ty = body.types[o.results[n]]
    gone = {lives.taken[r] for r in o.results if r in lives.taken}
    bases = [at[v].base for v in o.operands]
    for number, (v, base) in enumerate(zip(o.operands, bases)):
        if base not in lives.buffer_of or base in gone or last[base] != o.index:
            continue
        size, whole = body.types[v], body.types[base]
        if size.numel != ty.numel or size.numel != whole.numel or size.nbytes != ty.nbytes:
            continue
        if bases.count(base) > 1 or not same_order(body, at, v, o.results[n]):
            continue  # another view of it would be read at other positions
        if lives.takes_over(o, number, n):
            return base
    return None
