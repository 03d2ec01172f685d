"""How the time of the first call grows with the depth of a decoder.

    python -m benchmarks scaling [--depths 6,24,96] [--repeats 3] [--json FILE]

The decoder is narrow (width 64, 2x32 tokens, vocabulary 512), so that memory and the step itself
stay small beside compilation. Every reading is a fresh process with empty caches. The exponent e
is that of `seconds ~ ops^e`, by least squares on the logarithms; `last` is the one between the two
deepest, where fixed costs count least.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.measure import ChildError, ask, empty_caches, note
from benchmarks.harness.peers import PEERS
from benchmarks.harness.report import number, table


def exponent(sizes: list[float], seconds: list[float]) -> float:
    xs, ys = [math.log(size) for size in sizes], [math.log(value) for value in seconds]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys)) / sum((x - x0) ** 2 for x in xs)


def read(peer: str, depth: int, repeats: int, timeout: float) -> dict[str, Any]:
    """The median of several first calls, phase by phase."""
    answers = []
    for _ in range(repeats):
        with empty_caches() as environment:
            note(f"  scaling: {peer}, {depth} layers")
            request = {"mode": "scaling", "peers": [peer], "depth": depth}
            answers.append(ask(request, environment, timeout))
    phases = {
        name: median(answer["phases"][name] for answer in answers) for name in answers[0]["phases"]
    }
    return {
        "peer": peer,
        "depth": depth,
        "ops": answers[0]["ops"],
        "seconds": median(answer["seconds"] for answer in answers),
        "phases": phases,
    }


def exponents(points: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """For the whole and for each phase: over all depths, and between the last two."""
    sizes = [float(point["ops"] or point["depth"]) for point in points]
    series = {"total": [point["seconds"] for point in points]}
    for name in points[0]["phases"]:
        series[name] = [point["phases"].get(name, 0.0) for point in points]
    return {
        name: {
            "fit": exponent(sizes, seconds),
            "last": exponent(sizes[-2:], seconds[-2:]),
        }
        for name, seconds in series.items()
        if min(seconds) > 0
    }


def show(points: list[dict[str, Any]], found: dict[str, dict[str, float]]) -> str:
    phases = ["total", *points[0]["phases"]]
    head = ("phase", "", *(f"{point['depth']} layers" for point in points), "exponent", "last")
    rows = [("ops", "", *(str(point["ops"] or "-") for point in points), "", "")]
    for name in phases:
        seconds = [
            point["seconds"] if name == "total" else point["phases"].get(name) for point in points
        ]
        fitted = found.get(name, {})
        rows.append(
            (
                name,
                "s",
                *(number(value, 3) for value in seconds),
                number(fitted.get("fit"), 2),
                number(fitted.get("last"), 2),
            )
        )
    return f"{points[0]['peer']}: first call, cold\n" + table(head, rows)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling")
    parser.add_argument("--depths", default="6,24,96", help="layers, separated by commas")
    parser.add_argument("--peers", default="gflow", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one reading")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    depths = [int(depth) for depth in args.depths.split(",")]
    if len(depths) < 2:
        parser.error("an exponent needs at least two depths")
    result: dict[str, Any] = {"machine": machine.describe(), "peers": {}}
    for peer in args.peers.split(","):
        try:
            points = [read(peer, depth, args.repeats, args.timeout) for depth in depths]
        except ChildError as error:
            print(f"{peer}: {error}")
            return 1
        found = exponents(points)
        result["peers"][peer] = {"points": points, "exponents": found}
        print(show(points, found), flush=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0
