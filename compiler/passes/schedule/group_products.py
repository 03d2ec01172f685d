"""Delay products whose results are not read, and make them adjacent, where one launch of them fills the device better.

Before, where both products update a parameter, and each has fewer tiles than the device has multiprocessors:

    %w0 = "gflow.fused"(%dy, %x, %p0) ({ … "gflow.matmul" … "gflow.sub" … }) … : …
    %dz = "gflow.fused"(%dy, %v) … : …
    %w1 = "gflow.fused"(%dz, %z, %p1) ({ … "gflow.matmul" … "gflow.sub" … }) … : …

After `gflow-group-products{target=cuda:90}`:

    %dz = "gflow.fused"(%dy, %v) … : …
    %w0 = "gflow.fused"(%dy, %x, %p0) … {gflow.launch = 0 : i64} : …
    %w1 = "gflow.fused"(%dz, %z, %p1) … {gflow.launch = 0 : i64} : …

A weight gradient has a long K and a small result. In a launch of its own it uses split-K to keep the device busy,
writes partial sums and adds them in a second launch. Several of them together have enough tiles without split-K, which
saves bytes and launches. The weight gradient of a pointwise convolution is such a product, too, and that of a depthwise
convolution over few positions, whose programs fill no device, is treated as one. A product may be delayed if no op
reads its results (the program returns them), and no op in between updates an argument that it reads. Its operands stay
live until then, so the pass groups products only as long as no op needs more memory than the original peak. Dynamic
programming finds the partition of the products into launches with the least predicted time, by the model of tiles.

`gflow-select-kernels` chooses one tile for the products of a launch, and `gflow-merge-launches` checks the launch once
places in memory are known. Products without an epilogue, which a library may run, stay alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field

from gflow.compiler.ir.ssa import Body, Op, read_body
from gflow.compiler.ir.views import layouts
from gflow.compiler.kernel.selection.gpu.chooser import tf32_allowed
from gflow.compiler.kernel.selection.gpu.product.contraction import contraction_of
from gflow.compiler.kernel.selection.gpu.product.shared import (
    TF32_OF,
    Member,
    member_of,
    seconds_of,
    shares,
)
from gflow.compiler.memory.liveness import lives_of
from gflow.compiler.targets import KINDS, Target
from gflow.dialects.marks import LAUNCH
from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record

from ..base import Pass, gpu_of
from .dependences import dependences_of


@record
class GroupProductsOptions:
    """Options of gflow-group-products."""

    target: str = field(
        default="", metadata={"doc": f"the GPU whose launches are counted: {', '.join(KINDS)}"}
    )
    most: int = field(default=16, metadata={"doc": "the most products of one launch"})


def run(function: func.FuncOp, options: GroupProductsOptions) -> None:
    """Move products of the function next to each other, and number the launches that they share.

    Raises:
        PassError: the target is unknown, or no GPU.
    """
    target = gpu_of(options.target, "products share launches")
    body = read_body(function)
    families = _families(function, body, target)
    if not families:
        return
    room = _Room(function, body)
    launches = 0
    for members in families:
        for first, last in _runs(members, room, options.most, target):
            ops = [o for o, _ in members[first:last]]
            room.take(ops)
            for o in ops:
                o.op.attributes[LAUNCH] = ir.IntegerAttr.get(
                    ir.IntegerType.get_signless(64), launches
                )
                if o is not ops[-1]:
                    o.op.move_before(ops[-1].op)
            launches += 1


def _families(function: func.FuncOp, body: Body, target: Target) -> list[list[tuple[Op, Member]]]:
    """Products whose results are only returned, grouped by kernel, in program order."""
    at = layouts(function, body)
    tf32 = {name: tf32_allowed(function, name, target) for name in TF32_OF.values()}
    found: dict[Hashable, list[tuple[Op, Member]]] = {}
    for o in body.ops:
        if not shares(o) or any(body.users[r] for r in o.results):
            continue
        c = contraction_of(o, body, at)
        member = None if c is None else member_of(c, tf32, target)
        if member is not None:
            found.setdefault(member.text, []).append((o, member))
    return [members for members in found.values() if len(members) > 1]


class _Room:
    """Which ops can be delayed, by dependences and memory.

    Args:
        live: live bytes at each op.
        peak: their limit.
        dying: bytes of the buffers whose last reader is an op.
        until: the op before which an op must run.
    """

    def __init__(self, function: func.FuncOp, body: Body) -> None:
        lives = lives_of(function)
        self.live = lives.per_op
        self.peak = max(self.live, default=0)
        self.dying = [0] * len(body.ops)
        for b in lives.buffers:
            self.dying[b.end] += b.size
        self.until = [
            min((i for i in after if i > n), default=len(body.ops))
            for n, after in enumerate(dependences_of(function, body).after)
        ]

    def allows(self, ops: Sequence[Op]) -> bool:
        """Whether all ops but the last can be delayed to the last, given that all but the last two can be delayed to
        the second to last."""
        *before, last = (o.index for o in ops)
        if any(self.until[i] <= last for i in before):
            return False
        held = sum(self.dying[i] for i in before)
        return all(self.live[i] + held <= self.peak for i in range(before[-1] + 1, last + 1))

    def take(self, ops: Sequence[Op]) -> None:
        """Delay all ops to the last one."""
        *before, last = (o.index for o in ops)
        for i in before:
            for n in range(i + 1, last + 1):
                self.live[n] += self.dying[i]


def _runs(
    members: Sequence[tuple[Op, Member]], room: _Room, most: int, target: Target
) -> list[tuple[int, int]]:
    """The partition of members into runs with the least total time, as (first, end); runs of one member are
    omitted."""
    known: dict[tuple[Member, ...], float | None] = {}
    least, begin = [0.0], [0]
    ops = [o for o, _ in members]
    reach = [_reach(ops, n, room, most) for n in range(len(ops))]
    for end in range(1, len(members) + 1):
        best, first = least[end - 1] + members[end - 1][1].alone, end - 1
        for n in range(max(0, end - most), end - 1):
            if reach[n] < end:
                continue
            run = tuple(m for _, m in members[n:end])
            if run not in known:
                known[run] = seconds_of(run, target)
            took = known[run]
            if took is not None and least[n] + took < best:
                best, first = least[n] + took, n
        least.append(best)
        begin.append(first)
    found, end = [], len(members)
    while end:
        if end - begin[end] > 1:
            found.append((begin[end], end))
        end = begin[end]
    return found[::-1]


def _reach(ops: Sequence[Op], first: int, room: _Room, most: int) -> int:
    """The end (exclusive) of the ops to which those from `first` on can be delayed."""
    end = first + 1
    while end < min(len(ops), first + most) and room.allows(ops[first : end + 1]):
        end += 1
    return end


PASS = Pass("gflow-group-products", run, GroupProductsOptions, __doc__ or "")
