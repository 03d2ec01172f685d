"""Recompute values where they are needed, instead of keeping them, until memory fits a budget or a share of the time is
spent.

Before, where `%h` is live across the other products, whose results have 16 KiB each:

    %h = "gflow.tanh"(%x) : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %a = "gflow.matmul"(%h, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %b = "gflow.matmul"(%a, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %c = "gflow.matmul"(%b, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %d = "gflow.matmul"(%c, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %e = "gflow.matmul"(%h, %d) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>

After `gflow-fuse,gflow-rematerialize{fraction=0.7}`:

    %h = "gflow.fused"(%x) … {kind = "pointwise", …} : …
    %a = "gflow.matmul"(%h, %w) : …
    %b = "gflow.matmul"(%a, %w) : …
    %c = "gflow.matmul"(%b, %w) : …
    %d = "gflow.matmul"(%c, %w) : …
    %h2 = "gflow.fused"(%x) … {gflow.recomputed, kind = "pointwise", …} : …
    %e = "gflow.matmul"(%h2, %d) : …

The pass works on fused kernels in their final order, in any function. It needs no marks, and can follow
`gflow-checkpoint`. The budget applies to the planned arena: the pass runs the planner of `gflow-plan-memory` on a
copy of the function to check it. Only the results of a kernel that are needed are recomputed.

A greedy search (`compiler/passes/recomputation/choose.py`) chooses values by the ratio of recomputation time, from the
roofline of `device`, to the bytes freed where the budget is exceeded. Under a budget, a local search (`improve.py`)
improves its choice. Random numbers are reproduced exactly. Calls into PyTorch that draw random numbers are not
repeated, and neither are ops whose operands have been overwritten.

With `fuse`, recomputed kernels are then fused with their readers (`fuse_again.py`), if that takes less predicted time
and fits into the budget.

Without a budget, `slowdown` limits the time instead: the pass searches for the fewest live bytes whose recomputations
take at most this share of the predicted time of the function. Much of this is cheap: the result and the derivative of
an activation function, for example, are recomputed from its operand, so that one value is kept in place of two. A
function whose values are more expensive may spend `slowdown_to_enough` until 65 % of its live bytes remain.

The first run of a kernel no longer computes results that are read only after their recomputation, and the time for that
is subtracted. Kernels that normalize store their statistics where a recomputation reads them (`statistics.py`).

The function gets `gflow.rematerialized`: the number of recomputed ops, the additional seconds that the roofline
predicts, and the arena (with `slowdown`, the most live bytes) without and with recomputation. If the budget cannot be
met, the error states the smallest budget that can.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

from gflow.compiler.ir.cost import cost_of, seconds
from gflow.compiler.ir.errors import BudgetError, PassError
from gflow.compiler.ir.ssa import read_body
from gflow.compiler.memory.analyses import analyses_kept
from gflow.compiler.targets import DEVICES, Device
from gflow.dialects.mlir import func, ir
from gflow.dialects.records import record

from ..base import Pass, target_of
from ..collectives import split_collectives
from ..fusion import fuse
from ..fusion.groups import FuseOptions
from ..memory import materialize, plan_memory, repeat_copies, select_kernels
from ..schedule import schedule
from ..schedule.schedule import ScheduleOptions
from .choose import Choice, choose, keep_again
from .fuse_again import mark, unfuse
from .improve import improve, search
from .problem import RECOMPUTED, Problem, read_problem
from .replay import replay
from .rewrite import rewrite
from .statistics import store_statistics


@record
class RematerializeOptions:
    """Options of gflow-rematerialize."""

    budget: int = field(default=0, metadata={"doc": "the largest arena, in bytes; 0: no budget"})
    fraction: float = field(
        default=0.0,
        metadata={"doc": "the budget as a share of the arena without recomputation"},
    )
    device: str = field(
        default="cpu",
        metadata={"doc": f"the device whose roofline gives times: {', '.join(DEVICES)}"},
    )
    scratch: str = field(
        default="",
        metadata={"doc": "the target whose kernels' scratch counts as memory: cpu, cuda:90"},
    )
    slowdown: float = field(
        default=0.0,
        metadata={
            "doc": "without a budget: the most time to add, as a share of the function's predicted time"
        },
    )
    slowdown_to_enough: float = field(
        default=0.0,
        metadata={
            "doc": "as `slowdown`, as long as more than 65 % of the function's live bytes remain"
        },
    )
    worth: int = field(
        default=1 << 20,
        metadata={"doc": "with `slowdown`: the fewest live bytes of a function that is searched"},
    )
    fuse: FuseOptions | None = field(
        default=None,
        metadata={
            "value": "options",
            "doc": "under a budget: fuse recomputed kernels with their readers by these options of gflow-fuse, where "
            "that takes less time",
        },
    )
    schedule: ScheduleOptions | None = field(
        default=None,
        metadata={
            "value": "options",
            "doc": "with `fuse`: the options of the gflow-schedule that follows it",
        },
    )


#: the attempts with lower limits, since buffers do not pack into the arena without gaps
_ATTEMPTS = 6

#: steps of the bisection for the smallest budget
_BISECTIONS = 8

#: the most searches after it, each for a limit of this share of the lowest peak so far
_DESCENTS, _DESCENT = 4, 0.93

#: without a budget, recomputation ends at this share of the live bytes
_LEAST = 0.5

#: up to this share of the live bytes, recomputation may take the time of `slowdown_to_enough`
_ENOUGH = 0.65

#: without a budget, values that are smaller than the peak divided by this factor are not worth a kernel
_WORTH = 256


def run(function: func.FuncOp, options: RematerializeOptions) -> None:
    """Recompute values of the function until its arena fits the budget or, without one, the allowed time is spent.

    Raises:
        PassError: an option is out of range, or names no device.
        BudgetError: the budget cannot be met.
    """
    if options.device not in DEVICES:
        raise PassError(f"no device '{options.device}'; there are {', '.join(DEVICES)}")
    shares = options.fraction, options.slowdown, options.slowdown_to_enough
    if options.budget < 0 or not all(0 <= share <= 1 for share in shares):
        raise PassError("budget must be a number of bytes, fraction and slowdown between 0 and 1")
    if not options.budget and not options.fraction:
        if options.slowdown or options.slowdown_to_enough:
            _spend(function, options)
        return
    before = _arena(function, options.scratch)
    budget = options.budget or int(options.fraction * before)
    if before <= budget:
        _report(function, budget, before, before, 0.0)
        return
    store_statistics(function)
    target = target_of(options.scratch)
    problem = read_problem(function, options.device, target)
    found = _fit(function, problem, budget, options.scratch)
    choice, after = found or _smallest(function, problem, before, options.scratch)
    rewrite(problem, choice.result)
    added = choice.result.seconds
    if options.fuse is not None:
        after, saved = _fuse_again(function, options, budget, after)
        added -= saved
    if after > budget:
        raise BudgetError(
            f"the memory budget of {budget} bytes cannot be met: the least that was found is "
            f"{after} bytes, and {before} bytes are needed without recomputation",
            after,
        )
    _report(function, budget, before, after, added)


def _spend(function: func.FuncOp, options: RematerializeOptions) -> None:
    """Recompute values for at most the share `slowdown` of the function's predicted time."""
    problem = read_problem(function, options.device)
    if sum(problem.size) < options.worth or (before := replay(problem, {}).peak) < options.worth:
        return
    if store_statistics(function):
        problem = read_problem(function, options.device)
    device = DEVICES[options.device]
    whole = sum(seconds(problem.cost(o.index), device) for o in problem.body.ops)
    allowed = options.slowdown * whole
    choice = choose(problem, int(before * _LEAST), allowed, _WORTH)
    enough = int(before * _ENOUGH)
    if options.slowdown_to_enough > options.slowdown and choice.result.peak > enough:
        more = choose(problem, enough, options.slowdown_to_enough * whole, _WORTH)
        choice = min(choice, more, key=lambda c: c.result.peak)
    if choice.ends:
        choice = keep_again(problem, choice.result.peak, choice)
    rewrite(problem, choice.result)
    if choice.ends:
        _report(function, 0, before, choice.result.peak, choice.result.seconds)


def _fit(
    function: func.FuncOp, problem: Problem, budget: int, scratch: str
) -> tuple[Choice, int] | None:
    """A choice whose arena is within the budget, and that arena in bytes; None if none is found."""
    limit = budget
    known: list[Choice] = []
    for _ in range(_ATTEMPTS):
        choice = search(problem, limit, known)
        if choice.result.peak > limit:
            return None
        arena = _arena(function, scratch, problem, choice)
        if arena <= budget:
            return choice, arena
        known = [choice]
        limit -= max(arena - budget, budget // 256)
    return None


def _smallest(
    function: func.FuncOp, problem: Problem, before: int, scratch: str
) -> tuple[Choice, int]:
    """The choice with the smallest arena that is found, and that arena in bytes. The budget has no influence."""
    low, high = 0, before
    best = choose(problem, before)
    for _ in range(_BISECTIONS):
        middle = (low + high) // 2
        choice = choose(problem, middle)
        best = min(best, choice, key=lambda c: c.result.peak)
        low, high = (low, middle) if choice.result.peak <= middle else (middle, high)
    found = best, _arena(function, scratch, problem, best)
    whole = replay(problem, {})
    for _ in range(_DESCENTS):
        lower = improve(problem, int(best.result.peak * _DESCENT), best, whole)
        if lower.result.peak >= best.result.peak:
            break
        best = lower
        found = min(found, (best, _arena(function, scratch, problem, best)), key=lambda f: f[1])
    return found


def _fuse_again(
    function: func.FuncOp, options: RematerializeOptions, budget: int, arena: int
) -> tuple[int, float]:
    """Fuse recomputed kernels with their readers, if that takes less time within the budget, or less memory above it.

    Args:
        function: with recomputations.
        options: those of the pass.
        budget, arena: bytes.

    Returns:
        The arena in bytes, and the predicted seconds that this saves.
    """
    twin = _copy(function)
    try:
        unfuse(twin)
        with analyses_kept():  # a scope for the copy
            fuse.PASS.run(twin, options.fuse)
            schedule.PASS.run(twin, options.schedule or ScheduleOptions())
        mark(twin)
        device = DEVICES[options.device]
        saved = _seconds(function, device) - _seconds(twin, device)
        if saved <= 0 and arena <= budget:
            return arena, 0.0
        fused = _arena(twin, options.scratch)
        if fused > max(budget, arena - 1):
            return arena, 0.0
        _take_body(function, twin)
        return fused, saved
    finally:
        twin.erase()


def _take_body(function: func.FuncOp, twin: func.FuncOp) -> None:
    """Move the ops of a copy of the function into the function, in place of its own."""
    block, other = function.regions[0].blocks[0], twin.regions[0].blocks[0]
    for op in reversed([view.operation for view in block.operations]):
        op.erase()
    for mine, given in zip(block.arguments, other.arguments):
        given.replace_all_uses_with(mine)
    for op in [view.operation for view in other.operations]:
        block.append(op)


def _seconds(function: func.FuncOp, device: Device) -> float:
    """The predicted time of a function."""
    ops = function.regions[0].blocks[0].operations
    return sum(seconds(cost_of(view.operation), device) for view in ops)


def _copy(function: func.FuncOp) -> func.FuncOp:
    """A copy of the function before it, in the same module."""
    copy = function.operation.clone(ip=ir.InsertionPoint(function.operation))
    twin: func.FuncOp = copy.opview
    return twin


def _arena(
    function: func.FuncOp,
    scratch: str,
    problem: Problem | None = None,
    choice: Choice | None = None,
) -> int:
    """The bytes of the arena that will be planned, computed on a copy of the function."""
    twin = _copy(function)
    steps: list[tuple[Pass, Any]] = [
        (step, step.options())
        for step in (materialize.PASS, repeat_copies.PASS, split_collectives.PASS)
    ]
    if scratch:
        steps.append((select_kernels.PASS, select_kernels.SelectKernelsOptions(scratch)))
    steps.append((plan_memory.PASS, plan_memory.PlanMemoryOptions()))
    try:
        if problem is not None and choice is not None:
            rewrite(replace(problem, body=read_body(twin)), choice.result)
        with analyses_kept():  # a scope for the copy
            for step, given in steps:
                step.run(twin, given)
        return ir.IntegerAttr(twin.attributes["gflow.arena_size"]).value
    except PassError as error:  # its op is in the copy, which is erased
        raise PassError(str(error), function) from None
    finally:
        twin.erase()


def _report(function: func.FuncOp, budget: int, before: int, after: int, added: float) -> None:
    i64 = ir.IntegerType.get_signless(64)
    ops = function.regions[0].blocks[0].operations
    runs = sum(RECOMPUTED in view.operation.attributes for view in ops)
    numbers = {"budget": budget, "arena_before": before, "arena_after": after, "ops": runs}
    function.operation.attributes["gflow.rematerialized"] = ir.DictAttr.get(
        {
            **{name: ir.IntegerAttr.get(i64, n) for name, n in numbers.items()},
            "seconds": ir.FloatAttr.get(ir.F64Type.get(), added),
        }
    )


PASS = Pass("gflow-rematerialize", run, RematerializeOptions, __doc__ or "")
