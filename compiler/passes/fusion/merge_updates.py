"""Run the updates of all parameters in few kernels, after the last gradient is known.

Before `gflow-fuse`:

    func.func @step(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>)
        -> (tensor<4x4xf32> {gflow.alias = 0 : i64}, tensor<4x4xf32> {gflow.alias = 1 : i64}) {
      %g0 = "gflow.matmul"(%x, %w1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %u0 = "gflow.sub"(%w0, %g0) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %g1 = "gflow.matmul"(%g0, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %u1 = "gflow.sub"(%w1, %g1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      return %u0, %u1 : tensor<4x4xf32>, tensor<4x4xf32>
    }

After `gflow-fuse{epilogues=false},gflow-materialize,gflow-merge-updates`:

    func.func @step(%w0: …) -> … {
      %g0 = "gflow.matmul"(%x, %w1) : …
      %g1 = "gflow.matmul"(%g0, %x) : …
      %u0 = "gflow.fused"(%w0, %g0) … {gflow.launch = 0 : i64, …} : …
      %u1 = "gflow.fused"(%w1, %g1) … {gflow.launch = 0 : i64, …} : …
      return %u0, %u1 : …
    }

Adjacent ops of one `gflow.launch` are one kernel and run concurrently, in any order. None of them may read what another
writes; such an update (a step count that others read) goes to the next launch. All gradients stay live until then, so
the pass trades memory for fewer launches. It merges only pointwise kernels all of whose results update arguments that
nothing reads later, and that read no argument which another op has overwritten by then.
"""

from __future__ import annotations

from dataclasses import field

from gflow.compiler.ir.ssa import Body, Op, aliases, fused_kind, read_body
from gflow.compiler.ir.views import Layout, is_view, layouts
from gflow.dialects.marks import LAUNCH
from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record

from ..base import Pass


@record
class MergeOptions:
    """Options of gflow-merge-updates."""

    least: int = field(default=2, metadata={"doc": "the fewest updates that get a merged launch"})


def run(function: func.FuncOp, options: MergeOptions) -> None:
    """Merge the updates of parameters of the function into few kernels after the last gradient."""
    body = read_body(function)
    targets = {
        v: body.arguments[alias]
        for v, alias in zip(body.returned, aliases(function, body))
        if alias is not None
    }
    at = layouts(function, body)
    last = {at[v].base: o.index for o in body.ops if not is_view(o, at) for v in o.operands}
    updates = [
        o
        for o in body.ops
        if _is_update(body, o, targets)
        and all(last.get(targets[r], -1) <= o.index for r in o.results)
    ]
    updates = _that_can_wait(body, updates, targets, at)
    if len(updates) < options.least:
        return
    launch = _launches(updates, targets, at)
    for o in sorted(updates, key=lambda o: (launch[o.index], o.index)):
        o.op.move_before(body.terminator)
        i64 = ir.IntegerType.get_signless(64)
        o.op.attributes[LAUNCH] = ir.IntegerAttr.get(i64, launch[o.index])


def _is_update(body: Body, o: Op, targets: dict[int, int]) -> bool:
    if fused_kind(o.op) != "pointwise":
        return False
    return all(r in targets and not body.users[r] for r in o.results)


def _that_can_wait(
    body: Body, updates: list[Op], targets: dict[int, int], at: list[Layout]
) -> list[Op]:
    """The updates that can be delayed: they read no argument that an op that is not moved overwrites."""
    while True:
        moved = {r for o in updates for r in o.results}
        gone = {a for v, a in targets.items() if v not in moved and body.producer[v] >= 0}
        kept = [o for o in updates if gone.isdisjoint(at[v].base for v in o.operands)]
        if len(kept) == len(updates):
            return kept
        updates = kept


def _launches(updates: list[Op], targets: dict[int, int], at: list[Layout]) -> dict[int, int]:
    """The launch of each update. It is later than the launches of all updates that read the argument that it writes."""
    readers: dict[int, list[int]] = {}  # argument → launches of the updates that read it, so far
    launch: dict[int, int] = {}
    for o in updates:
        own = {targets[r] for r in o.results}
        after = [n + 1 for a in own for n in readers.get(a, ())]
        launch[o.index] = max(after, default=0)
        for v in {at[v].base for v in o.operands} - own:
            readers.setdefault(v, []).append(launch[o.index])
    return launch


PASS = Pass("gflow-merge-updates", run, MergeOptions, __doc__ or "")
