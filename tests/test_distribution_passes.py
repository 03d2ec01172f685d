"""Passes for many ranks keep what programs compute: a traced training step, run by the interpreter of N ranks before
and after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from function_trace import trace_graph
from rank_interpreter import Traffic, piece, run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gflow.compiler import CompileOptions, compile_module
from gflow.compiler.distribution.network import sent
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
from gflow.compiler.ir.modules import entry_function
from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.program import CollectiveStep
from gflow.lowering import lower
from gflow.tracing.data.trace import Trace

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
}
#: by stage, the passes
STAGES = (
    "gflow-decompose-all-reduce{min-size=1}",
    "gflow-zero-1{min-size=1}",
    "gflow-zero-1{min-size=1},gflow-zero-2",
    "gflow-zero-1{min-size=1},gflow-zero-2,gflow-zero-3{min-size=1}",
)
#: buckets of a few bytes, as they stand and in the order in which ranks compute meanwhile
SMALL = (
    ",gflow-bucket-collectives{bytes=100}",
    ",gflow-bucket-collectives{bytes=100},gflow-overlap-collectives{growth=9}",
)


@contextmanager
def world(ranks: int, rank: int = 0) -> Iterator[None]:
    """A process group of so many ranks that sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))


class Several(nn.Module):
    """Ops that read several parameters, one more than once, and complex numbers that ranks do not share evenly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        shapes = {"a": (6, 3), "b": (6, 2), "c": (2, 3), "d": (3,), "e": (3,)}
        for name, shape in shapes.items():
            dtype = torch.complex64 if name == "e" else torch.float32
            setattr(self, name, nn.Parameter(torch.randn(shape, dtype=dtype)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.a + self.b @ self.c) * (self.d * self.d * self.e).abs()


def traced(ranks: int, optimizer: str, clip: float = 0.0, made: Any = net) -> Trace:
    """A training step of a data-parallel model."""
    with world(ranks):
        model = DistributedDataParallel(made())

        def build(x: Tensor, t: Tensor) -> Tensor:
            loss = (model(x) - t).square().mean()
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            return loss

        x, t = torch.zeros(4, 6), torch.zeros(4, 3)
        step = OPTIMIZERS[optimizer](model.parameters())
        return trace_graph("step", build, (x, t), {}, {"model": model}, [step])


def lowered(trace: Trace, ranks: int, passes: str = "") -> ir.Module:
    with world(ranks):
        module = lower(trace)
    cleaned = "gflow-simplify,cse"
    each = ",".join(filter(None, [cleaned, passes, cleaned]))
    run_pipeline(module, f"builtin.module(func.func({each}))", verify_each=True)
    return module


def arguments(trace: Trace, ranks: int, module: ir.Module) -> list[list[Tensor]]:
    """By rank: data of its own, and its piece of what the program has in pieces."""
    with module.context:
        (function,) = [op for op in module.body.operations if op.operation.name == "func.func"]
        given = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes["arg_attrs"])]
        divided = ["gflow.whole" in a for a in given]
    found = []
    for rank in range(ranks):
        generator = torch.Generator().manual_seed(rank)
        mine = []
        for entry, whole in zip(trace.inputs, divided, strict=True):
            value = entry.tensor
            if value is None:
                value = torch.randn(tuple(entry.value.shape), generator=generator)
            value = torch.as_tensor(value).detach().clone()
            mine.append(piece(value, ranks, rank) if whole else value)
        found.append(mine)
    return found


def compare(
    trace: Trace,
    module: ir.Module,
    wanted: Sequence[Sequence[Tensor]],
    found: Sequence[Sequence[Tensor]],
    exact: bool,
) -> None:
    ranks = len(wanted)
    close = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-5, "atol": 1e-6}
    for rank in range(ranks):
        for out, want, got in zip(trace.outputs, wanted[rank], found[rank]):
            if want.shape != got.shape:
                want = piece(want, ranks, rank)
            told = partial("rank {} {}: {}".format, rank, out.name)
            torch.testing.assert_close(got, want, **close, msg=told)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_stages_give_the_same_bits(optimizer: str, ranks: int) -> None:
    trace = traced(ranks, optimizer)
    plain = lowered(trace, ranks)
    wanted = run_ranks(plain, arguments(trace, ranks, plain))
    size = sum(p.numel() * 4 for p in net().parameters())
    again = 4 * 9 * 3  # of the parameters, the last weight alone is read by the backward
    for stage, passes in enumerate(STAGES):
        for bucket in ("", ",gflow-bucket-collectives", *SMALL):
            module = lowered(trace, ranks, passes + bucket)
            traffic: list[Traffic] = []
            found = run_ranks(module, arguments(trace, ranks, module), traffic)
            compare(trace, module, wanted, found, exact=True)
            share = (ranks - 1) / ranks
            least = (2 * size + (again if stage == 3 else 0)) * share
            filled = 4 * (ranks - 1) * 9 * share
            assert least <= traffic[0].sent <= least + filled, (stage, traffic[0])


def test_ops_that_read_several_parameters() -> None:
    """Each is gathered before them; complex ones stay whole."""
    ranks = 2
    trace = traced(ranks, "sgd", made=Several)
    plain = lowered(trace, ranks)
    wanted = run_ranks(plain, arguments(trace, ranks, plain))
    for passes in STAGES:
        module = lowered(trace, ranks, passes)
        given = arguments(trace, ranks, module)
        compare(trace, module, wanted, run_ranks(module, given), exact=True)
        numbers = [x for x in given[0] if x.is_complex()]
        assert numbers
        assert all(x.shape == (3,) for x in numbers)


@pytest.mark.parametrize("optimizer", ["sgd", "adafactor"])
def test_norms_are_those_of_all_pieces(optimizer: str) -> None:
    """Clipping, and an optimizer that is not elementwise."""
    ranks = 3
    trace = traced(ranks, optimizer, clip=0.05)
    plain = lowered(trace, ranks)
    wanted = run_ranks(plain, arguments(trace, ranks, plain))
    for stage in (1, 2, 3):
        module = lowered(trace, ranks, STAGES[stage] + ",gflow-bucket-collectives")
        found = run_ranks(module, arguments(trace, ranks, module))
        compare(trace, module, wanted, found, exact=False)


def test_state_is_in_pieces() -> None:
    """Of AdamW's moments a rank has its piece; of parameters from stage 3 on."""
    trace = traced(4, "adamw")
    for stage, count in ((1, 8), (3, 12)):
        text = str(lowered(trace, 4, STAGES[stage]))
        header = next(line for line in text.splitlines() if "func.func" in line)
        assert header.split(") -> (")[0].count("gflow.whole") == count, header


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_rank_of_1024_is_planned(stage: int) -> None:
    """What it keeps is ZeRO's formulas, what it sends their bytes; all ranks have one program."""
    ranks, made = 1024, []
    options = CompileOptions(passes=PipelineOptions(zero=stage, zero_min_size=1))
    for rank in (0, 700):
        with world(ranks, rank):
            torch.manual_seed(0)
            plain = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 1024))
            model = DistributedDataParallel(plain)

            def build(x: Tensor, t: Tensor, model: Any = model) -> Tensor:
                loss = (model(x) - t).square().mean()
                loss.backward()
                return loss

            x, t = torch.zeros(4, 64), torch.zeros(4, 1024)
            adamw = torch.optim.AdamW(model.parameters(), 0.01)
            trace = trace_graph("step", build, (x, t), {}, {"model": model}, [adamw])
            made.append(compile_module(lower(trace), options))
    first, other = made
    assert first.ir == other.ir
    size = sum(p.numel() for p in plain.parameters())
    kept = {
        role: sum(a.type.numel for a in first.arguments if a.role == role and a.type.shape)
        for role in ("parameter", "optimizer_state")
    }
    share = 1 / ranks
    assert kept["parameter"] == pytest.approx(size * (share if stage == 3 else 1), rel=0.02)
    assert kept["optimizer_state"] == pytest.approx(2 * size * (share if stage else 1), rel=0.02)
    collectives = [s for s in first.steps if isinstance(s, CollectiveStep)]
    nbytes = sum(
        sent(s.kind, ranks, (s.output if s.kind == "all_gather" else s.input).type.nbytes)
        for s in collectives
    )
    again = plain[2].weight.numel() if stage == 3 else 0  # what the backward reads, too
    assert nbytes == pytest.approx(4 * (2 * size + again) * (1 - share), rel=0.01)
    numbers = [s.sequence for s in collectives]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("stage", "formula"),
    [
        pytest.param(0, 2 + 2 + 12, marks=pytest.mark.sweep),
        pytest.param(1, 2 + 2 + 12 / 8, marks=pytest.mark.sweep),
        (2, 2 + (2 + 12) / 8),
        pytest.param(3, (2 + 2 + 12) / 8, marks=pytest.mark.sweep),
    ],
)
def test_bytes_per_parameter_are_zeros_formulas(stage: int, formula: float) -> None:
    """Parameters, gradients and optimizer state of a rank of 8, with Adam and halves: at most 2 % more in the planned
    peak, with activations of one row and buckets of one layer."""
    layers, width = 96, 64
    with world(8):
        torch.manual_seed(0)
        plain = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
        model = DistributedDataParallel(plain, init_sync=False)

        def build(x: Tensor) -> Tensor:
            loss = model(x).square().mean()
            loss.backward()
            return loss

        adamw = torch.optim.AdamW(model.parameters(), 0.01)
        x = torch.zeros(1, width)
        trace = trace_graph("step", build, (x,), {}, {"model": model}, [adamw])
        module = lower(trace, halves=True)
    options = PipelineOptions(amp="bf16", zero=stage, bucket_bytes=4 * width * width)
    run_pipeline(module, pipeline_for("cuda:90", options))
    function = entry_function(module)
    with module.context:
        kept = sum(builder.type_of(a).nbytes for a in function.arguments)
        arena = ir.IntegerAttr(function.attributes["gflow.arena_size"]).value
    assert (kept + arena) / (layers * width * width) <= 1.02 * formula


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bytes_sent_are_exactly_zeros_formulas(stage: int) -> None:
    """2P, 2P, 2P, 3P times (W - 1)/W, where every parameter is read in the backward and W divides its size."""
    ranks = 8
    with world(ranks):
        torch.manual_seed(0)
        plain = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(3)))
        model = DistributedDataParallel(plain)

        def build(x: Tensor) -> tuple[Tensor, Tensor]:
            loss = (model(x) ** 2).sum()
            loss.backward()
            return loss, x.grad  # type: ignore[return-value]

        x = torch.zeros(4, 64, requires_grad=True)
        adamw = torch.optim.AdamW(model.parameters(), 0.01)
        trace = trace_graph("step", build, (x,), {}, {"model": model}, [adamw])
        passes = PipelineOptions(zero=stage, zero_min_size=1)
        program = compile_module(lower(trace), CompileOptions(passes=passes))
    nbytes = sum(
        sent(s.kind, ranks, (s.output if s.kind == "all_gather" else s.input).type.nbytes)
        for s in program.steps
        if isinstance(s, CollectiveStep)
    )
    size = 4 * sum(p.numel() for p in plain.parameters())
    assert nbytes == (3 if stage == 3 else 2) * size * (ranks - 1) // ranks


@pytest.mark.parametrize("stage", [0, 3])
def test_a_budget_counts_collectives(stage: int) -> None:
    """A memory budget under data parallelism and ZeRO: the arena gets smaller, and as much is sent."""
    arenas, counts = [], []
    for budget in (0.0, 0.8):
        with world(4):
            torch.manual_seed(0)
            layers = [m for _ in range(6) for m in (nn.Linear(32, 32), nn.GELU())]
            model = DistributedDataParallel(nn.Sequential(*layers))

            def build(x: Tensor, model: Any = model) -> Tensor:
                loss = model(x).square().mean()
                loss.backward()
                return loss

            sgd = torch.optim.SGD(model.parameters(), 0.1)
            x = torch.zeros(512, 32)
            trace = trace_graph("step", build, (x,), {}, {"model": model}, [sgd])
            passes = PipelineOptions(zero=stage, zero_min_size=1, memory_fraction=budget)
            program = compile_module(lower(trace), CompileOptions(passes=passes))
        arenas.append(program.arena_bytes)
        counts.append(sum(isinstance(s, CollectiveStep) for s in program.steps))
    assert arenas[1] <= 0.85 * arenas[0]
    assert counts[0] == counts[1]


def test_a_bucket_of_many_sizes() -> None:
    """An op has few runs of operands of one type; a bucket may have any number."""
    ranks = 2
    with world(ranks):
        torch.manual_seed(0)
        sizes = [4, 5, 6, 7, 8, 9, 10]
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        model = DistributedDataParallel(nn.Sequential(*layers))

        def build(x: Tensor) -> Tensor:
            loss = model(x).square().mean()
            loss.backward()
            return loss

        sgd = torch.optim.SGD(model.parameters(), 0.1)
        trace = trace_graph("step", build, (torch.zeros(2, 4),), {}, {"model": model}, [sgd])
    plain = lowered(trace, ranks)
    wanted = run_ranks(plain, arguments(trace, ranks, plain))
    for stage in (0, 3):
        module = lowered(trace, ranks, STAGES[stage] + ",gflow-bucket-collectives")
        found = run_ranks(module, arguments(trace, ranks, module))
        compare(trace, module, wanted, found, exact=True)
