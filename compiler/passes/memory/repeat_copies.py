"""Repeat a copy before its next reader, instead of keeping it, at the memory peak.

Before, where `%c` needs a copy of `%t`, and `%a` is live until the end in any case:

    %a = "gflow.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %t = "gflow.transpose"(%a) {permutation = array<i64: 1, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %c = "gflow.reshape"(%t) {shape = array<i64: 4, 16>} : (tensor<8x8xf32>) -> tensor<4x16xf32>
    %0 = "gflow.matmul"(%v, %c) : (tensor<32x4xf32>, tensor<4x16xf32>) -> tensor<32x16xf32>
    %1 = "gflow.matmul"(%0, %w) : (tensor<32x16xf32>, tensor<16x16xf32>) -> tensor<32x16xf32>
    %2 = "gflow.matmul"(%c, %u) : (tensor<4x16xf32>, tensor<16x32xf32>) -> tensor<4x32xf32>
    %3 = "gflow.matmul"(%2, %1) : (tensor<4x32xf32>, tensor<32x16xf32>) -> tensor<4x16xf32>
    %4 = "gflow.matmul"(%a, %a) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>

After `gflow-fuse{epilogues=false},gflow-materialize,gflow-repeat-copies`:

    %a = "gflow.matmul"(%x, %x) : …
    %t = "gflow.transpose"(%a) … : …
    %k = "gflow.fused"(%t) … : …
    %c = "gflow.reshape"(%k) {shape = array<i64: 4, 16>} : …
    %0 = "gflow.matmul"(%v, %c) : …
    %1 = "gflow.matmul"(%0, %w) : …
    %l = "gflow.fused"(%t) … : …
    %d = "gflow.reshape"(%l) {shape = array<i64: 4, 16>} : …
    %2 = "gflow.matmul"(%d, %u) : …
    %3 = "gflow.matmul"(%2, %1) : …
    %4 = "gflow.matmul"(%a, %a) : …

The pass runs after `gflow-materialize`. A kernel is repeated under three conditions: it does little arithmetic (copies,
casts); all its operands are still live where the result is needed again; and the result is live at the op with the most
live bytes, but not read by it. So no live range gets longer, and each repetition lowers the peak. A
kernel that nothing reads afterwards is erased. Results below a ten-thousandth of the peak are not worth a launch.
"""

from __future__ import annotations

from dataclasses import field

from gflow.compiler.ir.ssa import Op, fused_kind
from gflow.compiler.ir.views import VIEW_OPS
from gflow.compiler.memory.liveness import Lives, last_uses, lives_at_entry, lives_of
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.records import record

from ..base import Kept, Pass

#: the least share of the peak for which a value is copied again
_WORTH = 0.0001


@record
class RepeatCopiesOptions:
    """Options of gflow-repeat-copies."""

    cost: int = field(
        default=2,
        metadata={"doc": "the most arithmetic for each element (an add is 1) of a repeated kernel"},
    )
    rounds: int = field(
        default=4, metadata={"doc": "the number of peaks that are lowered, one after the other"}
    )


def run(function: func.FuncOp, options: RepeatCopiesOptions) -> Kept | None:
    """Repeat copies of the function before their next readers, as long as the lower bound of its memory decreases."""
    lives = lives_at_entry(function)
    kept: Kept | None = Kept.BODY
    for _ in range(options.rounds):
        before = lives.lower_bound
        if not before or not _repeat(lives, lives.per_op.index(before), options.cost):
            break
        kept = None
        lives = lives_of(function)
        if lives.lower_bound >= before:
            break
    return kept


def _repeat(lives: Lives, peak: int, cost: int) -> bool:
    """Repeat values that are live across op `peak` after it, where possible. Returns whether one was repeated."""
    body, at = lives.body, lives.at
    worth = lives.lower_bound * _WORTH
    live = {
        v
        for v, n in lives.buffer_of.items()
        if body.producer[v] < peak and lives.buffers[n].end > peak and lives.buffers[n].size > worth
    }
    reads: dict[int, list[Op]] = {v: [] for v in live}
    for o in lives.making:
        for base in {at[v].base for v in o.operands} & live:
            reads[base].append(o)
    last = last_uses(body, at)
    updated = {
        body.arguments[int(place.removeprefix("arg:"))]: body.producer[v]
        for v, place in lives.place.items()
        if place.startswith("arg:")
    }
    found = False
    for v in sorted(live):
        o = body.ops[body.producer[v]]
        later = [user for user in reads[v] if user.index > peak]
        if not later or any(user.index == peak for user in reads[v]) or not _cheap(o, cost):
            continue
        if not all(_through_views(lives, w, v) for user in later for w in user.operands):
            continue
        first = later[0].index
        bases = [at[w].base for w in o.operands]
        if all(_stays(lives, base, first, last, updated) for base in bases):
            _repeat_for(lives, o, v, later)
            found = True
    return found


def _through_views(lives: Lives, value: int, base: int) -> bool:
    """Whether a value is `base` or a view of it that can be rebuilt."""
    while value != base and lives.at[value].base == base:
        view = lives.body.ops[lives.body.producer[value]]
        if view.name not in VIEW_OPS:
            return False
        value = view.operands[0]
    return True


def _cheap(o: Op, cost: int) -> bool:
    """Whether an op is a pointwise kernel with one result and at most `cost` operations per element."""
    if fused_kind(o.op) != "pointwise" or len(o.results) != 1:
        return False
    total = 0
    for inner in o.op.regions[0].blocks[0].operations:
        definition = OPS[inner.operation.name.removeprefix("gflow.")]
        if definition.category == "random":
            return False
        total += definition.cost if definition.category == "elementwise" else 0
    return total <= cost


def _stays(
    lives: Lives, base: int, until: int, last: dict[int, int], updated: dict[int, int]
) -> bool:
    """Whether a value is live until op `until` even without the copy."""
    if base in lives.buffer_of:
        return last[base] >= until
    if lives.body.producer[base] < 0:
        return updated.get(base, until) >= until
    return base not in lives.place or lives.place[base].startswith("result:")


def _repeat_for(lives: Lives, o: Op, value: int, users: list[Op]) -> None:
    """Repeat `o` before the first of `users`, which read its result or views of it."""
    body = lives.body
    at = ir.InsertionPoint(users[0].op)
    new: dict[int, ir.Value] = {value: o.op.clone(at).results[0]}

    def renewed(v: int) -> ir.Value:
        if v not in new:
            view = body.ops[body.producer[v]]
            copy = view.op.clone(at)
            copy.operands[0] = renewed(view.operands[0])
            new[v] = copy.results[0]
            copy.move_after(new[view.operands[0]].owner.operation)
        return new[v]

    for user in users:
        for n, v in enumerate(user.operands):
            if lives.at[v].base == value:
                user.op.operands[n] = renewed(v)
    _erase_unread(lives, value)


def _erase_unread(lives: Lives, value: int) -> None:
    """Erase the producer of `value`, and views of it, if they have no readers left."""
    views = [
        o for o in lives.body.ops if o.name in VIEW_OPS and lives.at[o.results[0]].base == value
    ]
    for o in [*reversed(views), lives.body.ops[lives.body.producer[value]]]:
        if not list(o.op.results[0].uses):
            o.op.erase()


PASS = Pass("gflow-repeat-copies", run, RepeatCopiesOptions, __doc__ or "")
