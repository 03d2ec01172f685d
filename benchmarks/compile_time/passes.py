"""How the time of each pass grows with the number of ops.

    python -m benchmarks passes [--sizes 1250,…,20000] [--graphs decoder,towers,mixture]
                                [--pipeline TEXT] [--repeats 3] [--json FILE]

Synthetic training graphs (`benchmarks/workloads/synthetic.py`) go through the pipeline and through code
generation; `--pipeline` runs other passes instead, without code generation. Every reading is a
fresh process; a pass counts with the least of its repeats, all its runs in the pipeline together.
Seconds are the process's CPU time, which other work on the machine slows down but doesn't add to.
Tracing, lowering and LLVM's JIT are no passes: they are shown below the total, from one first
call. The exponent e is that of `seconds ~ ops^e`, by least squares on the logarithms; `last` is
the one between the two largest sizes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.compile_time.scaling import exponent
from benchmarks.harness import machine
from benchmarks.harness.measure import ROOT, ChildError, ask, empty_caches, note
from benchmarks.harness.report import number, table
from benchmarks.workloads.synthetic import GRAPHS, MODELS, make_mixture

SIZES = "1250,2500,5000,10000,20000"
#: phases of a first call that are no passes, by their name in the table
OUTSIDE = {"trace": "tracing", "lower": "lowering", "load": "LLVM JIT"}
#: passes below this many seconds at every size have no exponent worth a look
_FLOOR = 0.005


# -- in a process of its own


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """One graph at one size: ops, seconds by pass, seconds outside the passes."""
    # the phases' own clocks
    with mock.patch.object(time, "perf_counter", time.process_time):
        return _measure(request)


def _measure(request: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    graph = request["graph"]
    if "count" in request:
        return {
            "ops": [
                count_ops(first_call(graph, n).ir("traced", generic=True)) for n in request["count"]
            ]
        }
    if graph in MODELS:
        made = first_call(graph, request["units"])
        text, outside = made.ir("traced", generic=True), dict(made.timings)
    else:
        text = make_mixture(request["units"])
        outside = {"load": load(text)}
    runs = [run(text, request.get("pipeline")) for _ in range(request["repeats"])]
    names = list(runs[0])
    return {
        "ops": count_ops(text),
        "passes": {name: min(seconds[name] for seconds in runs) for name in names},
        "outside": {name: outside[name] for name in OUTSIDE if name in outside},
    }


def first_call(graph: str, units: int) -> Any:
    """The graph over a model of so many layers or towers, after its first step."""
    from benchmarks.harness.peers import gflow_step

    step, made = gflow_step(MODELS[graph](units))
    step()
    return made


def run(text: str, pipeline: str | None) -> dict[str, float]:
    """Seconds by pass of one run of the pipeline (and of code generation) on a fresh module."""
    from gflow.compiler import CompileOptions, compile_module
    from gflow.compiler.driver.pass_manager import run_pipeline
    from gflow.dialects.dialect import make_context
    from gflow.dialects.mlir import ir

    with make_context():
        module = ir.Module.parse(text)
    seconds: dict[str, float] = {}
    if pipeline:
        run_pipeline(module, pipeline, timing=seconds)
    else:
        compile_module(module, CompileOptions(timing=seconds))
    return seconds


def load(text: str) -> float:
    """Seconds that kernels take in LLVM's JIT."""
    from gflow.compiler import compile_module
    from gflow.dialects.dialect import make_context
    from gflow.dialects.mlir import ir
    from gflow.runtime import Executable

    with make_context():
        program = compile_module(ir.Module.parse(text))
    start = time.perf_counter()
    Executable(program)
    return time.perf_counter() - start


def count_ops(text: str) -> int:
    return sum('"gflow.' in line for line in text.splitlines())


# -- the table


def read(
    graph: str, sizes: list[int], repeats: int, pipeline: str | None, timeout: float
) -> list[dict[str, Any]]:
    """The readings of one graph; its number of ops is the nearest that a model can have."""

    def child(**request: Any) -> dict[str, Any]:
        with empty_caches() as environment:
            return ask({"mode": "passes", "graph": graph, **request}, environment, timeout)

    units = sizes
    if graph in MODELS:
        first, second = child(count=[2, 3])["ops"]
        units = [max(1, round(2 + (size - first) / (second - first))) for size in sizes]
    points = []
    for size, count in zip(sizes, units):
        note(f"  passes: {graph}, {size} ops")
        points.append(child(units=count, repeats=repeats, pipeline=pipeline))
    return points


def exponents(points: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """For each pass and the total: over all sizes, and between the last two."""
    found = {}
    for name in [*points[0]["passes"], "total"]:
        series = [seconds_of(point, name) for point in points]
        if min(series) > 0 and max(series) >= _FLOOR:
            sizes = [float(point["ops"]) for point in points]
            found[name] = {
                "fit": exponent(sizes, series),
                "last": exponent(sizes[-2:], series[-2:]),
            }
    return found


def seconds_of(point: dict[str, Any], name: str) -> float:
    passes = point["passes"]
    return sum(passes.values()) if name == "total" else passes[name]


def show(graph: str, points: list[dict[str, Any]], found: dict[str, dict[str, float]]) -> str:
    head = ("pass", "", *(f"{point['ops']} ops" for point in points), "exponent", "last")
    rows = []
    for name in [*points[0]["passes"], "total"]:
        fitted = found.get(name, {})
        cells = [number(seconds_of(point, name), 3) for point in points]
        ends = (number(fitted.get("fit"), 2), number(fitted.get("last"), 2))
        rows.append((name, "s", *cells, *ends))
    for name in points[0]["outside"]:
        cells = [number(point["outside"].get(name), 3) for point in points]
        rows.append((OUTSIDE[name], "s", *cells, "", ""))
    return f"{graph}\n" + table(head, rows)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks passes")
    parser.add_argument("--sizes", default=SIZES, help="ops, separated by commas")
    parser.add_argument("--graphs", default=",".join(GRAPHS), help=f"of {', '.join(GRAPHS)}")
    parser.add_argument("--pipeline", help="passes to run instead of the target's, as text")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one reading")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/passes.json")
    args = parser.parse_args(argv)
    sizes = [int(size) for size in args.sizes.split(",")]
    if len(sizes) < 2:
        parser.error("an exponent needs at least two sizes")
    graphs = args.graphs.split(",")
    for graph in graphs:
        if graph not in GRAPHS:
            parser.error(f"no graph {graph!r}; there are {', '.join(GRAPHS)}")
    result: dict[str, Any] = {"machine": machine.describe(), "pipeline": args.pipeline}
    result["graphs"] = {}
    for graph in graphs:
        try:
            points = read(graph, sizes, args.repeats, args.pipeline, args.timeout)
        except ChildError as error:
            print(f"{graph}: {error}")
            return 1
        found = exponents(points)
        result["graphs"][graph] = {"points": points, "exponents": found}
        print(show(graph, points, found), flush=True)
        # after every graph: a long run that is stopped keeps what it has
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0
