"""Choose the order in which ops run.

Before: both gradients wait for the updates at the end.

    func.func @step(%w0: tensor<8x8xf32> {gflow.role = "parameter"},
                    %w1: tensor<8x8xf32> {gflow.role = "parameter"}, %dy: tensor<8x8xf32>)
        -> (tensor<8x8xf32> {gflow.alias = 0 : i64}, tensor<8x8xf32> {gflow.alias = 1 : i64}) {
      %g0 = "gflow.matmul"(%dy, %dy) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      %d = "gflow.matmul"(%dy, %w0) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      %g1 = "gflow.matmul"(%d, %dy) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      %u0 = "gflow.sub"(%w0, %g0) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      %u1 = "gflow.sub"(%w1, %g1) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      return %u0, %u1 : tensor<8x8xf32>, tensor<8x8xf32>
    }

After `gflow-fuse{epilogues=false},gflow-schedule`:

    func.func @step(%w0: …, %w1: …, %dy: tensor<8x8xf32>) -> … {
      %g0 = "gflow.matmul"(%dy, %dy) : …
      %d = "gflow.matmul"(%dy, %w0) : …
      %u0 = "gflow.fused"(%w0, %g0) … : …         // %g0 dies here
      %g1 = "gflow.matmul"(%d, %dy) : …
      %u1 = "gflow.fused"(%w1, %g1) … : …
      return %u0, %u1 : …
    }

- `SpeedFirst` (above): program order, but gradients of convolution weights are computed, and parameters updated, as
  soon as possible, that is once the old value of the parameter is no longer needed. In program order all gradients
  are live until the optimizer runs at the end. Here each gradient dies immediately, and its update reads it from the
  cache.
- `MemoryFirst`: the order with the lowest peak of live bytes among several (ops that free memory early, ops that need
  memory late). The peak is never higher than in program order.
- `Disable`: program order.
- `OverlapCpuGpu`: steps that run through PyTorch start as soon as their operands are ready, and kernels are queued
  meanwhile, by the roofline times of `device`.
- `DelayShortGpu`: a kernel that is as short as a launch waits until no longer kernel is ready, so the device has work
  while the host queues launches.

Every order gives the same results. An update is ordered after all ops that read the old value, so it can be in place.
An op that may fail is ordered after the conditions before it (`gflow.check` with the error `OtherBranch`): it is
meant for this branch only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.ssa import read_body
from gflow.compiler.kernel.selection.select import scratch_of
from gflow.compiler.memory.liveness import lives_of
from gflow.compiler.targets import DEVICES
from gflow.dialects.mlir import func
from gflow.dialects.records import record

from ..base import Pass, target_of
from .costs import seconds_of
from .dependences import Dependences, dependences_of
from .least_memory import least_memory
from .lists import host_early, short_last, updates_first


@record
class ScheduleOptions:
    """Options of gflow-schedule."""

    algorithm: str = field(
        default="SpeedFirst",
        metadata={
            "doc": "SpeedFirst, MemoryFirst, Disable (program order), OverlapCpuGpu, DelayShortGpu"
        },
    )
    device: str = field(
        default="cpu",
        metadata={
            "doc": f"the device whose times OverlapCpuGpu and DelayShortGpu use: {', '.join(DEVICES)}"
        },
    )
    scratch: str = field(
        default="",
        metadata={
            "doc": "the target (cpu, cuda:90) whose kernels' scratch MemoryFirst counts as memory"
        },
    )


def run(function: func.FuncOp, options: ScheduleOptions) -> None:
    """Order the ops of the function.

    Raises:
        PassError: an option names an unknown algorithm, or device.
    """
    for value, known, what in (
        (options.algorithm, [*_ORDERS], "algorithm"),
        (options.device, [*DEVICES], "device"),
    ):
        if value not in known:
            raise PassError(f"no {what} '{value}'; there are {', '.join(known)}")
    body = read_body(function)
    order = _ORDERS[options.algorithm](function, dependences_of(function, body), options)
    if any(i != n for n, i in enumerate(order)):
        for i in order:
            body.ops[i].op.move_before(body.terminator)


def _program(function: func.FuncOp, found: Dependences, options: ScheduleOptions) -> Sequence[int]:
    return range(len(found.before))


def _speed(function: func.FuncOp, found: Dependences, options: ScheduleOptions) -> Sequence[int]:
    return updates_first(found)


def _memory(function: func.FuncOp, found: Dependences, options: ScheduleOptions) -> Sequence[int]:
    lives, target = lives_of(function), target_of(options.scratch)
    scratch = {} if target is None else scratch_of(function, lives, target)
    return least_memory(found, lives, scratch)


def _overlap(function: func.FuncOp, found: Dependences, options: ScheduleOptions) -> Sequence[int]:
    host = [o.name == "aten" for o in found.body.ops]
    return host_early(found, host, seconds_of(found.body, DEVICES[options.device]))


def _delay(function: func.FuncOp, found: Dependences, options: ScheduleOptions) -> Sequence[int]:
    launch = DEVICES[options.device].launch
    seconds = seconds_of(found.body, DEVICES[options.device])
    return short_last(found, [0 < s < 2 * launch for s in seconds])


_ORDERS: dict[str, Callable[[func.FuncOp, Dependences, ScheduleOptions], Sequence[int]]] = {
    "SpeedFirst": _speed,
    "MemoryFirst": _memory,
    "Disable": _program,
    "OverlapCpuGpu": _overlap,
    "DelayShortGpu": _delay,
}

PASS = Pass("gflow-schedule", run, ScheduleOptions, __doc__ or "")
