"""Models of the `transformers` library: what ran through ATen, and times beside eager and torch.compile.

    python -m benchmarks transformers [--models NAME,…] [--modes inference,training] [--json FILE]

Inference is `model(**batch)` without gradients. Training is a step with the model's own loss from its
`labels` and AdamW; `torch.compile` gets the forward and, as a function of its own, the optimizer's step.
A row measures each first call in a fresh process with empty caches, then all peers in one process in
turns. `--json` is read first where it exists: what is measured again replaces what stands in it.
To measure in pieces, `--no-first-call` and `--no-steps` leave one part out, and `--caches` keeps what was
compiled in a folder (new, for first calls that are to be cold).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import machine
from benchmarks.harness.measure import (
    CACHE_VARIABLES,
    ChildError,
    ask,
    empty_caches,
    in_turns,
    note,
)
from benchmarks.harness.report import table
from benchmarks.workloads.language_models import MODELS, Work, make_work

PEERS = ("eager", "compile", "gflow")
MODES = ("inference", "training")
WARM_UP_STEPS = 3
PROFILE_ROUNDS = 5
SAMPLE_SECONDS = 0.03

Step = Callable[[], Tensor]


def make_step(peer: str, work: Work, training: bool) -> tuple[Step, Any]:
    """A function that takes one step, and gflow's graph."""
    if peer == "gflow":
        graph = _graph(work, training)
        return lambda: graph(**work.batch), graph
    model = work.module if peer == "eager" else torch.compile(work.module)
    if not training:

        def forward() -> Tensor:
            with torch.no_grad():
                return model(**work.batch).logits

        return forward, None
    optimizer = _optimizer(work)
    update = optimizer.step if peer == "eager" else torch.compile(optimizer.step)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(**work.batch).loss
        loss.backward()
        update()
        return loss.detach()

    return step, None


def _optimizer(work: Work) -> torch.optim.Optimizer:
    return torch.optim.AdamW(work.module.parameters(), lr=3e-4)


def _graph(work: Work, training: bool) -> Any:
    import gflow

    class Inference(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = work.module

        def build(self, **batch: Tensor) -> Tensor:
            return self.model(**batch).logits

    class Training(Inference):
        def __init__(self) -> None:
            super().__init__()
            self.add_optimizer(_optimizer(work))

        def build(self, **batch: Tensor) -> Tensor:
            loss = self.model(**batch).loss
            loss.backward()
            return loss

    return Training() if training else Inference()


# -- in a process of its own


def first_call(request: dict[str, Any]) -> dict[str, Any]:
    """From before the peer is asked for anything until its first result."""
    training = request["training"]
    work = make_work(request["item"], request["quick"], training)
    start = time.perf_counter()
    make_step(request["peers"][0], work, training)[0]()
    return {"seconds": time.perf_counter() - start}


def steps(request: dict[str, Any]) -> dict[str, Any]:
    """Peers take turns: a sample of each in every round, another one first each time."""
    training = request["training"]
    ready: dict[str, tuple[Step, int]] = {}
    results: dict[str, list[Tensor]] = {}
    graph: Any = None
    for peer in request["peers"]:
        step, found = make_step(
            peer, make_work(request["item"], request["quick"], training), training
        )
        graph = found or graph
        results[peer] = [step().clone() for _ in range(WARM_UP_STEPS)]
        start = time.perf_counter()
        step()
        ready[peer] = (step, max(1, round(SAMPLE_SECONDS / (time.perf_counter() - start))))
    samples = in_turns(ready, request["rounds"])
    answer: dict[str, Any] = {
        "ms": {peer: median(times) for peer, times in samples.items()},
        "samples_ms": {peer: [round(t, 4) for t in times] for peer, times in samples.items()},
        "difference": {
            peer: max(_difference(a, b) for a, b in zip(found, results["eager"]))
            for peer, found in results.items()
        },
        "load": round(os.getloadavg()[0], 2),
    }
    if graph is not None:
        work = make_work(request["item"], request["quick"], training)
        answer["aten"] = aten_calls(graph.profile(**work.batch, rounds=PROFILE_ROUNDS))
    return answer


def _difference(found: Tensor, expected: Tensor) -> float:
    """The largest, relative to the largest value."""
    return float((found - expected).abs().max() / expected.abs().max())


def aten_calls(profile: Any) -> dict[str, dict[str, float]]:
    """ATen overloads that a program calls: how often, and their share of the time in its steps."""
    total = sum(s.seconds for s in profile.steps)
    found: dict[str, dict[str, float]] = {}
    for step in profile.steps:
        if step.kernel.startswith("aten."):
            entry = found.setdefault(step.kernel.removeprefix("aten."), {"calls": 0, "share": 0.0})
            entry["calls"] += 1
            entry["share"] += step.seconds / total
    return found


CHILD_MODES = {"first_call": first_call, "steps": steps}


# -- the parent


def measure(row: dict[str, Any], args: argparse.Namespace) -> None:
    """Add to a row what was asked for; the rest of it stays."""
    name, mode, peers = row["model"], row["mode"], args.peers.split(",")
    base = {
        "item": name,
        "training": mode == "training",
        "quick": args.quick,
        "rounds": args.rounds,
    }

    def attempt(child: str, asked: list[str], environment: dict[str, str]) -> dict[str, Any]:
        note(f"  {name}: {mode}, {child} {', '.join(asked)}")
        request = {**base, "mode": child, "peers": asked}
        return ask(request, environment, args.timeout, "benchmarks.transformers")

    row.pop("error", None)
    try:
        with _caches(args.caches and args.caches / f"{name}-{mode}") as environment:
            for peer in peers if args.first_call else ():
                seconds = attempt("first_call", [peer], environment)["seconds"]
                row.setdefault("first_call_s", {})[peer] = seconds
            if args.steps:
                row.update(attempt("steps", peers, environment))
    except ChildError as error:
        row["error"] = str(error)
        note(f"  {error}")


@contextmanager
def _caches(folder: Path | None) -> Iterator[dict[str, str]]:
    """Empty caches; or those in a folder, which stay."""
    if folder is None:
        with empty_caches() as environment:
            yield environment
    else:
        yield {name: str(folder / name.lower()) for name in CACHE_VARIABLES}


HEAD = (
    "model", "step", "through ATen: calls, share of time", "gflow ms", "eager ms", "compile ms",
    "/ eager", "/ compile", "first s", "compile's", "error",
)  # fmt: skip


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "error" in row:
        return (row["model"], row["mode"], row["error"], *["-"] * (len(HEAD) - 3))
    ms, first = row.get("ms", {}), row.get("first_call_s", {})

    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    def ratio(peer: str) -> str:
        return number(ms["gflow"] / ms[peer] if {peer, "gflow"} <= {*ms} else None, 2)

    calls = (
        f"{name.removesuffix('.default')} ×{found['calls']} {found['share']:.0%}"
        for name, found in sorted(row.get("aten", {}).items(), key=lambda item: -item[1]["share"])
    )
    return (
        row["model"], row["mode"], ", ".join(calls) or "none",
        number(ms.get("gflow"), 1), number(ms.get("eager"), 1), number(ms.get("compile"), 1),
        ratio("eager"), ratio("compile"),
        number(first.get("gflow"), 1), number(first.get("compile"), 1),
        f"{row['difference']['gflow']:.0e}" if "difference" in row else "-",
    )  # fmt: skip


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [HEAD, ("---",) * len(HEAD), *map(cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks transformers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="tiny models: does it run?")
    parser.add_argument("--no-first-call", dest="first_call", action="store_false")
    parser.add_argument("--no-steps", dest="steps", action="store_false")
    parser.add_argument("--caches", type=Path)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one process")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    for given, known_names in ((args.models, MODELS), (args.modes, MODES), (args.peers, PEERS)):
        for unknown in {*filter(None, given.split(","))} - {*known_names}:
            parser.error(f"no {unknown!r}; there are {', '.join(known_names)}")

    result: dict[str, Any] = {"rows": []}
    if args.json and args.json.exists():
        result = json.loads(args.json.read_text())
    result["machine"], result["quick"] = machine.describe(), args.quick
    known = {(row["model"], row["mode"]): row for row in result["rows"]}
    for name in args.models.split(",") if args.models else []:
        for mode in args.modes.split(","):
            start = {"model": name, "mode": mode, "description": MODELS[name].description}
            measure(known.setdefault((name, mode), start), args)
            result["rows"] = [
                known[name, mode] for name in MODELS for mode in MODES if (name, mode) in known
            ]
            if args.json:  # after every row: a long run that is stopped keeps what it has
                args.json.write_text(json.dumps(result, indent=1) + "\n")
    rows = result["rows"]
    print(markdown(rows) if args.markdown else table(HEAD, [cells(row) for row in rows]))
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print("\n" + json.dumps(CHILD_MODES[asked["mode"]](asked)), flush=True)
