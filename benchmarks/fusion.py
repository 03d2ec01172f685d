"""What fusion saves: kernels, bytes moved and step time, with its parts on and off.

    python -m benchmarks fusion [--models NAME,…] [--rounds 15] [--json FILE]

Bytes are those of `gflow.compiler.ir.cost`: each kernel loads its operands and stores its results once.
"before" is the simplified program in front of `gflow-fuse`, one kernel an op. Times are medians, the
variants measured in turn.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.measure import note
from benchmarks.harness.report import table
from benchmarks.workloads.items import ITEMS, loss_of, make_work

#: name → switches of the graph's config, and the options of gflow-fuse
VARIANTS: dict[str, dict[str, bool]] = {
    "default": {},
    "no epilogues": {"epilogues": False},
    "one update kernel": {"multi_tensor_update": True},
    "no fusion": {"fusion": False},
}


HEAD = ("model", "variant", "kernels", "launches", "MB moved", "of before", "ms")


@dataclass(frozen=True)
class Work:
    kernels: int
    bytes: int
    launches: int


def measure_text(text: str) -> Work:
    """Kernels and bytes of a module; `launches` counts what runs side by side as one."""
    from gflow.compiler.ir.cost import cost_of
    from gflow.dialects.dialect import make_context
    from gflow.dialects.mlir import ir

    with make_context():
        module = ir.Module.parse(text)
        block = module.body.operations[0].operation.regions[0].blocks[0]
        ops = [op.operation for op in block.operations]
        costs = [cost_of(op) for op in ops]
        groups = {
            str(op.attributes["gflow.launch"]) for op in ops if "gflow.launch" in op.attributes
        }
        alone = sum(
            c.bytes > 0 and "gflow.launch" not in op.attributes
            for op, c in zip(ops, costs, strict=True)
        )
    kernels = sum(c.bytes > 0 for c in costs)
    return Work(kernels, sum(c.bytes for c in costs), alone + len(groups))


def pipeline(variant: dict[str, bool]) -> str | None:
    from gflow.compiler.driver.pipelines import DEFAULT_PIPELINES

    text = DEFAULT_PIPELINES["cpu"]
    if variant.get("epilogues") is False:
        return text.replace("gflow-fuse", "gflow-fuse{epilogues=false}")
    if variant.get("fusion") is False:
        return text.replace("gflow-fuse", "gflow-fuse{epilogues=false max-ops=1 recompute-cost=-1}")
    return None


def graph_of(name: str, variant: dict[str, bool]) -> tuple[Any, tuple[Any, ...]]:
    """A graph that takes the item's training step, and its inputs."""
    import gflow
    from gflow.compiler import CompileOptions

    work = make_work(name)

    class Step(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.module = work.module
            self.add_optimizer(work.optimizer)
            self.config.compile_options = CompileOptions(pipeline=pipeline(variant))
            if variant.get("multi_tensor_update"):
                self.config.enable_multi_tensor_update(True)

        def build(self, *inputs: Any) -> Any:
            loss = loss_of(self.module(*inputs[:-1]), inputs[-1])
            loss.backward()
            return loss

    return Step(), work.inputs


def measure(name: str, rounds: int) -> dict[str, Any]:
    graphs = {}
    for variant, switches in VARIANTS.items():
        graph, inputs = graph_of(name, switches)
        graph(*inputs)
        graph(*inputs)
        graphs[variant] = (graph, inputs)
    seconds: dict[str, list[float]] = {variant: [] for variant in graphs}
    for _ in range(rounds):
        for variant, (graph, inputs) in graphs.items():
            start = time.perf_counter()
            graph(*inputs)
            seconds[variant].append(time.perf_counter() - start)
    base = measure_text(graphs["default"][0].ir("simplified", generic=True))
    rows: dict[str, Any] = {"before": {"kernels": base.kernels, "bytes": base.bytes}}
    for variant, (graph, _) in graphs.items():
        work = measure_text(graph.ir(generic=True))
        rows[variant] = {
            "kernels": work.kernels,
            "launches": work.launches,
            "bytes": work.bytes,
            "bytes_ratio": work.bytes / base.bytes,
            "ms": 1e3 * median(seconds[variant]),
        }
    return rows


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fusion", description=__doc__)
    training = [i.name for i in ITEMS.values() if i.kind == "training"]
    parser.add_argument("--models", default=",".join(training))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    result: dict[str, Any] = {"machine": machine.describe(), "rows": {}}
    lines: list[tuple[str, ...]] = []
    for name in args.models.split(","):
        note(f"{name}")
        rows = result["rows"][name] = measure(name, args.rounds)
        for variant, row in rows.items():
            lines.append(
                (
                    name,
                    variant,
                    str(row["kernels"]),
                    str(row.get("launches", row["kernels"])),
                    f"{row['bytes'] / 1e6:.0f}",
                    f"{row['bytes_ratio']:.2f}" if "bytes_ratio" in row else "1.00",
                    f"{row['ms']:.1f}" if "ms" in row else "",
                )
            )
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(HEAD, lines))
    return 0
