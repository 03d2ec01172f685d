"""Steps of a decoder on ranks of this machine (Gloo): graphs beside PyTorch's DDP and FSDP2.

    python -m benchmarks distributed [--ranks 2] [--rounds 8] [--quick]
    python -m benchmarks distributed --plan STAGE

Each way runs in processes of its own, one after the other, several times in turn; the table has the median of the
steps' times, the slowest rank's, the most memory that a process has held, compilation included, less what it held
before the model was made, and what a rank sends by the program's own account. `--plan` simulates one step of GPT-2
small (8 x 1,024 tokens a rank, bf16, AdamW) under a stage of ZeRO on eight H100 of a node, as `--emit=timeline` does:
among others the share of the bytes sent that work covers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.workloads.networks import Decoder, DecoderLayer

#: by name: who runs the step, and how the model is divided
WAYS = {
    "ddp": ("eager", "ddp"),
    "fsdp2": ("eager", "fsdp"),
    "gflow-ddp": ("gflow", "ddp"),
    "gflow-zero-1": ("gflow", "zero 1"),
    "gflow-zero-2": ("gflow", "zero 2"),
    "gflow-zero-3": ("gflow", "zero 3"),
    "gflow-fsdp2": ("gflow", "fsdp"),
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks distributed", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8, help="steps that are timed in a run")
    parser.add_argument("--runs", type=int, default=3, help="runs of each way, in turn")
    parser.add_argument("--ways", default=",".join(WAYS), help="which, beside ddp and fsdp2")
    parser.add_argument("--quick", action="store_true", help="a small model and few steps")
    parser.add_argument(
        "--plan",
        type=int,
        metavar="STAGE",
        help="simulate GPT-2 on 8 x H100, ZeRO's stage; run nothing",
    )
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.rank:
        print(json.dumps(_rank(args, *json.loads(args.rank))), flush=True)
        os._exit(0)
    if args.plan is not None:
        print(planned(args.plan))
        return 0
    chosen = dict.fromkeys(["ddp", "fsdp2", *args.ways.split(",")])
    if unknown := chosen.keys() - WAYS:
        parser.error(f"no way {sorted(unknown)[0]!r}; there are {', '.join(WAYS)}")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for _ in range(1 if args.quick else args.runs):
        for name in chosen:
            found[name].append(_run(args, name))
    print(f"{args.ranks} ranks, Gloo, one thread each; medians of {len(found['ddp'])} runs")
    print(f"{'':16}{'step':>12}{'of DDP':>9}{'memory':>12}{'of FSDP2':>10}{'sent':>12}")
    median = {n: {k: statistics.median(r[k] for r in rs) for k in rs[0]} for n, rs in found.items()}
    for name, row in median.items():
        step, memory = (
            row["step"] / median["ddp"]["step"],
            row["memory"] / median["fsdp2"]["memory"],
        )
        sent = f"{row['sent'] / 2**20:.1f} MiB" if row["sent"] else ""
        took, held = f"{1000 * row['step']:.1f} ms", f"{row['memory'] / 2**20:.0f} MiB"
        print(f"{name:16}{took:>12}{step:>9.2f}{held:>12}{memory:>10.2f}{sent:>12}")
    return 0


def planned(stage: int) -> Any:
    """The simulated step of GPT-2 small under a stage of ZeRO on 8 x H100; nothing is sent."""
    # only here: the ranks' processes need none of it
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from benchmarks.workloads.cuda_steps import MODELS, trace_of
    from gflow.compiler.driver.pass_manager import run_pipeline
    from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
    from gflow.compiler.ir.modules import entry_function
    from gflow.compiler.reports.timeline import step_on_ranks
    from gflow.compiler.targets import DEVICES
    from gflow.compiler.targets.links import network_of
    from gflow.lowering import lower

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    try:
        model = MODELS["gpt2"]
        graph = model.graph(DistributedDataParallel(model.empty()))
        module = lower(trace_of(graph, model.inputs()))
    finally:
        dist.destroy_process_group()
    run_pipeline(module, pipeline_for("cuda:90", PipelineOptions(zero=stage)))
    return step_on_ranks(entry_function(module), DEVICES["h100"], network_of("h100"))


def _run(args: argparse.Namespace, name: str) -> dict[str, float]:
    """One way on all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        base = [sys.executable, "-m", "benchmarks", "distributed", "--rounds", str(args.rounds)]
        base += ["--ranks", str(args.ranks), *(["--quick"] if args.quick else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GFLOW_CACHE": "0"}
        ranks = [
            subprocess.Popen(
                [*base, "--rank", json.dumps([r, store, name])],
                stdout=subprocess.PIPE, text=True, env=environment,
            )
            for r in range(args.ranks)
        ]  # fmt: skip
        outputs = [p.communicate()[0] for p in ranks]
    if any(p.returncode for p in ranks):
        raise SystemExit(f"{name}: a rank has failed")
    rows = [json.loads(text.splitlines()[-1]) for text in outputs]
    return {key: max(row[key] for row in rows) for key in rows[0]}


def _rank(args: argparse.Namespace, rank: int, store: str, name: str) -> dict[str, float]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.ranks)
    torch.manual_seed(0)
    who, how = WAYS[name]
    if who == "gflow":
        import gflow.compiler  # noqa: F401
    before = _peak()
    width, layers, length = (64, 2, 32) if args.quick else (512, 4, 128)
    model = Decoder(layers, width, 4, 1000, length)
    divided: Any = model
    if how == "fsdp":
        # only here: it loads DTensor, which is no part of the others' memory
        from torch.distributed.fsdp import fully_shard

        for module in model.modules():
            if isinstance(module, DecoderLayer):
                fully_shard(module)
        divided = fully_shard(model)
    else:
        divided = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(divided.parameters(), 1e-4)
    x = torch.randint(1000, (2, length), generator=torch.Generator().manual_seed(rank))
    step, sent = _step(who, how, divided, optimizer)
    for _ in range(2):
        step(x)
    times = []
    for _ in range(2 if args.quick else args.rounds):
        dist.barrier()
        start = time.perf_counter()
        step(x)
        times.append(time.perf_counter() - start)
    return {"step": statistics.median(times), "memory": _peak() - before, "sent": sent()}


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    return nn.functional.cross_entropy(y[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def _step(
    who: str, how: str, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Callable[[Tensor], Any], Callable[[], int]]:
    """A step, and the bytes that a rank sends in it, where they are known."""
    if who == "eager":

        def eager(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = _loss(model, x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return eager, lambda: 0
    # only here: eager's processes do not load it
    import gflow
    from gflow.compiler.distribution.network import sent
    from gflow.dialects.program import CollectiveStep

    class Train(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            if how.startswith("zero"):
                self.config.enable_zero(True, stage=int(how[-1]))

        def build(self, x: Tensor) -> Tensor:
            loss = _loss(self.model, x)
            loss.backward()
            return loss

    train = Train()

    def count() -> int:
        (plan,) = train._checked().plans
        steps = [s for s in plan.compiled.program.steps if isinstance(s, CollectiveStep)]
        wholes = [s.output if s.kind == "all_gather" else s.input for s in steps]
        return sum(sent(s.kind, s.ranks.count, w.type.nbytes) for s, w in zip(steps, wholes) if w)

    return train, count


def _peak() -> int:
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
