"""What the kernels of whole training steps need of a GPU, without one: each is compiled to machine code.

    python -m benchmarks cubins [--models gpt2,llama] [--targets cuda:80,hip:gfx942] [--json FILE] [--kernels]
    python -m benchmarks cubins --targets cuda:90 --check       # beside what was written down
    python -m benchmarks cubins --targets cuda:90 --write       # writes it down anew

For each kernel: registers, bytes that spill, shared memory, warps, matrix instructions; and, of NVIDIA's, how it moves
memory: the width of its accesses (bytes of a thread), the share of bytes that move 16 at a time, what a
multiprocessor's threads have asked for when they first wait, accesses of shared memory; and, by the model of loops
(`gflow.compiler.reports.sass`), blocks of a multiprocessor, waves of the largest launch, and of its main loop cycles
of an iteration, these over what tensor cores need of them, and the pipe that needs longest. For each model and
target: how many kernels, and the seconds of a first call's phases, with empty caches (cold) and with full ones
(warm). Kernels are compiled by as many processes as there are cores.

`benchmarks/results/cubins.json` has what was written down; `--write` adds the version of Triton that it holds for.
`worse` says what has become
worse since, kernel by kernel; `tests/test_cubins.py` asks it of some kernels in continuous integration, and of all in
the sweep.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.measure import note
from benchmarks.harness.report import number, table
from benchmarks.kernels.machine_code import Traffic, traffic_of
from benchmarks.workloads.cuda_steps import MODELS, Model, trace_of
from gflow.compiler.emit.triton.toolchain.compile import triton_version
from gflow.compiler.reports.sass.kernel import kernel_time, resident
from gflow.compiler.targets import Device, parse_target
from gflow.dialects.program import DeviceCode

TARGETS = ("cuda:80", "cuda:90")

Row = dict[str, Any]

#: kernels that may spill, by their names without the last part, and why (from their machine code)
SPILLS = {"attention_key_grad": "8 bytes around the inner loop of 8.0, not in it"}

_HALVES = ("*fp16", "*bf16")

RESULTS = Path(__file__).parent.parent / "results" / "cubins.json"
#: how much longer an iteration of a main loop may take than what was written down; registers more that a thread may
#: have, which are handed out by eights
_LONGER, _REGISTERS = 1.02, 8


@contextmanager
def _cache() -> Iterator[None]:
    """An empty disk cache."""
    names = ("GFLOW_CACHE", "GFLOW_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(GFLOW_CACHE="1", GFLOW_CACHE_DIR=folder)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def programs(
    model: Model, targets: tuple[str, ...], timed: bool = True
) -> Iterator[tuple[Any, dict[str, float]]]:
    """The program of a training step with machine code, for each target, and its seconds by phase. Without `timed`
    there are none, and kernels in the disk cache are taken from there."""
    from gflow.execution.device import add_code
    from gflow.execution.executor import program_of

    graph, inputs = model.graph(), model.inputs()
    start = time.perf_counter()
    trace = trace_of(graph, inputs)
    traced = time.perf_counter() - start
    for target in targets:
        if not timed:
            options = replace(graph.config.resolved(), target=target, timing={})
            program = program_of(trace, options)
            add_code(program, options, always=True)
            yield program, {}
            continue
        seconds = {"trace": traced}
        with _cache():
            for state in ("cold", "warm"):
                timing: dict[str, float] = {}
                options = replace(graph.config.resolved(), target=target, timing=timing)
                start = time.perf_counter()
                program = program_of(trace, options)
                planned = time.perf_counter()
                add_code(program, options, always=True)
                end = time.perf_counter()
                if state == "cold":
                    seconds["codegen"] = timing["codegen"]
                    seconds["lower and passes"] = planned - start - timing["codegen"]
                    seconds["compile"] = end - planned
                seconds[state] = end - start
        yield program, seconds


def rows_of(program: Any) -> list[Row]:
    """The kernels of a program with machine code."""
    from gflow.dialects.program import LaunchStep

    launches = [s for s in program.steps if isinstance(s, LaunchStep)]
    counts = Counter((s.kernel, s.config) for s in launches)
    labels = {(s.kernel, s.config): s.label for s in reversed(launches)}
    device = parse_target(program.target).device
    rows = []
    for (name, config), count in counts.items():
        kernel, code = program.triton[name], program.device_code[f"{name}/{config}"]
        halves = any(kind in _HALVES for kind in kernel.parameters.values())
        traffic = traffic_of(code) if program.target.startswith("cuda") else None
        constants = kernel.configs[config].constants
        programs = max(prod(s.grid) for s in launches if (s.kernel, s.config) == (name, config))
        rows.append(
            {
                "kernel": name,
                "launches": count,
                "config": constants,
                "registers": code.registers,
                "spills": code.spills,
                "shared": code.shared,
                "warps": code.warps,
                "instructions": list(code.instructions),
                **(
                    {"scalar spills": code.scalar_spills}
                    if traffic is None
                    else _moves(code, traffic, device) | _times(code, device, programs, constants)
                ),
                "halves": halves and "tl.dot(" in kernel.source,
                "of": labels[name, config],
            }
        )
    return rows


def _moves(code: DeviceCode, traffic: Traffic, device: Device) -> dict[str, Any]:
    """How a kernel moves memory."""
    return {
        "access": traffic.access,
        "full": round(traffic.full, 2),
        "narrow": sum(w * n for w, n in traffic.accesses.items() if w <= 2),
        "on way": traffic.on_way * device.warp * code.warps * resident(code, device),
        "on chip": traffic.on_chip,
    }


def _times(
    code: DeviceCode, device: Device, programs: int, constants: Mapping[str, int]
) -> dict[str, Any]:
    """What the model of loops says; nothing of a device that it does not know."""
    found = kernel_time(code, device, programs, constants)
    if found is None:
        return {}
    row: dict[str, Any] = {"blocks": found.blocks, "waves": round(found.waves, 2)}
    if (main := found.main) is not None:
        row |= {"cycles": round(main.cycles), "bound": main.bound}
        row |= {"of tensor": round(main.cycles / main.tensor, 2)} if main.tensor else {}
    return row


def problems(rows: Sequence[Row]) -> list[str]:
    """Kernels that spill without a reason, and products of halves without matrix instructions."""
    found = []
    for row in rows:
        if row["spills"] and row["kernel"].rpartition("_")[0] not in SPILLS:
            found.append(f"{row['kernel']} spills {row['spills']} bytes; it is of {row['of']}")
        if row["halves"] and not row["instructions"]:
            found.append(f"{row['kernel']} has no tensor-core instructions; it is of {row['of']}")
    return found


def recorded(model: str, target: str) -> dict[str, Any] | None:
    """What was written down of a model by `--write`; None where nothing was, or with another version of Triton."""
    found = json.loads(RESULTS.read_text())["models"]
    key = model, target, triton_version()
    same = (m for m in found if (m["model"], m["target"], m.get("triton")) == key)
    return next(same, None)


def worse(rows: Sequence[Row], known: Sequence[Row], *, some: bool = False) -> list[str]:
    """What has become worse of kernels. rows, known: theirs now, and as written down. some: `rows` are a part of them.

    A kernel's name has a digest of its text. Kernels whose text has changed are compared with those of the same ops, in
    the order of launches; with none of the same ops, a kernel is new. Compared are bytes that spill, registers, bytes
    of accesses of two bytes or one, and cycles of an iteration of the main loop; of another tile, for each element.
    """
    left: dict[str, list[Row]] = {}
    for row in known:
        left.setdefault(_stem(row), []).append(row)
    same, changed = [], []
    for row in rows:
        of_stem = left.get(_stem(row), [])
        found = next((k for k in of_stem if k["kernel"] == row["kernel"]), None)
        if found is None:
            changed.append(row)
        else:
            of_stem.remove(found)
            same.append((row, found))
    problems = []
    for row in changed:
        of_stem = left.get(_stem(row), [])
        if of_stem:
            same.append((row, of_stem.pop(0)))
        elif not some:
            problems.append(f"{row['kernel']} is not in {RESULTS.name}: --write writes it down")
    return problems + [p for row, before in same for p in _worse(row, before)]


def _stem(row: Row) -> str:
    """A kernel's name without the digest."""
    stem: str = row["kernel"].rpartition("_")[0]
    return stem


def _worse(row: Row, before: Row) -> list[str]:
    pairs = {
        "bytes that spill": (row["spills"], before["spills"]),
        "registers": (row["registers"], before["registers"] + _REGISTERS),
        "bytes of narrow accesses": (row["narrow"], before["narrow"]),
    }
    found = [
        f"{row['kernel']}: {now} {what}, {limit - _REGISTERS * (what == 'registers')} before"
        for what, (now, limit) in pairs.items()
        if now > limit
    ]
    if "cycles" in row and "cycles" in before:
        now, then = (r["cycles"] / _block(r) for r in (row, before))
        if now > _LONGER * then:
            more = f"{row['cycles']} cycles of {row['config']}, {before['cycles']} of {before['config']} before"
            found.append(f"{row['kernel']}: {more}")
    return found


def _block(row: Row) -> int:
    """Elements, or products, of an iteration."""
    blocks = ("BLOCK", "BLOCK_M", "BLOCK_N", "BLOCK_K", "ROWS", "COLS")
    return prod(n for name, n in row["config"].items() if name in blocks)


def measure(model: Model, targets: tuple[str, ...], timed: bool = True) -> list[dict[str, Any]]:
    """What `programs` gives, as plain data."""
    from gflow.dialects.program import AtenStep

    results = []
    for program, seconds in programs(model, targets, timed):
        rows = rows_of(program)
        results.append(
            {
                "model": model.name,
                "target": program.target,
                "seconds": {name: round(value, 2) for name, value in seconds.items()},
                "launches": sum(row["launches"] for row in rows),
                "through PyTorch": dict(
                    Counter(s.overload for s in program.steps if isinstance(s, AtenStep))
                ),
                "arena": program.arena_bytes,
                "kernels": rows,
            }
        )
    return results


_HEAD = (
    "model", "target", "kernels", "launches", "PyTorch", "tensor cores", "spilling", "most registers",
    "most shared KiB", "trace s", "passes s", "codegen s", "compile s", "cold s", "warm s",
)  # fmt: skip


def totals(result: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table."""
    rows, seconds = result["kernels"], result["seconds"]
    return (
        result["model"],
        result["target"],
        str(len(rows)),
        str(result["launches"]),
        str(sum(result["through PyTorch"].values())),
        str(sum(bool(row["instructions"]) for row in rows)),
        str(sum(row["spills"] > 0 for row in rows)),
        str(max(row["registers"] for row in rows)),
        number(max(row["shared"] for row in rows) / 1024, 0),
        *(
            number(seconds[name], 1) if seconds else "-"
            for name in ("trace", "lower and passes", "codegen", "compile", "cold", "warm")
        ),
    )


def kernels(result: dict[str, Any]) -> str:
    """The kernels of a model as a table."""
    head = (
        "kernel",
        "config",
        "launches",
        "warps",
        "registers",
        "spills",
        "shared",
        "access",
        "full %",
        "KiB on way",
        "on chip",
        "blocks",
        "waves",
        "cycles",
        "of tensor",
        "bound",
        "tensor cores",
    )
    lines = [
        (
            row["kernel"],
            " ".join(str(n) for n in row["config"].values()),
            *(str(row[name]) for name in ("launches", "warps", "registers", "spills", "shared")),
            str(row.get("access", "")),
            number(100 * row["full"], 0) if "full" in row else "",
            number(row["on way"] / 1024, 0) if "on way" in row else "",
            *(
                str(row.get(name, ""))
                for name in ("on chip", "blocks", "waves", "cycles", "of tensor", "bound")
            ),
            " ".join(row["instructions"][:2]),
        )
        for row in result["kernels"]
    ]
    return f"{result['model']}, {result['target']}\n" + table(head, lines)


def _checked(result: dict[str, Any]) -> list[str]:
    """What has become worse of a model."""
    known = recorded(result["model"], result["target"])
    if known is None:
        return [f"nothing is written down of it with Triton {triton_version()}"]
    found = worse(result["kernels"], known["kernels"])
    for what in ("launches", "arena"):
        if result[what] > known[what]:
            found.append(f"{what}: {result[what]:,}, {known[what]:,} before")
    return found


def _write(results: Sequence[dict[str, Any]]) -> None:
    """Replace what was written down of models, but for seconds, which a run of another kind has measured."""
    file = json.loads(RESULTS.read_text())
    before = {(m["model"], m["target"]): m for m in file["models"]}
    for r in results:
        key = r["model"], r["target"]
        seconds = before.get(key, {}).get("seconds", {})
        before[key] = {**r, "seconds": seconds, "triton": triton_version()}
    order = list(MODELS)
    models = sorted(before.values(), key=lambda m: (order.index(m["model"]), m["target"]))
    RESULTS.write_text(text_of({**file, "models": models}))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cubins")
    add = parser.add_argument
    add("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    add("--targets", default=",".join(TARGETS), help="cuda:80, hip:gfx942, …")
    add("--json", type=Path)
    add("--kernels", action="store_true", help="print each kernel")
    add("--check", action="store_true", help=f"compare each kernel with {RESULTS.name}")
    add("--write", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args(argv)
    names = args.models.split(",")
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"no model {unknown[0]!r}; there are {', '.join(MODELS)}")
    targets = tuple(args.targets.split(","))
    result: dict[str, Any] = {"machine": machine.describe(), "models": []}
    for name in names:
        note(f"  cubins: {MODELS[name].description}")
        result["models"] += measure(MODELS[name], targets, not (args.check or args.write))
        if args.json:  # after every model: a long run that is stopped keeps what it has
            args.json.write_text(text_of(result))
    if args.kernels:
        print("\n\n".join(map(kernels, result["models"])), end="\n\n")
    print(table(_HEAD, list(map(totals, result["models"]))))
    found = [
        f"{r['model']}, {r['target']}: {p}"
        for r in result["models"]
        for p in [*problems(r["kernels"]), *(_checked(r) if args.check else ())]
    ]
    if args.write:
        _write(result["models"])
    print("\n".join(found))
    return 1 if found else 0


def text_of(result: dict[str, Any]) -> str:
    """JSON with a kernel on a line; without where a kernel comes from, which names files of this machine."""
    parts: list[str] = []

    def placed(value: Any) -> str:
        parts.append(json.dumps({k: v for k, v in value.items() if k != "of"}))
        return f"@{len(parts) - 1}@"

    shown = {
        **result,
        "models": [
            {**m, "kernels": [placed(row) for row in m["kernels"]]} for m in result["models"]
        ],
    }
    text = json.dumps(shown, indent=1)
    for n, part in enumerate(parts):
        text = text.replace(f'"@{n}@"', part)
    return text + "\n"
