"""Let adjacent GPU kernels without memory dependences share launches: pointwise kernels, and grouped products.

Before, planned for a GPU:

    %0 = "gflow.fused"(%w0, %g0) … {gflow.buffers = ["arg:0"], gflow.kernel = {kind = "region", …}, …} : …
    %1 = "gflow.fused"(%x) … {gflow.buffers = ["arena:0"], …} : …
    %2 = "gflow.fused"(%w1, %g1) … {gflow.buffers = ["arg:1"], …} : …
    %3 = "gflow.fused"(%w2, %g2) … {gflow.buffers = ["arg:2"], …} : …
    %4 = "gflow.fused"(%w3, %g3) … {gflow.buffers = ["arg:3"], …} : …

After, where `%1` computes something else:

    %0 = "gflow.fused"(%w0, %g0) … {gflow.kernel = {kind = "merged", …}, gflow.launch = 0 : i64, …} : …
    %1 = "gflow.fused"(%w1, %g1) … {gflow.kernel = {kind = "merged", …}, gflow.launch = 0 : i64, …} : …
    %2 = "gflow.fused"(%w2, %g2) … {gflow.kernel = {kind = "merged", …}, gflow.launch = 0 : i64, …} : …
    %3 = "gflow.fused"(%w3, %g3) … {gflow.kernel = {kind = "merged", …}, gflow.launch = 0 : i64, …} : …
    %4 = "gflow.fused"(%x) … {gflow.kernel = {kind = "region", …}, …} : …

The updates of all parameters then take a few launches. Ops may share a launch if their kernels have the same source,
with addresses and sizes as parameters: elementwise kernels over one dimension. Memory dependences follow from the
planned addresses, so the pass runs after `gflow-plan-memory`. No op is moved past an op that it depends on, or past
the wait for a collective. All ops of a launch have one kernel choice, and the block size follows from all of them.

Products that `gflow-group-products` made adjacent keep their `gflow.launch` under two conditions: their kernel was
chosen for all of them (one tile for each program, K not split), and none writes memory that another one reads or
writes. Otherwise each runs alone.

Launches can be edited like other choices. An op without `gflow.launch`, with a kernel of kind "region", runs alone.
Code generation refuses a launch whose ops have different kernels. The pass does not merge an op whose kernel was
edited before. On a CPU `gflow-merge-updates` decides which ops share a step.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field
from itertools import groupby

from gflow.compiler.kernel.description import Kernel, describe
from gflow.compiler.kernel.selection.choice import Choice, choice_of, selected_for
from gflow.compiler.kernel.selection.gpu.product.shared import is_shared
from gflow.compiler.kernel.selection.gpu.region.launches import choose_region
from gflow.compiler.kernel.selection.gpu.region.merged import (
    Member,
    choose_merged,
    member_of,
    parts,
)
from gflow.compiler.memory.places import addresses
from gflow.compiler.memory.spans import Together, address
from gflow.compiler.targets import Device
from gflow.dialects.marks import KERNEL, LAUNCH, kind_of, launch_of
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.distribution import WAIT
from gflow.dialects.program import Place
from gflow.dialects.records import record

from ...ir.errors import CannotLower, PassError
from ...ir.ssa import Body, Op, fused_kind, read_body
from ...ir.views import Layout, is_view, layouts
from ..base import Pass, target_of


@record
class MergeLaunchesOptions:
    """Options of gflow-merge-launches."""

    least: int = field(
        default=4,
        metadata={
            "doc": "the fewest ops for which a merged kernel, which must be compiled in addition, is worthwhile"
        },
    )


def run(function: func.FuncOp, options: MergeLaunchesOptions) -> None:
    """Write the launches that ops share (`gflow.launch`) and how these run (`gflow.kernel`) into the function.

    Raises:
        PassError: no kernels are selected, or for a processor; values have no places.
    """
    target = target_of(selected_for(function))
    if target is None or not target.gpu:
        raise PassError("launches are merged for GPUs: run gflow-select-kernels for one first")
    if "gflow.arena_size" not in function.operation.attributes:
        raise PassError("launches follow from places in memory: run gflow-plan-memory first")
    body = read_body(function)
    at = layouts(function, body)
    _Pass(body, at, target.device, options.least).run()


class _Pass:
    """One run of the pass. window: adjacent ops without memory dependences, and ops between them that need no
    launch."""

    def __init__(self, body: Body, at: Sequence[Layout], device: Device, least: int) -> None:
        self.body, self.at, self.device, self.least = body, at, device, least
        self.places = addresses(body, at)
        self.launches = 0
        self.window: list[tuple[Op, Member | None]] = []
        self.together = Together(body, at, self.places)

    def run(self) -> None:
        products = self.products()
        for o in self.body.ops:
            if o.name == WAIT:  # the ops before it overlap with the collective
                self.flush(o.op)
                continue
            if is_view(o, self.at) or o.name == "constant":
                self.window.append((o, None))
                continue
            member = self.member(o)
            if LAUNCH in o.op.attributes and o.index not in products:
                del o.op.attributes[LAUNCH]  # launches of updates, as on a CPU
            if member is None or self.together.conflict(o) is not None:
                self.flush(o.op)
            if member is not None:
                self.window.append((o, member))
                self.together.add(o)
        self.flush(self.body.terminator)

    def products(self) -> set[int]:
        """Number the shared launches of products; products that cannot share run alone. Returns the ops that share."""
        found: set[int] = set()
        running = [o for o in self.body.ops if not is_view(o, self.at) and o.name != "constant"]
        for number, same in groupby(running, key=_shared_product):
            group = [*same]
            if number is None or len(group) == 1 or not self.side_by_side(group):
                continue
            for o in group:
                o.op.attributes[LAUNCH] = _number(self.launches)
                if o is not group[-1]:
                    o.op.move_before(group[-1].op)
            found |= {o.index for o in group}
            self.launches += 1
        return found

    def side_by_side(self, group: Sequence[Op]) -> bool:
        """Whether products have one kernel choice, with one tile per program, and no memory dependences."""
        choice = choice_of(group[0].op)
        if not is_shared(choice) or any(choice_of(o.op) != choice for o in group):
            return False
        together = Together(self.body, self.at, self.places)
        for o in group:
            if together.conflict(o) is not None:
                return False
            together.add(o)
        return True

    def member(self, o: Op) -> Member | None:
        """The op as a member of a launch; None if it runs alone. The choice of an op that was merged before is made
        again."""
        kind = kind_of(o.op)
        if kind not in ("region", "merged") or fused_kind(o.op) in ("row", "column"):
            return None
        try:
            k = describe(
                o.op,
                [self.at[v].strides for v in o.operands],
                [self.at[v].strides for v in o.results],
            )
        except CannotLower:
            return None
        if kind == "merged":
            o.op.attributes[KERNEL] = self.alone(o, k).attribute()
        return member_of(k, self.addresses(o.operands), self.addresses(o.results))

    def alone(self, o: Op, k: Kernel) -> Choice:
        """The choice of `gflow-select-kernels` for an op that runs alone."""
        return choose_region(k, len(o.operands), len(o.results), self.device)

    def addresses(self, values: Sequence[int]) -> list[Place]:
        return [address(v, self.body, self.at, self.places) for v in values]

    def flush(self, behind: ir.Operation | ir.OpView) -> None:
        """Form launches from the ops of the window, which are inserted before `behind`."""
        found: dict[Hashable, list[tuple[Op, Member]]] = {}
        for o, member in self.window:
            if member is not None:
                found.setdefault(member.text, []).append((o, member))
        groups = [
            group if len(group) < self.least else [g for g in group if self.is_chosen(*g)]
            for group in found.values()
        ]
        if any(len(group) >= self.least for group in groups):
            self.gather([o for group in groups for o, _ in group], behind)
        for group in groups:
            if len(group) < self.least:
                continue
            for part in parts([member for _, member in group], self.device):
                if part.stop - part.start > 1:
                    self.launch(group[part])
        self.window = []
        self.together = Together(self.body, self.at, self.places)

    def is_chosen(self, o: Op, member: Member) -> bool:
        """Whether an op has the choice of the cost model, so it was not edited."""
        return choice_of(o.op) == self.alone(o, member.k)

    def gather(self, ops: Sequence[Op], behind: ir.Operation | ir.OpView) -> None:
        """Move ops of the window to its end, in order, and after them the ops that read their results."""
        moved, made = [*ops], {o.index for o in ops}
        for o, _ in self.window:
            if o.index not in made and any(self.body.producer[v] in made for v in o.operands):
                made.add(o.index)
                moved.append(o)
        for o in moved:
            o.op.move_before(behind)

    def launch(self, group: Sequence[tuple[Op, Member]]) -> None:
        choice = choose_merged([member for _, member in group], self.device).attribute()
        number = _number(self.launches)
        self.launches += 1
        for o, _ in group:
            o.op.attributes[KERNEL], o.op.attributes[LAUNCH] = choice, number


def _shared_product(o: Op) -> int | None:
    """The number of the launch that a product shares; None if it shares none."""
    return launch_of(o.op) if kind_of(o.op) in ("product", "depthwise") else None


def _number(launch: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), launch)


PASS = Pass("gflow-merge-launches", run, MergeLaunchesOptions, __doc__ or "")
