"""ZeRO over one dimension of a mesh, tensor parallelism over the other: 2×2 ranks beside PyTorch on one, in processes
(Gloo) and in the interpreter of ranks."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mesh_ranks
import pytest
import torch
from function_trace import trace_graph
from global_ranks import Mlp
from launched import run_ranks as run_processes
from rank_interpreter import Traffic, piece, run_ranks
from sharded import cut, joined, shardings
from test_distribution_passes import STAGES, world
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from gflow.call.signature import bind_call
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.dialects.distribution.mesh import Mesh
from gflow.dialects.mlir import ir
from gflow.lowering import lower
from gflow.tracing import tracer
from gflow.tracing.data.trace import Trace
from gflow.tracing.program.modules import collect_modules
from gflow.tracing.request import TraceRequest

MESH = Mesh(("dp", "tp"), (2, 2))
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
}
#: along tp; along dp all ranks have copies
PLACED: dict[str, Placement] = {
    "a.weight": Shard(0),
    "a.bias": Shard(0),
    "b.weight": Shard(1),
    "b.bias": Replicate(),
}


needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs Gloo",
)


@needs_gloo
def test_four_ranks(tmp_path: Path) -> None:
    others = ("gone_on", "zero_2")
    run_processes(mesh_ranks, tmp_path, 4, [c for c in mesh_ranks.CHECKS if c not in others])
    (tmp_path / "store").unlink()
    run_processes(mesh_ranks, tmp_path, 2, ["gone_on"])


@needs_gloo
@pytest.mark.sweep  # `fully_sharded` clips with AdamW in each run, and the interpreter of ranks has stage 2
def test_stage_2(tmp_path: Path) -> None:
    run_processes(mesh_ranks, tmp_path, 4, ["zero_2"])


def loss_of(model: nn.Module, x: Tensor, y: Tensor, clip: float) -> Tensor:
    loss = (model(x) - y).square().mean()
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    return loss


def traced(optimizer: str, clip: float, alone: nn.Module, stages: list[str]) -> Any:
    """A step over the mesh: its trace, and the programs of ranks after each of some pipelines of passes."""
    with world(4):
        over = init_device_mesh("cpu", MESH.sizes, mesh_dim_names=MESH.axes)

        def placed(x: Tensor, *how: Placement) -> Tensor:
            part = x.detach()
            for placement in how:
                part = part.chunk(2, placement.dim)[0] if isinstance(placement, Shard) else part
            return DTensor.from_local(part.contiguous(), over, how, run_check=False)

        model = Mlp().double()
        for name, p in alone.named_parameters():
            module, _, key = name.rpartition(".")
            value = nn.Parameter(placed(p, Replicate(), PLACED[name]))
            setattr(model.get_submodule(module), key, value)
        made = OPTIMIZERS[optimizer](model.parameters())
        batch = [placed(torch.zeros(4, 8).double(), Shard(0), Replicate()) for _ in range(2)]
        trace = trace_graph(
            "step", lambda x, y: loss_of(model, x, y, clip), batch, {}, {"model": model}, [made]
        )
        modules = []
        for passes in stages:
            module = lower(trace)
            each = ",".join(["gflow-simplify,cse", passes, "gflow-simplify,cse"])
            run_pipeline(module, f"builtin.module(func.func({each}))", verify_each=True)
            modules.append(module)
    return trace, modules


def divided(module: ir.Module) -> list[bool]:
    """By argument, whether ranks have pieces of what they would have."""
    with module.context:
        (function,) = module.body.operations
        given = ir.ArrayAttr(function.attributes["arg_attrs"])
        return ["gflow.whole" in ir.DictAttr(a) for a in given]


def steps(
    trace: Trace, module: ir.Module, wholes: list[Tensor], placed: list[Any], batches: list[Any]
) -> tuple[list[list[Tensor]], list[Traffic]]:
    """The arguments of each rank after some steps, and what they sent. wholes: arguments before, placed: how they
    lie."""
    parts = [cut(x, p, MESH, random.Random(0)) for x, p in zip(wholes, placed, strict=True)]
    pieces = divided(module)
    ranks = [
        [piece(p[n], 2, n // 2) if pieces[k] else p[n] for k, p in enumerate(parts)]
        for n in range(4)
    ]
    traffic: list[Traffic] = []
    for batch in batches:
        for k, x in enumerate(batch):
            for n, part in enumerate(cut(x, placed[k], MESH, random.Random(0))):
                ranks[n][k] = part
        for given, found in zip(ranks, run_ranks(module, ranks, traffic)):
            for out, value in zip(trace.outputs, found):
                if out.alias is not None:
                    given[out.alias] = value
    return ranks, traffic


@pytest.mark.parametrize(("optimizer", "clip"), [("sgd", 0.0), ("adamw", 0.05)])
def test_stages_in_the_interpreter(optimizer: str, clip: float) -> None:
    """Data × tensor parallelism is eager float64; each stage has its bits (norms for clipping are added up by pieces),
    and sends as many bytes; under stage 3 parameters that the backward reads once more."""
    torch.manual_seed(0)
    alone = Mlp().double()
    trace, modules = traced(optimizer, clip, alone, list(STAGES))
    values = dict(alone.named_parameters())
    wholes = [
        torch.zeros(i.value.shape, dtype=i.value.dtype)
        if i.role in ("input", "optimizer_state")
        else values.get(i.name.removeprefix("model."), i.tensor).detach().clone()
        for i in trace.inputs
    ]
    placed = shardings(lower_placed := modules[0], "arg_attrs")
    batches = [[torch.randn(4, 8).double() for _ in range(2)] for _ in range(2)]
    plain, sent = steps(trace, lower_placed, wholes, placed, batches)
    reference = OPTIMIZERS[optimizer](alone.parameters())
    for batch in batches:
        reference.zero_grad()
        loss_of(alone, *batch, clip)
        reference.step()
    for k, given in enumerate(trace.inputs):
        if given.role == "parameter":
            found = joined([rank[k] for rank in plain], placed[k], MESH)
            wanted = values[given.name.removeprefix("model.")]
            torch.testing.assert_close(found, wanted.detach(), rtol=1e-12, atol=1e-12)
    close = {"rtol": 0.0, "atol": 0.0} if not clip else {"rtol": 1e-12, "atol": 1e-12}
    for stage, module in enumerate(modules):
        found, traffic = steps(trace, module, wholes, placed, batches)
        pieces = divided(module)
        state = [
            d for d, i in zip(pieces, trace.inputs) if "optimizer_state" in i.role and i.value.shape
        ]
        assert all(d is (stage > 0) for d in state)
        for n, rank in enumerate(found):
            for want, got, is_piece in zip(plain[n], rank, pieces, strict=True):
                torch.testing.assert_close(
                    got, piece(want, 2, n // 2) if is_piece else want, **close
                )
        again = (
            len(batches) * 8 * 16 * 8 // 2 // 2 if stage == 3 else 0
        )  # half of b.weight, half of it sent
        norms = traffic[0].sent - sent[0].sent - again
        assert norms == 0 or (clip and 0 < norms < 200), (stage, norms)


def made(
    alone: nn.Module, optimizer: str, micro: int, sharded: bool, passes: str
) -> list[tuple[Trace, ir.Module, Any]]:
    """The programs of a step over the mesh, with how arguments lie: one, or that of a micro-batch and that of the
    update.

    sharded: by `fully_shard`, over which batches are each rank's own; else the batch is a global tensor."""
    with world(4):
        over = init_device_mesh("cpu", MESH.sizes, mesh_dim_names=MESH.axes)
        model = copy.deepcopy(alone)
        styles = {"a": ColwiseParallel(), "b": RowwiseParallel(output_layouts=Replicate())}
        parallelize_module(model, over["tp"], styles)
        if sharded:
            fully_shard(model, mesh=over["dp"])
        batch = [torch.zeros(2 // micro, 8).double() for _ in range(2)]
        if not sharded:
            how = [Shard(0), Replicate()]
            batch = [DTensor.from_local(x, over, how, run_check=False) for x in batch]
        request = TraceRequest(
            "step",
            bind_call(lambda x, y: loss_of(model, x, y, 0.0), batch, {}),
            collect_modules({"model": model}),
            [OPTIMIZERS[optimizer](model.parameters())],
            micro_batches=micro,
        )
        trace = tracer.trace_graph(request)
        programs = []
        for part in trace.parts or (trace,):
            module = lower(part)
            placed = shardings(module, "arg_attrs")
            each = ",".join(["gflow-simplify,cse", passes, "gflow-simplify,cse"])
            run_pipeline(module, f"builtin.module(func.func({each}))", verify_each=True)
            programs.append((part, module, placed))
    return programs


@pytest.mark.parametrize(
    ("optimizer", "micro", "sharded", "passes"),
    [
        ("sgd", 2, False, STAGES[0]),
        ("adamw", 2, False, STAGES[3]),
        ("sgd", 1, True, STAGES[3]),
        ("adamw", 2, True, STAGES[3]),
    ],
)
def test_micro_batches_and_fully_shard(
    optimizer: str, micro: int, sharded: bool, passes: str
) -> None:
    """Each rank splits the rows that it holds; the step is eager float64, and gradients are sent once."""
    torch.manual_seed(0)
    alone = Mlp().double()
    programs = made(alone, optimizer, micro, sharded, passes)
    ranks: list[dict[Any, Tensor]] = [{} for _ in range(4)]
    values = dict(alone.named_parameters())

    def held(part: Trace, module: ir.Module, placed: Any) -> Iterator[tuple[int, Any, Tensor]]:
        """What each rank has of the arguments."""
        for i, how, is_piece in zip(part.inputs, placed, divided(module)):
            whole = torch.zeros(i.value.shape, dtype=i.value.dtype)
            if i.role == "parameter":
                whole = values[i.name.removeprefix("model.")].detach().clone()
            elif i.role == "scalar":
                whole = i.tensor.detach().clone()
            for n, own in enumerate(cut(whole, how, MESH, random.Random(0))):
                yield n, i, piece(own, 2, n // 2) if is_piece else own

    for program in programs:
        for n, i, own in held(*program):
            ranks[n].setdefault(i.value, own)
    reference = OPTIMIZERS[optimizer](alone.parameters())
    first = programs[0][0]
    for _ in range(2):
        batch = [torch.randn(4, 8).double() for _ in range(2)]
        for env in ranks:
            sums = [i.value for i in first.inputs if i.role == "gradient"]
            env.update({v: torch.zeros_like(env[v]) for v in sums})
        for k in range(micro):
            for n, env in enumerate(ranks):
                for i in first.inputs:
                    if i.role == "input":
                        mine = batch[first.input_leaves[i.value]].chunk(2)[n // 2]
                        env[i.value] = mine.chunk(micro)[k]
            sent = step(*programs[0][:2], ranks)
            assert micro == 1 or "reduce_scatter" not in sent, "gradients are sent once"
        if micro > 1:
            step(*programs[1][:2], ranks)
        reference.zero_grad()
        loss_of(alone, *batch, 0.0)
        reference.step()
    for n, i, own in held(*programs[-1]):
        if i.role == "parameter":
            torch.testing.assert_close(ranks[n][i.value], own, rtol=1e-12, atol=1e-12)


def step(part: Trace, module: ir.Module, ranks: list[dict[Any, Tensor]]) -> list[str]:
    """Run a program on all ranks; its collectives."""
    traffic: list[Traffic] = []
    found = run_ranks(module, [[env[i.value] for i in part.inputs] for env in ranks], traffic)
    for env, results in zip(ranks, found):
        for out, value in zip(part.outputs, results):
            if out.alias is not None:
                env[part.inputs[out.alias].value] = value
    return traffic[0].made


def test_ranks_with_copies_draw_the_same() -> None:
    """Whatever they are seeded with; ranks with other parts draw other numbers."""
    with world(4):
        over = init_device_mesh("cpu", MESH.sizes, mesh_dim_names=MESH.axes)
        x = DTensor.from_local(torch.ones(2, 8), over, [Shard(0), Replicate()], run_check=False)
        trace = trace_graph("step", lambda x: nn.functional.dropout(x, 0.5), (x,), {}, {})
        module = lower(trace)
    given = [[torch.ones(2, 8), torch.tensor([n, 0])] for n in range(4)]
    found = [results[0] for results in run_ranks(module, given)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])
    assert not torch.equal(found[0], found[2])
