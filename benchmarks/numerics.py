"""Rounding errors of training steps beside eager's: `python -m benchmarks numerics`.

Each architecture runs one forward and backward in float32 by gflow and by eager PyTorch, and once in float64. An
error is the relative L2 distance from float64's result, of three vectors: outputs, losses (one for each sample or
token), gradients (of all parameters, as one vector).

An error in one run is a random number, and its ratio to another has no mean to speak of, so estimators are chosen
that hold still. Vectors instead of the one number that a mean loss is: hundreds of roundings average out. Outputs and
losses: the geometric mean of the ratios over the seeds, each of which draws weights and inputs. Gradients: the
quotient of the lower quartiles over the seeds. A unit that rounding carries over a kink (of a ReLU, of a maximum)
changes a gradient by a thousand times what rounding does; in which seeds that happens is luck for both, and the lower
quartile is of those where it doesn't. How many seeds were hit is reported for both.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import gflow
from benchmarks.harness import machine
from benchmarks.harness.measure import note
from benchmarks.harness.report import table
from benchmarks.workloads.numerics_steps import MODELS, Model

WHAT = ("outputs", "losses", "gradients")

#: geometric mean of all ratios of a kind, and the largest of a network
BAR_MEAN, BAR_LARGEST = 1.0, 2.0

#: an error this many times the lower quartile is a kink's
_KINK = 10.0


def step(module: torch.nn.Module, batch: dict[str, Tensor], labels: Tensor) -> list[list[Tensor]]:
    """Outputs, losses and gradients of a forward and backward."""
    out = module(**batch)
    out = getattr(out, "logits", out)
    losses = F.cross_entropy(out.flatten(0, -2), labels, reduction="none")
    parameters = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad(losses.mean(), parameters, allow_unused=True)
    return [[out.detach()], [losses.detach()], [g for g in found if g is not None]]


class Step(gflow.nn.Graph):
    """`step` of a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def build(self, batch: dict[str, Tensor], labels: Tensor) -> list[list[Tensor]]:
        return step(self.module, batch, labels)


def distance(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The relative L2 distance of vectors that are given in parts."""
    off = sum(float((a.double() - b).square().sum()) for a, b in zip(found, exact, strict=True))
    return math.sqrt(off / sum(float(b.square().sum()) for b in exact))


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values))


def quartile(values: Sequence[float]) -> float:
    """The lower one: a quarter of the values lie below, or are it."""
    return sorted(values)[(len(values) - 1) // 4]


def measure(model: Model, seeds: int) -> dict[str, Any]:
    """Errors of one architecture by seed, and their ratios."""
    torch.manual_seed(0)
    module = model.make()
    graph = Step(module)
    errors: dict[str, dict[str, list[float]]] = {w: {"gflow": [], "eager": []} for w in WHAT}
    for seed in range(seeds):
        torch.manual_seed(seed)
        module.load_state_dict(model.make().state_dict())
        batch, labels = model.inputs()
        wide = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
        exact = step(copy.deepcopy(module).double(), wide, labels)
        eager = step(copy.deepcopy(module), batch, labels)
        ours = graph(batch, labels)
        for what, a, b, e in zip(WHAT, ours, eager, exact):
            errors[what]["gflow"].append(distance(a, e))
            errors[what]["eager"].append(distance(b, e))
    row: dict[str, Any] = {"model": model.name, "kind": model.kind, "errors": errors, "ratio": {}}
    for what, by in errors.items():
        if what == "gradients":
            low = {who: quartile(values) for who, values in by.items()}
            row["ratio"][what] = low["gflow"] / low["eager"]
            row["kinks"] = {who: sum(v > _KINK * low[who] for v in by[who]) for who in by}
        else:
            row["ratio"][what] = geometric_mean([a / b for a, b in zip(by["gflow"], by["eager"])])
    return row


def uncertainty(rows: Sequence[dict[str, Any]], what: str) -> float:
    """The relative standard error of the geometric mean over networks of the ratios of outputs or losses, from how
    these scatter over the seeds of each: what is nearer to 1 than twice this, no number of these seeds tells from 1."""
    total = 0.0
    for row in rows:
        errors = row["errors"][what]
        logs = [math.log(a / b) for a, b in zip(errors["gflow"], errors["eager"])]
        mean = sum(logs) / len(logs)
        total += sum((v - mean) ** 2 for v in logs) / max(len(logs) - 1, 1) / len(logs)
    return math.sqrt(total) / len(rows)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means and largest ratios by kind of network and over all; of outputs and losses, the standard error of the mean,
    as a share of it."""
    found: dict[str, Any] = {}
    for kind in ("convolution", "transformer", "all"):
        of_kind = [r for r in rows if kind in ("all", r["kind"])]
        chosen = [r["ratio"] for r in of_kind]
        if chosen:
            found[kind] = {
                what: {
                    "mean": geometric_mean([r[what] for r in chosen]),
                    "largest": max(r[what] for r in chosen),
                }
                for what in WHAT
            }
            for what in ("outputs", "losses"):
                found[kind][what]["standard error"] = uncertainty(of_kind, what)
    return found


def render(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        low = [f"{quartile(row['errors'][w]['gflow']):.1e}" for w in WHAT]
        ratios = [f"{row['ratio'][w]:.2f}" for w in WHAT]
        pairs = [cell for both in zip(low, ratios) for cell in both]
        lines.append((row["model"], row["kind"], *pairs, "{gflow}, {eager}".format(**row["kinks"])))
    for kind, by in summary(rows).items():
        cells = [c for w in WHAT for c in ("", f"{by[w]['mean']:.2f} ({by[w]['largest']:.2f})")]
        lines.append(("mean (largest)", kind, *cells, ""))
    head = (
        "model",
        "kind",
        "outputs",
        "/ eager",
        "losses",
        "/ eager",
        "gradients",
        "/ eager",
        "kinks",
    )
    return table(head, lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks numerics", description=__doc__)
    parser.add_argument("--models", default="all", help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument(
        "--quick", action="store_true", help="one architecture of each kind, two seeds"
    )
    args = parser.parse_args(argv)
    names = [m.name for m in MODELS] if args.models == "all" else args.models.split(",")
    unknown = set(names) - {m.name for m in MODELS}
    if unknown:
        parser.error(
            f"no model {', '.join(sorted(unknown))}; there are {', '.join(m.name for m in MODELS)}"
        )
    if args.quick:
        names, args.seeds = ["mobilenetv3_small_100", "gpt2"], 2
    rows = []
    for model in MODELS:
        if model.name not in names:
            continue
        rows.append(measure(model, args.seeds))
        note(f"{model.name}: " + ", ".join(f"{w} {r:.2f}" for w, r in rows[-1]["ratio"].items()))
        if args.json:
            result = {
                "machine": machine.describe(),
                "seeds": args.seeds,
                "summary": summary(rows),
                "rows": rows,
            }
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(render(rows))
    found = summary(rows)["all"].values()
    if args.quick:
        return 0
    return int(any(v["mean"] > BAR_MEAN or v["largest"] > BAR_LARGEST for v in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
