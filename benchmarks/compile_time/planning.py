"""How long one rank plans a training step, for a group that is not there (PyTorch's fake ranks).

    python -m benchmarks planning [--layers 2,8,32] [--width 2048] [--ranks 1,8,1024] [--stages 0,2,3]
                                 [--tensor-parallel 8] [--rounds 3]

The step is that of a Llama-style decoder (bf16, AdamW) for an H100. Nothing is computed, and parameters and optimizer
state are memory that is never touched: `--layers 32 --width 4096 --hidden 14336 --vocabulary 128256` is a Llama 3 of 8
billion parameters. One rank is the plain module, without a process group. With `--tensor-parallel N` the ranks stand
in a mesh of two dimensions: groups of N share a layer (`parallelize_module`), and the batch, gradients and state are
split over the other dimension. The columns are seconds of processor time, medians over the rounds
(the trace, its lowering, the passes up to the planned arena), then what these found: ops, collectives, arena.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.workloads.networks import Llama

#: parts of the time of a row
PARTS = ("trace", "lower", "passes")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks planning", description=__doc__)
    parser.add_argument("--layers", default="2,8,32")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--ranks", default="1,8,1024")
    parser.add_argument("--stages", default="0,2,3", help="of ZeRO; 0 is data parallelism alone")
    parser.add_argument(
        "--tensor-parallel", type=int, default=1, help="how many ranks share each layer"
    )
    parser.add_argument("--rounds", type=int, default=1, help="of all rows of a depth, in turn")
    args = parser.parse_args(argv)
    layers, ranks, stages = (
        [int(n) for n in text.split(",")] for text in (args.layers, args.ranks, args.stages)
    )
    print(
        f"{'layers':>6}{'parameters':>12}{'ranks':>7}{'ZeRO':>6}{'trace':>8}{'lower':>8}{'passes':>8}{'in all':>8}"
        f"{'of one rank':>13}{'ops':>7}{'collectives':>13}{'arena':>12}"
    )
    planned(args, 1, 1, 0)  # imports, and what is computed once a process
    settings = [(world, stage) for world in ranks for stage in (stages if world > 1 else [0])]
    for depth in layers:
        rows: dict[tuple[int, int], list[dict[str, Any]]] = {s: [] for s in settings}
        for _ in range(args.rounds):  # in turn, so that other work on the machine meets all alike
            for setting in settings:
                rows[setting].append(planned(args, depth, *setting))
                gc.collect()
        for (world, stage), found in rows.items():
            ratios = [_total(r) / _total(a) for r, a in zip(found, rows.get((1, 0), []))]
            share = f"{median(ratios):.2f}" if ratios else ""
            parts = [median(r[k] for r in found) for k in PARTS]
            seconds = "".join(f"{t:>8.2f}" for t in [*parts, median(map(_total, found))])
            row = found[0]
            print(
                f"{depth:>6}{row['parameters'] / 1e9:>11.2f}B{world:>7}{stage:>6}{seconds}"
                f"{share:>13}{row['ops']:>7}{row['collectives']:>13}{row['arena'] / 2**30:>8.2f} GiB",
                flush=True,
            )
    return 0


def _total(row: dict[str, Any]) -> float:
    return sum(row[k] for k in PARTS)


def planned(args: argparse.Namespace, depth: int, world: int, stage: int) -> dict[str, Any]:
    """One row of the table."""
    # only here: `--help` needs none of it
    from benchmarks.workloads.cuda_steps import Model, trace_of
    from benchmarks.workloads.items import adamw
    from gflow.compiler.driver.pass_manager import run_pipeline
    from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
    from gflow.compiler.ir.modules import entry_function
    from gflow.dialects.mlir import ir as mlir
    from gflow.lowering import lower
    from gflow.tracing.context.collector import collector_paused

    heads = max(args.width // 128, 1)
    model = Model(
        "llama", "",
        lambda: Llama(depth, args.width, heads, max(heads // 4, 1), args.hidden, args.vocabulary),
        lambda: (torch.zeros(1, args.tokens, dtype=torch.int64),) * 2, adamw, torch.bfloat16,
    )  # fmt: skip
    with _fake_ranks(world), collector_paused():  # as in a graph's first call
        inputs = model.inputs()
        if world > 1 and args.tensor_parallel > 1:
            module, inputs = _on_a_mesh(model, world, args.tensor_parallel, inputs)
            graph = model.graph(module)
        else:
            module = model.empty()
            wrapped = module if world == 1 else DistributedDataParallel(module, init_sync=False)
            graph = model.graph(wrapped)
        _untouched_state(graph)
        start = time.process_time()
        trace = trace_of(graph, inputs)
        traced = time.process_time()
        ir = lower(trace)
        lowered = time.process_time()
        run_pipeline(ir, pipeline_for("cuda:90", PipelineOptions(zero=stage)))
        done = time.process_time()
    function = entry_function(ir)
    names = [op.operation.name for op in function.regions[0].blocks[0].operations]
    return {
        "parameters": sum(p.numel() for p in module.parameters()),
        "trace": traced - start,
        "lower": lowered - traced,
        "passes": done - lowered,
        "ops": len(names),
        "collectives": sum(
            name.startswith("gflow.collective") and "wait" not in name for name in names
        ),
        "arena": mlir.IntegerAttr(function.attributes["gflow.arena_size"]).value,
    }


def _on_a_mesh(
    model: Any, world: int, ranks: int, inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The model with its layers split over `ranks` ranks, and a batch of which each group of these has one part."""
    # only here: one rank needs no meshes
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (world // ranks, ranks), mesh_dim_names=("dp", "tp"))
    columns = {f"layers.*.{name}": ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
    rows = {f"layers.*.{name}": RowwiseParallel() for name in ("o", "down")}
    ends = {
        "token": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(use_local_output=False),
    }
    with torch.device("meta"):
        module = model.make().to(model.dtype)
    parallelize_module(module, mesh["tp"], {**columns, **rows, **ends})
    placed = [DTensor.from_local(x, mesh, [Shard(0), Replicate()]) for x in inputs]
    return module.to_empty(device="cpu").train(), tuple(placed)


def _untouched_state(graph: Any) -> None:
    """Give AdamW state as after a step, which nobody has written: zeros would take a processor's time to write."""
    (optimizer,) = graph._checked().optimizers
    for p in optimizer.param_groups[0]["params"]:
        moments = {name: torch.empty_like(p) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p] = {"step": torch.tensor(1.0), **moments}


@contextmanager
def _fake_ranks(world: int) -> Iterator[None]:
    if world == 1:
        yield
        return
    # only here: one rank needs no process group
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
