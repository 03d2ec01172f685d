"""How much memory training steps are planned to need, against what eager PyTorch allocates.

    python -m benchmarks memory [--models NAME,…] [--json FILE] [--doc docs/memory.md] [--quick]

Both sides count what a step needs beside parameters, optimizer state and inputs: activations,
gradients, temporaries, results. Eager's is the peak of what PyTorch's allocator gives out during one
step, after a step that made the optimizer's state. gflow's is planned: the arena, with the scratch of
its kernels, and the results. What the ATen calls of a gflow program allocate inside is measured while
it runs, and listed beside.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import machine
from benchmarks.harness.eager_memory import allocated_peak, tensors_peak
from benchmarks.harness.measure import note
from benchmarks.harness.peers import gflow_step
from benchmarks.workloads.items import Work, loss_of
from benchmarks.workloads.memory_steps import MODELS, make_work
from examples.peak_memory import MIB

ORDERS = ("Disable", "SpeedFirst", "MemoryFirst")
#: what docs/memory.md holds between these lines is written here
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
DEFAULT = "SpeedFirst"
TIMINGS = 3


def eager(work: Work) -> dict[str, int]:
    """Peaks of an eager training step, in bytes."""
    optimizer, module = work.optimizer, work.module
    assert optimizer is not None
    *inputs, target = work.inputs

    def step() -> torch.Tensor:
        loss = loss_of(module(*inputs), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step()
    state = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    known = [*module.parameters(), *module.buffers(), *work.inputs, *state]
    optimizer.zero_grad(set_to_none=True)
    found = {"allocated": allocated_peak(step)}
    optimizer.zero_grad(set_to_none=True)
    found["tensors"] = tensors_peak(step, known)
    optimizer.zero_grad(set_to_none=True)
    return found


def planned(text: str, passes: Any, repeats: int = 1) -> dict[str, Any]:
    """What a traced module is planned to need with these switches; times are the best of several."""
    from gflow.compiler.driver.pass_manager import run_pipeline
    from gflow.compiler.driver.pipelines import pipeline_for
    from gflow.dialects.dialect import make_context
    from gflow.dialects.mlir import ir

    timings: list[dict[str, float]] = []
    for _ in range(repeats):
        with make_context():
            module = ir.Module.parse(text)
            timings.append({})
            run_pipeline(module, pipeline_for("cpu", passes), timing=timings[-1])
            run_pipeline(module, "builtin.module(func.func(gflow-verify-memory))")
            function = module.body.operations[0].operation
            numbers = {
                name: ir.IntegerAttr(function.attributes[f"gflow.{name}"]).value
                for name in ("arena_size", "lower_bound")
            }
            body = list(function.regions[0].blocks[0].operations)
            scratch = [
                ir.DenseI64ArrayAttr(o.operation.attributes["gflow.scratch"])[1]
                for o in body
                if "gflow.scratch" in o.operation.attributes
            ]
    return {
        **numbers,
        "largest_scratch": max(scratch, default=0),
        "ops": len(body),
        "schedule_s": min(t["gflow-schedule"] for t in timings),
        "plan_s": min(t["gflow-plan-memory"] for t in timings),
    }


def measure(name: str, quick: bool) -> dict[str, Any]:
    """One model: eager's peaks, plans under each order and switch, allocations of ATen calls."""
    from gflow.compiler.driver.pipelines import PipelineOptions

    row: dict[str, Any] = {"model": name, "description": MODELS[name][0]}
    row["eager"] = eager(make_work(name, quick))
    step, graph = gflow_step(make_work(name, quick))
    for _ in range(3):
        step()
    program = graph._state.latest.compiled.run.program  # type: ignore[attr-defined]
    row["results"] = sum(r.type.nbytes for r in program.results if r.alias is None)
    row["aten"] = allocated_peak(step)
    text = graph.ir("traced", generic=True)  # type: ignore[attr-defined]
    row["orders"] = {
        order: planned(text, PipelineOptions(straighten=order), TIMINGS if order == DEFAULT else 1)
        for order in ORDERS
    }
    row["not_compressed"] = planned(text, PipelineOptions(compress_memory=False))
    return row


def peak(row: dict[str, Any], order: str = DEFAULT) -> int:
    return row["orders"][order]["arena_size"] + row["results"]


def table(rows: list[dict[str, Any]]) -> str:
    """The measured part of docs/memory.md."""

    def mib(value: int) -> str:
        return f"{value / MIB:.1f}"

    lines = [
        "| model | eager | gflow | ÷ eager | arena ÷ bound | inside ATen calls | not compressed | "
        "plan, s per 1,000 ops |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        plan = row["orders"][DEFAULT]
        ratio = plan["arena_size"] / max(plan["lower_bound"], 1)
        cells = [
            row["description"],
            mib(row["eager"]["allocated"]),
            mib(peak(row)),
            f"{peak(row) / row['eager']['allocated']:.2f}",
            f"{ratio:.4f}",
            mib(row["aten"]),
            mib(row["not_compressed"]["arena_size"] + row["results"]),
            f"{plan['plan_s'] / plan['ops'] * 1e3:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "The same by order of ops, MiB planned, and the seconds that scheduling takes:",
        "",
        "| model | program order | SpeedFirst | MemoryFirst | ÷ program order | ÷ eager | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        least = peak(row, "MemoryFirst")
        cells = [row["model"], *(mib(peak(row, order)) for order in ORDERS)]
        cells += [f"{least / peak(row, 'Disable'):.2f}"]
        cells += [f"{least / row['eager']['allocated']:.2f}"]
        cells += [f"{row['orders']['MemoryFirst']['schedule_s']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_doc(path: Path, text: str, found: dict[str, Any]) -> None:
    """Put the tables between the marks of the document."""
    versions = f"torch {found['versions']['torch']}"
    head = f"{found['processor']}, {found['cores']} cores; {versions}; {found['date']}.\n\n"
    old = path.read_text()
    marked = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not marked.search(old):
        raise SystemExit(f"{path} has no lines {BEGIN} and {END}")
    path.write_text(marked.sub(lambda _: f"{BEGIN}\n\n{head}{text}\n\n{END}", old))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory")
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--json", type=Path, help="add what was measured to this file")
    parser.add_argument("--doc", type=Path, help="put the tables into this document")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    args = parser.parse_args(argv)
    names = args.models.split(",")
    for name in names:
        if name not in MODELS:
            parser.error(f"no model {name!r}; there are {', '.join(MODELS)}")
    found = machine.describe()
    rows: dict[str, dict[str, Any]] = {}
    if args.json and args.json.exists() and not args.quick:  # a run may be in parts
        rows = {row["model"]: row for row in json.loads(args.json.read_text())["rows"]}
    for number, name in enumerate(names, 1):
        start = time.perf_counter()
        rows[name] = measure(name, args.quick)
        note(f"[{number}/{len(names)}] {name}: {time.perf_counter() - start:.0f} s")
        if args.json:
            ordered = [rows[model] for model in MODELS if model in rows]
            result = {"machine": found, "quick": args.quick, "rows": ordered}
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    text = table([rows[model] for model in MODELS if model in rows])
    print(text)
    if args.doc:
        write_doc(args.doc, text, found)
    return 0
