"""Mixed precision, on and off: bytes moved, planned memory, step time, and loss curves.

    python -m benchmarks amp [--models NAME,…] [--types TYPE,…] [--peers PEER,…] [--rounds 5] [--threads N] [--curves]
                             [--json FILE]

Bytes and roofline times are those of `gflow.compiler.ir.cost`. "arena" is the planned memory of all values
that are no arguments or results; halves of the weights are among them. Step times are of this
machine's CPU, medians of interleaved samples: with Intel AMX or AVX-512's dot products it multiplies bfloat16 values,
otherwise products are made in float32 (docs/mixed_precision.md). Peers (eager, compile) take the same step in float32,
and under `torch.autocast` in bfloat16.
`--curves`: 50 steps beside an eager loop under `torch.autocast`, and beside float32.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.harness import machine
from benchmarks.harness.measure import in_turns, note
from benchmarks.harness.peers import Step, make_step
from benchmarks.harness.report import table
from benchmarks.workloads import mixed_precision
from benchmarks.workloads.items import ITEMS, loss_of, make_work

VARIANTS: dict[str, torch.dtype | None] = {
    "float32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_DEVICES = ("h100", "a100")


def graph_of(name: str, dtype: torch.dtype | None, quick: bool) -> tuple[Any, tuple[Any, ...]]:
    """A graph that takes the item's training step, and its inputs."""
    import gflow

    work = make_work(name, quick)

    class Step(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.module = work.module
            self.add_optimizer(work.optimizer)
            if dtype is not None:
                self.config.enable_amp(True, dtype=dtype)
            if dtype == torch.float16:
                self.set_grad_scaler(gflow.amp.GradScaler())

        def build(self, *inputs: Any) -> Any:
            loss = loss_of(self.module(*inputs[:-1]), inputs[-1])
            loss.backward()
            return loss

    return Step(), work.inputs


def measure_text(text: str) -> dict[str, Any]:
    """What a planned module moves and needs."""
    from gflow.compiler.ir.cost import cost_of, seconds
    from gflow.compiler.targets import DEVICES
    from gflow.dialects.dialect import make_context
    from gflow.dialects.mlir import ir

    with make_context():
        module = ir.Module.parse(text)
        function = module.body.operations[0]
        block = function.operation.regions[0].blocks[0]
        ops = [op.operation for op in block.operations]
        costs = [cost_of(op) for op in ops]
        arena = ir.IntegerAttr(function.operation.attributes["gflow.arena_size"]).value
    return {
        "kernels": sum(c.bytes > 0 for c in costs),
        "bytes": sum(c.bytes for c in costs),
        "arena": arena,
        "roofline_ms": {
            name: 1e3 * sum(seconds(c, DEVICES[name]) for c in costs) for name in _DEVICES
        },
    }


def peer_step(peer: str, name: str, dtype: torch.dtype | None, quick: bool) -> Step:
    """The training step of a peer, under `torch.autocast` if there is a dtype."""
    step = make_step(peer, make_work(name, quick))

    def under_autocast() -> Any:
        with torch.autocast("cpu", dtype):
            return step()

    return step if dtype is None else under_autocast


def measure(
    name: str, rounds: int, quick: bool, variants: list[str], peers: list[str]
) -> dict[str, Any]:
    graphs = {variant: graph_of(name, VARIANTS[variant], quick) for variant in variants}
    steps: dict[str, Step] = {v: partial(graph, *inputs) for v, (graph, inputs) in graphs.items()}
    for peer in peers:
        steps[peer] = peer_step(peer, name, None, quick)
        steps[f"{peer}, autocast"] = peer_step(peer, name, torch.bfloat16, quick)
    for step in steps.values():
        for _ in range(3):
            step()
    samples = in_turns({variant: (step, 1) for variant, step in steps.items()}, rounds)
    rows: dict[str, Any] = {variant: {"ms": median(times)} for variant, times in samples.items()}
    for variant, (graph, _) in graphs.items():
        rows[variant] |= measure_text(graph.ir(generic=True))
    return rows


def curves(steps: int) -> dict[str, Any]:
    """Mean distances between loss curves: this compiler's, autocast's, and eager float32's."""
    rows: dict[str, Any] = {}
    for name in mixed_precision.MODELS:
        full = mixed_precision.eager_curve(name, steps)
        cast = mixed_precision.eager_curve(name, steps, torch.bfloat16)
        row = {"start": full[0].item(), "end": full[-5:].mean().item()}
        row["autocast_from_float32"] = (cast - full).abs().mean().item()
        for variant, dtype in VARIANTS.items():
            scaler = None
            if dtype == torch.float16:
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
            own = mixed_precision.compiled_curve(name, steps, dtype, scaler)
            row[f"{variant}_from_float32"] = (own - full).abs().mean().item()
            if dtype == torch.bfloat16:
                row["bfloat16_from_autocast"] = (own - cast).abs().mean().item()
        rows[name] = row
    return rows


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks amp", description=__doc__)
    training = [i.name for i in ITEMS.values() if i.kind == "training"]
    parser.add_argument("--models", default=",".join(training))
    parser.add_argument("--types", default=",".join(VARIANTS), help="of gflow's steps")
    parser.add_argument("--peers", default="eager", help="eager, compile, or none (an empty text)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: those of PyTorch")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--curves", action="store_true", help="loss curves, too")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    result: dict[str, Any] = {"machine": machine.describe(), "quick": args.quick, "rows": {}}
    result["threads"] = torch.get_num_threads()
    lines: list[tuple[str, ...]] = []
    variants, peers = args.types.split(","), [p for p in args.peers.split(",") if p]
    for name in args.models.split(","):
        note(ITEMS[name].description)
        rows = measure(name, args.rounds, args.quick, variants, peers)
        result["rows"][name] = rows
        whole = rows["float32"]["ms"] if "float32" in rows else float("nan")
        for variant, row in rows.items():
            moved = f"{row['bytes'] / 1e6:.0f}" if "bytes" in row else ""
            arena = f"{row['arena'] / 1e6:.1f}" if "arena" in row else ""
            there = [
                f"{row['roofline_ms'][d]:.2f}" if "roofline_ms" in row else "" for d in _DEVICES
            ]
            times = f"{row['ms']:.1f}", f"{whole / row['ms']:.2f}"
            lines.append((name, variant, moved, arena, *times, *there))
    devices = (f"{d} ms" for d in _DEVICES)
    heads = ("model", "type", "MB moved", "arena MB", "ms here", "float32 / it", *devices)
    print(table(heads, lines))
    if args.curves:
        result["curves"] = curves(50)
        for name, row in result["curves"].items():
            print(name, ", ".join(f"{key} {value:.5f}" for key, value in row.items()))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0
