"""Runs the measurements of an item, each in a fresh process, and gathers what they answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.neighbour import Neighbour

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE_VARIABLES = ("GFLOW_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@dataclass
class Plan:
    """What to measure, and how often."""

    peers: list[str]
    rounds: int
    quick: bool = False
    first_call: bool = True
    memory: bool = True
    busy: bool = False
    threads: int | None = None
    timeout: float = 1800.0


class ChildError(Exception):
    """A measurement's process failed; the message holds the end of its errors."""


@contextmanager
def empty_caches() -> Iterator[dict[str, str]]:
    """Environment variables that point every compiler's cache at an empty folder."""
    with tempfile.TemporaryDirectory(prefix="gflow-bench-", ignore_cleanup_errors=True) as folder:
        yield {name: str(Path(folder, name.lower())) for name in CACHE_VARIABLES}


def ask(
    request: dict[str, Any],
    environment: dict[str, str],
    timeout: float,
    module: str = "benchmarks.child",
) -> dict[str, Any]:
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, json.dumps(request)],
            env={**inherited, **environment, "PYTHONPATH": path},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ChildError(f"no answer within {timeout:.0f} s") from None
    if done.returncode:
        said = [line for line in done.stderr.strip().splitlines() if line.strip()]
        reason = f"signal {-done.returncode}" if done.returncode < 0 else "error"
        raise ChildError(f"{reason}: {said[-1] if said else 'nothing on stderr'}")
    return json.loads(done.stdout.strip().splitlines()[-1])


#: what makes a step, and how many steps a sample has, by peer
Steps = Mapping[str, tuple[Callable[[], object], int]]


def in_turns(peers: Steps, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a step, by peer: one sample of each in every round, another one first each time."""
    samples: dict[str, list[float]] = {peer: [] for peer in peers}
    for first in range(rounds):
        _one_round(peers, first, samples)
    return samples


def in_turns_beside(
    peers: Steps, rounds: int, beside: Neighbour
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """As `in_turns`, with two samples of each in every round: alone, and beside the busy neighbour."""
    quiet: dict[str, list[float]] = {peer: [] for peer in peers}
    busy: dict[str, list[float]] = {peer: [] for peer in peers}
    for first in range(rounds):
        _one_round(peers, first, quiet)
        with beside.busy():
            _one_round(peers, first, busy)
    return quiet, busy


def _one_round(peers: Steps, first: int, samples: dict[str, list[float]]) -> None:
    order = list(peers)
    first %= len(order)
    for peer in order[first:] + order[:first]:
        step, repeats = peers[peer]
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        samples[peer].append((time.perf_counter() - start) / repeats * 1e3)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(item: str, plan: Plan) -> dict[str, Any]:
    """One row: for each peer its numbers; failures stand in `errors`."""
    row: dict[str, Any] = {"item": item, "peers": {peer: {} for peer in plan.peers}, "errors": {}}
    base = {"item": item, "quick": plan.quick, "rounds": plan.rounds, "threads": plan.threads}
    base["busy"] = plan.busy

    def attempt(mode: str, peers: list[str], environment: dict[str, str]) -> dict[str, Any]:
        note(f"  {item}: {mode} {', '.join(peers)}")
        try:
            return ask({**base, "mode": mode, "peers": peers}, environment, plan.timeout)
        except ChildError as error:
            for peer in peers:
                row["errors"].setdefault(peer, f"{mode}: {error}")
            return {}

    with empty_caches() as environment:
        for peer in plan.peers:
            found = row["peers"][peer]
            if plan.first_call:
                attempt("libraries", [peer], environment)
            if plan.first_call and peer != "eager":
                for state in ("cold", "warm"):
                    answer = attempt("first_call", [peer], environment)
                    found[f"first_call_{state}_s"] = answer.get("seconds")
            elif plan.first_call:
                found["first_call_cold_s"] = attempt("first_call", [peer], environment).get(
                    "seconds"
                )
            if plan.memory:
                answer = attempt("memory", [peer], environment)
                found["peak_first_mib"] = answer.get("first_mib")
                found["peak_steady_mib"] = answer.get("steady_mib")
        answer = attempt("steps", plan.peers, environment)
    for peer, milliseconds in answer.get("step_ms", {}).items():
        row["peers"][peer]["step_ms"] = milliseconds
        row["peers"][peer]["step_best_ms"] = answer["best_ms"][peer]
        row["peers"][peer]["samples_ms"] = answer["samples_ms"][peer]
        row["peers"][peer]["differences_to_eager"] = answer["difference"].get(peer)
    for peer, milliseconds in answer.get("busy_ms", {}).items():
        row["peers"][peer]["busy_ms"] = milliseconds
        row["peers"][peer]["busy_samples_ms"] = answer["busy_samples_ms"][peer]
    row["load"] = answer.get("load")
    row["errors"].update(answer.get("errors", {}))
    add_ratios(row)
    return row


def add_ratios(row: dict[str, Any]) -> None:
    """Each peer's step, quiet and beside a busy neighbour, peak memory and cold first call over those of the others."""
    for key, name in (
        ("step_ms", "step"),
        ("busy_ms", "busy"),
        ("peak_steady_mib", "memory"),
        ("first_call_cold_s", "first_call"),
    ):
        values = {peer: found.get(key) for peer, found in row["peers"].items()}
        for peer, value in values.items():
            row["peers"][peer][f"{name}_ratio_to"] = {
                other: round(value / theirs, 4)
                for other, theirs in values.items()
                if other != peer and value and theirs
            }
