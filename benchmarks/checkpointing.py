"""Memory and time of a GPT-2-style decoder's training step, with activations computed again.

    python -m benchmarks.checkpointing [--layers 12] [--rounds 5] [--points memory,time] [--json FILE] [--predict]
    python -m benchmarks.checkpointing --optimum [--models decoder,unet] [--seconds 60] [--json FILE]

Rows: everything kept; every block marked (`activation_checkpointing`); a memory budget equal to the
marked program's arena (same memory); the smallest budget whose predicted extra time is no more than
the marked program's (same time). Activation memory is what lives in the arena where the backward
begins: buffers made before the first op that belongs to the backward alone, and read at it or
later. Times are medians over rounds in which all programs take turns. `--predict` leaves them out.
`--optimum` compares predicted times of several models with proven bounds (`recomputation_optimum.py`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import gflow as flow
from benchmarks.harness import machine
from benchmarks.recomputation_optimum import MODELS, measure
from benchmarks.workloads.networks import Decoder
from gflow.compiler.ir.cost import cost_of, seconds
from gflow.compiler.memory.liveness import lives_of
from gflow.compiler.targets import DEVICES
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir

#: numbers of the decoder and of the measurement
_SHAPE = {
    "layers": 12, "width": 256, "vocabulary": 4096, "context": 128, "batch": 8, "rounds": 5,
}  # fmt: skip


class Training(flow.nn.Graph):
    """A training step with AdamW."""

    def __init__(self, model: Decoder, marked: bool, budget: int) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-4))
        layers: Any = model.layers if marked else ()
        for layer in layers:
            layer.to(flow.nn.graph.GraphModule).activation_checkpointing = True
        self.config.set_recomputation_time(0)  # only what is marked, or a budget asks for
        if budget:
            self.config.set_memory_budget(budget)

    def build(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        return loss


def describe(text: str) -> dict[str, Any]:
    """A planned program's arena, its activation memory, and the seconds that the roofline predicts."""
    with make_context():
        module = ir.Module.parse(text)
        function = module.body.operations[0].operation.opview
        lives = lives_of(function)
        backward = next(
            o.index
            for o in lives.body.ops
            if "backward:" in str(o.op.location) and "forward:" not in str(o.op.location)
        )
        kept = sum(b.size for b in lives.buffers if b.start < backward <= b.end)
        cpu = DEVICES["cpu"]
        total = sum(seconds(cost_of(o.op), cpu) for o in lives.body.ops)
        arena = ir.IntegerAttr(function.attributes["gflow.arena_size"]).value
    again = re.search(r"gflow\.rematerialized = \{.*?ops = (\d+).*?seconds = ([0-9.eE+-]+)", text)
    found = {"arena": arena, "activations": kept, "predicted_s": total}
    if again:
        found |= {"ops_again": int(again[1]), "predicted_extra_s": float(again[2])}
    return found


def make(args: argparse.Namespace, marked: bool, budget: int) -> tuple[Training, Any, float]:
    torch.manual_seed(0)
    model = Decoder(args.layers, args.width, args.width // 64, args.vocabulary, args.context)
    graph = Training(model, marked, budget)
    shape = (args.batch, args.context)
    data = torch.randint(args.vocabulary, shape), torch.randint(args.vocabulary, shape)
    start = time.perf_counter()
    graph(*data)
    return graph, data, time.perf_counter() - start


def same_time(args: argparse.Namespace, marked: dict[str, Any], plain: dict[str, Any]) -> int:
    """The smallest budget, to 2 %, that is predicted to take no longer than the marked program."""
    from gflow.compiler.driver.pass_manager import run_pipeline
    from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
    from gflow.compiler.passes.recomputation.improve import search
    from gflow.compiler.passes.recomputation.problem import read_problem
    from gflow.compiler.targets import parse_target

    graph, _, _ = args.plain
    kept = PipelineOptions(recomputation_time=0.0)
    pipeline = pipeline_for("cpu", kept).partition(",gflow-materialize")[0] + "))"
    allowed = marked["predicted_s"] - plain["predicted_s"]
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(graph.ir("traced", generic=True))
        run_pipeline(module, pipeline)
        function = module.body.operations[0].operation.opview
        problem = read_problem(function, "cpu", parse_target("cpu"))
        low, high = 0, plain["arena"]
        while high - low > 0.02 * high:
            middle = (low + high) // 2
            found = search(problem, middle).result
            fits = found.peak <= middle and found.seconds <= allowed
            low, high = (low, middle) if fits else (middle, high)
    return int(1.02 * high)  # what does not fit together without gaps


def _store(path: Path, found: dict[str, Any]) -> None:
    """Replace results of the same kind in a file of results."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**stored, **found}, indent=1) + "\n")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpointing")
    for name, value in _SHAPE.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--points", default="memory,time", help="budgets to try")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--optimum", action="store_true", help="compare with proven bounds")
    parser.add_argument("--models", default=",".join(MODELS), help="for --optimum")
    parser.add_argument("--seconds", type=float, default=60, help="the solver's limit, for each")
    args = parser.parse_args(argv)
    if args.optimum:
        found = {name: measure(name, args.seconds) for name in args.models.split(",")}
        if args.json:
            _store(args.json, {"optimum": found})
        return 0
    rows: dict[str, dict[str, Any]] = {}
    graphs: dict[str, Any] = {}

    def add(name: str, marked: bool, budget: int) -> None:
        try:
            graphs[name] = make(args, marked, budget)
        except Exception as error:  # an infeasible budget is a result too
            rows[name] = {"error": str(error).splitlines()[-1], "budget": budget}
            return
        graph, _, first = graphs[name]
        rows[name] = {**describe(graph.ir(generic=True)), "first_call_s": first, "budget": budget}
        rows[name]["rematerialize_s"] = graph.timings.get("gflow-rematerialize", 0.0)
        print(name, rows[name], flush=True)

    add("everything kept", False, 0)
    args.plain = graphs["everything kept"]
    add("blocks marked", True, 0)
    plain, marked = rows["everything kept"], rows["blocks marked"]
    if "memory" in args.points:
        add("budget, same memory", False, marked["arena"])
    if "time" in args.points:
        add("budget, same time", False, same_time(args, marked, plain))
    if not args.predict:
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(args.rounds + 1):
            for name, (graph, data, _) in graphs.items():
                start = time.perf_counter()
                graph(*data)
                samples[name].append(time.perf_counter() - start)
        for name, taken in samples.items():
            rows[name]["step_s"] = median(taken[1:])
            rows[name]["samples_s"] = taken[1:]
    for name, row in rows.items():
        if "error" in row:
            print(f"{name}: {row['error']}")
            continue
        row["arena_saved"] = 1 - row["arena"] / plain["arena"]
        row["activations_saved"] = 1 - row["activations"] / plain["activations"]
        row["predicted_more"] = row["predicted_s"] / plain["predicted_s"] - 1
        text = f"arena -{row['arena_saved']:.1%}, activations -{row['activations_saved']:.1%}, "
        text += f"predicted time +{row['predicted_more']:.1%}"
        if "step_s" in row:
            row["measured_more"] = row["step_s"] / plain["step_s"] - 1
            text += f", measured +{row['measured_more']:.1%} ({row['step_s']:.3f} s)"
        print(f"{name}: {text}")
    if args.json:
        shape = {k: v for k, v in vars(args).items() if k in _SHAPE}
        _store(args.json, {"machine": machine.describe(), "decoder": shape, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
