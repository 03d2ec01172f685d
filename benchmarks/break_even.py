"""After how many training steps a compiler has paid for its first call: `python -m benchmarks break_even`.

    python -m benchmarks break_even [--rounds 15] [--peers compile,gflow] [--quick] [--json FILE]

The model is a character-level GPT-2 of the `transformers` library, trained by AdamW. Each first call runs in a process
of its own: *cold* with empty caches, *warm* with those that the cold one left. Then all peers take steps in one
process, in turn. Break-even is the first step at whose end a peer's training, first call included, has taken no longer
than eager's.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.measure import ask, empty_caches, note
from benchmarks.harness.report import number, table
from benchmarks.workloads.language_models import CHARACTERS, MODELS

CHILD = "benchmarks.transformers"
HEAD = (
    "model",
    "peer",
    "first cold s",
    "first warm s",
    "step ms",
    "/ eager",
    "break-even cold",
    "warm",
)


def break_even(first: float, step: float, eager_first: float, eager_step: float) -> int | None:
    """Steps, the first one included, after which a peer is level with eager; None if it never is.

    Args:
        first, eager_first: seconds of the first call, which takes the first step.
        step, eager_step: seconds of each later step.
    """
    behind = first - eager_first
    if behind <= 0:
        return 1
    if step >= eager_step:
        return None
    return 1 + math.ceil(behind / (eager_step - step))


def measure(peers: list[str], rounds: int, quick: bool, timeout: float) -> dict[str, Any]:
    """Seconds of first calls and steps, by peer; eager is among them."""
    base = {"item": CHARACTERS, "training": True, "quick": quick, "rounds": rounds}
    found: dict[str, Any] = {"cold_s": {}, "warm_s": {}}
    peers = ["eager", *(peer for peer in peers if peer != "eager")]
    with empty_caches() as environment:
        for peer in peers:
            for state in ("cold", "warm"):
                note(f"  {peer}: first call, {state}")
                request = {**base, "mode": "first_call", "peers": [peer]}
                answer = ask(request, environment, timeout, CHILD)
                found[f"{state}_s"][peer] = answer["seconds"]
        note(f"  {', '.join(peers)}: steps")
        answer = ask({**base, "mode": "steps", "peers": peers}, environment, timeout, CHILD)
    found.update(ms=answer["ms"], samples_ms=answer["samples_ms"], load=answer["load"])
    found["difference"] = answer["difference"]
    # Eager compiles nothing; its second process finds the libraries' files in memory.
    eager_first, eager_step = found["warm_s"]["eager"], answer["ms"]["eager"] / 1e3
    for state in ("cold", "warm"):
        found[f"break_even_{state}"] = {
            peer: break_even(
                found[f"{state}_s"][peer], answer["ms"][peer] / 1e3, eager_first, eager_step
            )
            for peer in peers[1:]
        }
    return found


def cells(found: dict[str, Any], peer: str) -> tuple[str, ...]:
    def steps(state: str) -> str:
        if peer == "eager":
            return "-"
        return str(found[f"break_even_{state}"][peer] or "never")

    ms = found["ms"]
    return (
        CHARACTERS, peer,
        number(found["cold_s"][peer], 2), number(found["warm_s"][peer], 2),
        number(ms[peer], 1), number(ms[peer] / ms["eager"], 2), steps("cold"), steps("warm"),
    )  # fmt: skip


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks break_even",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", default="compile,gflow")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a tiny model: does it run?")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one process")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    found = measure(args.peers.split(","), args.rounds, args.quick, args.timeout)
    result = {"machine": machine.describe(), "quick": args.quick, **found}
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(MODELS[CHARACTERS].description)
    print(table(HEAD, [cells(found, peer) for peer in found["ms"]]))
    return 0
