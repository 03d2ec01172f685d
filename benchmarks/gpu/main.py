"""The GPU check's command line: sections, one after the other, within a time."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.gpu import bandwidth, contractions, numerics, report, sanitizer, steps
from benchmarks.gpu.setting import Setting
from benchmarks.measure import ROOT, note

#: in the order in which they run, with their share of the time that is left when they begin
SECTIONS: dict[str, tuple[Callable[[Setting], list[dict[str, Any]]], float]] = {
    "numerics": (numerics.run, 0.35),
    "models": (numerics.models, 0.3),
    "bandwidth": (bandwidth.run, 0.3),
    "contractions": (contractions.run, 0.4),
    "steps": (steps.run, 0.85),
    "sanitizer": (sanitizer.run, 1.0),
}


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks gpu",
        description="gflow on a GPU: numerics, bandwidth, products, whole steps beside torch.compile.",
    )
    add = parser.add_argument
    add("--sections", default=",".join(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    add("--only", default="", help="rows whose names have one of these parts, separated by commas")
    add(
        "--minutes",
        type=float,
        default=8.0,
        help="nothing begins after this long; what is left out is listed",
    )
    add("--rounds", type=int, default=15, help="samples of each peer, taken in turn")
    add("--small", action="store_true", help="tiny sizes on the GPU")
    add("--stand-in", action="store_true", help="without a GPU: tiny sizes on Triton's interpreter")
    add(
        "--json", type=Path, help="the file for everything (default: benchmarks/results/gpu_….json)"
    )
    args = parser.parse_args(argv)
    for name in args.sections.split(","):
        if name not in SECTIONS:
            parser.error(f"no section {name!r}; there are {', '.join(SECTIONS)}")
    if not args.stand_in and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU; --stand-in runs this check at tiny sizes without one")
    return args


def main(argv: list[str]) -> int:
    """Exit status 1 if a result was wrong or a row failed; missed bars of speed are not errors."""
    args = parse(argv)
    if args.stand_in:
        os.environ["GFLOW_CUDA_DEVICE"] = "interpreter"
    where = torch.device("cpu" if args.stand_in else "cuda")
    end = time.monotonic() + 60 * args.minutes
    only = tuple(part.strip() for part in args.only.split(",") if part.strip())
    setting = Setting(where, args.stand_in or args.small, end, args.rounds, only)
    found: dict[str, Any] = {
        "machine": machine.describe(),
        "device": _device(where),
        "sections": {},
        "seconds": {},
        "left_out": setting.left_out,
    }
    path = args.json or _default_path(found)
    for name in args.sections.split(","):
        run, share = SECTIONS[name]
        begin = time.monotonic()
        setting.deadline = begin + share * max(0.0, end - begin)
        note(f"== {name}")
        found["sections"][name] = run(setting)
        found["seconds"][name] = round(time.monotonic() - begin, 1)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if where.type == "cuda":
            torch.cuda.empty_cache()
    text = report.text(found)
    path.with_suffix(".txt").write_text(text, encoding="utf-8")
    print(text)
    rows = [row for rows in found["sections"].values() for row in rows]
    return int(any(row["ok"] is False for row in rows))


def _device(where: torch.device) -> dict[str, Any]:
    if where.type != "cuda":
        return {"name": "Triton's interpreter"}
    properties = torch.cuda.get_device_properties(where)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
    }


def _default_path(found: dict[str, Any]) -> Path:
    name = "".join(c if c.isalnum() else "_" for c in found["device"]["name"].lower())
    return ROOT / "benchmarks" / "results" / f"gpu_{name}_{found['machine']['date'][:10]}.json"
