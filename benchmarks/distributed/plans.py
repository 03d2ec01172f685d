"""Steps on H100s, simulated: nothing is sent and nothing computed.

`torchtitan` simulates what torchtitan has published of Llama 3.1 8B (`benchmarks/llama3_h100_202412_torchtitan.md` of
its repository, tables 1 and 3): FSDP over 8 and 128 H100 of 500 W with 2.4 TB/s and a network card of 400 Gb/s each,
two sequences of 8,192 tokens a GPU, part of the activations recomputed. Parameters there are of float32, and here of
bfloat16, since the model has to be made on this machine: memory of parameters and optimizer state counts twice, and
gradients are sent in half as many bytes as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.workloads.cuda_steps import MODELS, Model, trace_of
from benchmarks.workloads.items import adamw
from benchmarks.workloads.networks import Llama
from gflow.compiler.distribution.simulator import COMPUTE, simulate
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
from gflow.compiler.ir.modules import entry_function
from gflow.compiler.reports.timeline import StepOnRanks, step_on_ranks
from gflow.compiler.targets import DEVICES
from gflow.compiler.targets.links import network_of
from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.lowering import lower

GIB = 1 << 30
#: tokens of a GPU in a step
TOKENS = 2 * 8192
#: what the published runs have for activations, gradients and temporaries: 77.0 GiB less parameters and optimizer state
ARENA = 65 * GIB


@dataclass(frozen=True)
class Published:
    """A row of torchtitan's: GPUs, whether compiled, tokens a second and GPU, GiB of memory."""

    gpus: int
    compiled: bool
    tokens: int
    memory: float


PUBLISHED = (
    Published(8, False, 5762, 82.4),
    Published(8, True, 6667, 77.0),
    Published(128, False, 5605, 67.0),
    Published(128, True, 6514, 62.0),
)


def planned(stage: int) -> StepOnRanks:
    """The simulated step of GPT-2 small under a stage of ZeRO on 8 x H100; nothing is sent."""
    return _step(MODELS["gpt2"], 8, PipelineOptions(zero=stage))[0]


def torchtitan(layers: int = 32) -> str:
    """The published rows beside the simulated step.

    layers: of the model.
    """
    model = Model(
        "llama3_8b", "", lambda: Llama(layers, 4096, 32, 8, 14336, 128256),
        lambda: (torch.zeros(2, 8192, dtype=torch.int64),) * 2, adamw, torch.bfloat16,
    )  # fmt: skip
    options = PipelineOptions(zero=3, memory_budget=ARENA)
    found = {n: _step(model, n, options, 2.4e12) for n in sorted({row.gpus for row in PUBLISHED})}
    first = next(row for row in PUBLISHED if row.compiled)
    slower = _slower(found[first.gpus][0], TOKENS / first.tokens)
    lines = [
        "Llama 3.1 8B on H100s, FSDP (ZeRO 3): torchtitan's published figures, and the simulated step.",
        "Tokens a second and GPU; nothing was measured here.",
        "",
        f"{'GPUs':>5}{'':>10}{'published':>11}{'simulated':>11}{'error':>9}{'calibrated':>12}{'error':>9}"
        f"{'published':>13}{'planned':>11}",
    ]
    for row in PUBLISHED:
        line, kept, arena = found[row.gpus]
        memory = 2 * kept + arena  # float32 there
        floor = TOKENS / line.seconds
        scaled = TOKENS / _with(line, slower)
        how = "compiled" if row.compiled else "eager"
        lines.append(
            f"{row.gpus:>5}{how:>10}{row.tokens:>11,}{floor:>11,.0f}{100 * (floor / row.tokens - 1):>+7.0f} %"
            f"{scaled:>12,.0f}{100 * (scaled / row.tokens - 1):>+7.1f} %{row.memory:>9.1f} GiB{memory / GIB:>7.1f} GiB"
        )
    line = found[8][0]
    lines += [
        "",
        f"calibrated: computations take {slower:.2f} times their floor, which gives the compiled row of 8 GPUs; the "
        "other rows are predictions.",
        f"8 GPUs: {1e3 * line.seconds:.0f} ms a step, {1e3 * line.exposed:.0f} ms of it waiting for collectives, "
        f"{100 * line.covered:.1f} % of the bytes covered by work.",
    ]
    return "\n".join(lines)


def _step(
    model: Model, ranks: int, options: PipelineOptions, bandwidth: float = 0.0
) -> tuple[StepOnRanks, int, int]:
    """The simulated step, the bytes that a rank keeps, and those of its arena. bandwidth: of a device's memory, where
    it is not the table's."""
    with _ranks(ranks):
        module = lower(trace_of(_graph(model), model.inputs()))
    run_pipeline(module, pipeline_for("cuda:90", options))
    function = entry_function(module)
    device = DEVICES["h100"]
    if bandwidth:
        device = replace(device, bandwidth=bandwidth)
    kept = sum(builder.type_of(a).nbytes for a in function.arguments)
    arena = ir.IntegerAttr(function.attributes["gflow.arena_size"]).value
    return step_on_ranks(function, device, network_of("h100")), kept, arena


def _graph(model: Model) -> Any:
    graph = model.graph(DistributedDataParallel(model.empty(), init_sync=False))
    (optimizer,) = graph._checked().optimizers
    # state as after a step, in memory that nobody writes: zeros would take the memory of all parameters
    for p in optimizer.param_groups[0]["params"]:
        moments = {name: torch.empty_like(p) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p] = {"step": torch.tensor(1.0), **moments}
    return graph


def _with(line: StepOnRanks, slower: float) -> float:
    """Seconds of the step if computations take so many times their floor."""
    events = [
        replace(e, seconds=e.seconds * slower) if e.kind == COMPUTE else e for e in line.events
    ]
    return simulate({"each rank": events}).seconds


def _slower(line: StepOnRanks, seconds: float) -> float:
    """How many times their floor computations take if the step takes so long."""
    low, high = 0.1, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _with(line, middle) < seconds else (low, middle)
    return high


@contextmanager
def _ranks(count: int) -> Iterator[None]:
    # only here: it is a part of PyTorch's tests
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
