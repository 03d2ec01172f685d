"""What the kernels of whole training steps need of a GPU, without one: each is compiled to machine code.

    python -m benchmarks cubins [--models gpt2,llama] [--targets cuda:80,hip:gfx942] [--json FILE] [--kernels]
    python -m benchmarks cubins --targets cuda:90 --check       # compare with what is recorded
    python -m benchmarks cubins --targets cuda:90 --write       # record again

For each kernel: registers, bytes that spill, shared memory, warps, matrix instructions; and, of NVIDIA's, how it moves
memory: the width of its accesses (bytes of a thread), the share of bytes that move 16 at a time, what a
multiprocessor's threads have asked for when they first wait, accesses of shared memory; and, by the model of loops
(`gflow.compiler.reports.sass`), blocks of a multiprocessor, waves of the largest launch, and of its main loop cycles
of an iteration, these over what tensor cores need of them, and the pipe that needs longest. For each model and
target: how many kernels, and the seconds of a first call's phases, with empty caches (cold) and with full ones
(warm). Kernels are compiled by as many processes as there are cores.

`benchmarks/results/cubins.json` has the recorded rows; `--write` adds the version of Triton that they are valid for.
`--check` compares kernel by kernel. Both compile only kernels whose text or configurations are not recorded; to measure
all of a model anew (for another model of loops), remove its entry.
`tests/test_cubins.py` does the same for two models in each run, and for all in the sweep.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
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
from gflow.compiler import CompileOptions
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
#: how much longer than recorded an iteration of a main loop may take; additional registers that a thread may have,
#: which are allocated by eights
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
    """The program of a training step for each target, and its seconds by phase. If `timed`, its kernels are compiled;
    otherwise there are no seconds and no machine code yet."""
    from gflow.execution.device import add_code
    from gflow.execution.executor import program_of

    graph, inputs = model.graph(), model.inputs()
    start = time.perf_counter()
    trace = trace_of(graph, inputs)
    traced = time.perf_counter() - start
    for target in targets:
        if not timed:
            options = replace(graph.config.resolved(), target=target, timing={})
            yield program_of(trace, options), {}
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


def _compile(program: Any) -> None:
    """Add machine code, from the disk cache where it is there."""
    from gflow.execution.device import add_code

    add_code(program, CompileOptions(target=program.target), always=True)


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
                "stages": kernel.configs[config].num_stages,
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
    """The recorded entry of a model; None without one, or if it is of another version of Triton."""
    found = json.loads(RESULTS.read_text())["models"]
    key = model, target, triton_version()
    same = (m for m in found if (m["model"], m["target"], m.get("triton")) == key)
    return next(same, None)


def changed(program: Any, known: Mapping[str, Any]) -> list[str]:
    """What has become worse of a program since its kernels were recorded.

    Recorded kernels are removed from the program, and the others are compiled.
    """
    steps = _launches(program)
    used = {s.kernel for s in steps}
    rows = _rows_without(program, {row["kernel"] for row in known["kernels"]})
    gone = [row for row in known["kernels"] if row["kernel"] not in used]
    found = [*problems(rows), *worse(rows, gone)]
    for what, now in (("launches", len(steps)), ("arena", program.arena_bytes)):
        if now > known[what]:
            found.append(f"{what}: {now:,}, {known[what]:,} before")
    return found


def _launches(program: Any) -> list[Any]:
    from gflow.dialects.program import LaunchStep

    return [s for s in program.steps if isinstance(s, LaunchStep)]


def _rows_without(program: Any, recorded_names: Set[str]) -> list[Row]:
    """The rows of kernels that are not recorded; the others are removed from the program.

    A kernel's name has a digest of its text, of what Triton knows of its arguments, and of its configurations, so a
    recorded name with the same version of Triton is the same machine code.
    """
    program.steps = [s for s in _launches(program) if s.kernel not in recorded_names]
    new = {s.kernel for s in program.steps}
    program.triton = {name: kernel for name, kernel in program.triton.items() if name in new}
    _compile(program)
    return rows_of(program)


def renewed(program: Any, known: Mapping[str, Any]) -> list[Row]:
    """The rows of a program of which some kernels are recorded; these are not compiled again."""
    counts = Counter(s.kernel for s in _launches(program))
    named = Counter(row["kernel"] for row in known["kernels"])
    kept = [
        {**row, "launches": counts[row["kernel"]]}
        for row in known["kernels"]
        if row["kernel"] in counts and named[row["kernel"]] == 1
    ]
    rows = kept + _rows_without(program, {row["kernel"] for row in kept})
    order = list(counts)
    return sorted(rows, key=lambda row: order.index(row["kernel"]))


def worse(rows: Sequence[Row], known: Sequence[Row]) -> list[str]:
    """What has become worse of kernels. rows, known: new kernels, and recorded ones that are no longer launched.

    A kernel is compared with one of the same ops, in the order of launches; with none of the same ops, it is reported,
    so that it gets recorded. Compared are spilled bytes, registers, shared memory (of the same tile), bytes in accesses
    of two bytes or one, and cycles of an iteration of the main loop; of another tile, for each element.
    """
    left: dict[str, list[Row]] = {}
    for row in known:
        left.setdefault(_stem(row), []).append(row)
    problems = []
    for row in rows:
        of_stem = left.get(_stem(row), [])
        if of_stem:
            problems += _worse(row, of_stem.pop(0))
        else:
            problems.append(f"{row['kernel']} is not in {RESULTS.name}: --write records it")
    return problems


def _stem(row: Row) -> str:
    """A kernel's name without the digest."""
    stem: str = row["kernel"].rpartition("_")[0]
    return stem


def _worse(row: Row, before: Row) -> list[str]:
    limits = {
        "spilled bytes": ("spills", 0),
        "registers": ("registers", _REGISTERS),
        "bytes in narrow accesses": ("narrow", 0),
    }
    if row["config"] == before["config"]:
        limits["bytes of shared memory"] = ("shared", 0)
    found = [
        f"{row['kernel']}: {row[name]} {what}, {before[name]} before"
        for what, (name, more) in limits.items()
        if row.get(name, 0) > before.get(name, 0) + more
    ]
    if "cycles" in row and "cycles" in before:
        now, then = (r["cycles"] / _block(r) for r in (row, before))
        if now > _LONGER * then:
            more = f"{row['cycles']} cycles of {row['config']}, {before['cycles']} of {before['config']} before"
            found.append(f"{row['kernel']}: {more}")
    return found


def _block(row: Row) -> int:
    """Elements, or products, of an iteration."""
    blocks = ("BLOCK", "BLOCK_M", "BLOCK_K", "ROWS", "COLS")
    config = row["config"]
    columns = config.get("BLOCK_N", 1) + config.get("REST", 0)
    return columns * prod(n for name, n in config.items() if name in blocks)


def measure(model: Model, targets: tuple[str, ...], timed: bool = True) -> Iterator[dict[str, Any]]:
    """What `programs` gives, as plain data, for one target after the other."""
    from gflow.dialects.program import AtenStep

    for program, seconds in programs(model, targets, timed):
        arena, aten = program.arena_bytes, [s for s in program.steps if isinstance(s, AtenStep)]
        known = None if timed else recorded(model.name, program.target)
        if not timed and known is None:
            _compile(program)
        rows = rows_of(program) if known is None else renewed(program, known)
        yield {
            "model": model.name,
            "target": program.target,
            "seconds": {name: round(value, 2) for name, value in seconds.items()},
            "launches": sum(row["launches"] for row in rows),
            "through PyTorch": dict(Counter(s.overload for s in aten)),
            "arena": arena,
            "kernels": rows,
        }


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


def check(model: Model, targets: tuple[str, ...]) -> list[str]:
    """What has become worse of a model since it was recorded."""
    found = []
    for program, _ in programs(model, targets, timed=False):
        known = recorded(model.name, program.target)
        missing = [f"nothing is recorded of it with Triton {triton_version()}"]
        problems = missing if known is None else changed(program, known)
        found += [f"{model.name}, {program.target}: {p}" for p in problems]
    return found


def _write(r: dict[str, Any]) -> None:
    """Replace the entry of a model and target, but not their seconds, which another kind of run has measured."""
    file = json.loads(RESULTS.read_text())
    before = {(m["model"], m["target"]): m for m in file["models"]}
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
    if args.check:
        found = [p for name in names for p in check(MODELS[name], targets)]
        print("\n".join(found))
        return 1 if found else 0
    result: dict[str, Any] = {"machine": machine.describe(), "models": []}
    for name in names:
        note(f"  cubins: {MODELS[name].description}")
        for row in measure(MODELS[name], targets, not args.write):
            result["models"].append(row)
            if args.json:  # after each target: a long run that is stopped keeps what it has
                args.json.write_text(text_of(result))
            if args.write:
                _write(row)
    if args.kernels:
        print("\n\n".join(map(kernels, result["models"])), end="\n\n")
    print(table(_HEAD, list(map(totals, result["models"]))))
    found = [
        f"{r['model']}, {r['target']}: {p}"
        for r in result["models"]
        for p in problems(r["kernels"])
    ]
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
