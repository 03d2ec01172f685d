"""Dynamic dimensions: one program for a range of batches, beside one compiled for each.

    python -m benchmarks dynamic [--models NAME,…] [--rounds 15] [--json FILE]

Training steps, the batch marked with `gflow.dynamic_dim`. For each batch the dynamic program and the
specialized one run in turn, on models with the same parameters; times are medians, and the ratio is that of
pairs. Compile times are first calls in one process, in which kernels of equal code are compiled once.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import gflow
from benchmarks.harness import machine
from benchmarks.harness.measure import note
from benchmarks.harness.report import table
from benchmarks.workloads.items import Work, loss_of, make_work

#: model → the batches that are measured; the first and the last are those of the range (batch norm of one
#: picture of one pixel is an error)
BATCHES = {
    "mlp": (1, 16, 50, 128),
    "mobilenet_v2": (2, 8, 33, 64),
    "decoder": (1, 3, 8),
}

HEAD = ("model", "batch", "dynamic ms", "specialized ms", "ratio", "compile s", "specialized s")


class Step(gflow.nn.Graph):
    """A training step."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.module = module
        self.add_optimizer(optimizer)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(self.module(x), y)
        loss.backward()
        return loss


def step_of(work: Work) -> Step:
    """A graph of its own."""
    optimizer = work.optimizer
    assert optimizer is not None
    return Step(work.module, optimizer)


def seconds_of(graph: Step, inputs: tuple[torch.Tensor, ...]) -> float:
    start = time.perf_counter()
    graph(*inputs)
    return time.perf_counter() - start


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Times of one model."""
    batches = BATCHES[name]
    work = make_work(name)
    dynamic, whole = step_of(work), work.inputs
    least, most = batches[0], batches[-1]
    marked = [gflow.dynamic_dim(x.clone(), 0, min=least, max=most) for x in whole]
    compiled = seconds_of(dynamic, tuple(marked))
    rows = {}
    for batch in batches:
        inputs = tuple(x[:batch].clone() for x in whole)
        own = make_work(name)
        own.module.load_state_dict(work.module.state_dict())
        special = step_of(own)
        first = seconds_of(special, inputs)
        for graph in (dynamic, special) * 2:
            graph(*inputs)
        pairs = []
        for k in range(rounds):
            both = [(dynamic, 0), (special, 1)][:: -1 if k % 2 else 1]
            found = {which: seconds_of(graph, inputs) for graph, which in both}
            pairs.append((found[0], found[1]))
        rows[batch] = {
            "dynamic_ms": 1e3 * median(a for a, _ in pairs),
            "specialized_ms": 1e3 * median(b for _, b in pairs),
            "ratio": median(a / b for a, b in pairs),
            "specialized_first_call_s": first,
        }
        del special
    return {"range": [least, most], "first_call_s": compiled, "batches": rows}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks dynamic", description=__doc__)
    parser.add_argument("--models", default=",".join(BATCHES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    result: dict[str, Any] = {"machine": machine.describe(), "rounds": args.rounds, "rows": {}}
    lines: list[tuple[str, ...]] = []
    work = make_work("mlp")
    seconds_of(step_of(work), work.inputs)  # loads everything that a first call loads
    for name in args.models.split(","):
        note(name)
        found = result["rows"][name] = measure(name, args.rounds)
        for batch, row in found["batches"].items():
            lines.append(
                (
                    name,
                    str(batch),
                    f"{row['dynamic_ms']:.2f}",
                    f"{row['specialized_ms']:.2f}",
                    f"{row['ratio']:.2f}",
                    f"{found['first_call_s']:.2f}",
                    f"{row['specialized_first_call_s']:.2f}",
                )
            )
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(HEAD, lines))
    return 0
