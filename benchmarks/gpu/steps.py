"""Training steps and inference of whole models, beside eager and torch.compile, in one run.

torch.compile's compilation takes most of the time. So every peer of every model is first compiled in a
process of its own, side by side, which fills the disk caches and gives first-call times; what is measured
then, in turns, comes from these caches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import torch

from benchmarks.gpu.setting import Setting, best_ratio, error_of, medians
from benchmarks.gpu.workloads import MODES, Step, make_step, models
from benchmarks.measure import ROOT

#: by the names that rows have; the last with CUDA graphs and autotuning
PEERS = ("gflow", "eager", "compile", "max-autotune")
_SIDE_BY_SIDE = 5


def run(setting: Setting) -> list[dict[str, Any]]:
    """A row for each model and mode."""
    wanted = [
        (name, mode)
        for name in models(setting)
        for mode in MODES
        if setting.wants(f"steps {name} {mode}")
    ]
    peers = ("gflow", "eager") if setting.stand_in else PEERS
    first = {} if setting.stand_in else first_calls(setting, wanted, peers)
    rows = []
    for name, mode in wanted:
        label = f"{name} {mode}"
        if not setting.wants(f"steps {label}"):
            continue
        try:
            row = measure(setting, name, mode, peers)
        except Exception as error:
            row = {"ok": False, "error": error_of(error)}
        rows.append({"name": label, **row, "first_call_s": first.get((name, mode), {})})
    return rows


def first_calls(
    setting: Setting, wanted: list[tuple[str, str]], peers: tuple[str, ...]
) -> dict[tuple[str, str], dict[str, float | str]]:
    """Seconds of each peer's first call, in processes of their own, a few side by side."""
    waiting = [(n, m, p) for n, m in wanted for p in peers if p != "eager"]
    running: list[tuple[tuple[str, str, str], subprocess.Popen[str]]] = []
    found: dict[tuple[str, str], dict[str, float | str]] = {key: {} for key in wanted}
    while waiting or running:
        while waiting and len(running) < _SIDE_BY_SIDE and time.monotonic() < setting.deadline:
            item = waiting.pop(0)
            command = [sys.executable, "-m", "benchmarks.gpu.steps", json.dumps(item)]
            process = subprocess.Popen(
                command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            running.append((item, process))
        late = time.monotonic() >= setting.deadline
        for entry in list(running):
            (name, mode, peer), process = entry
            if process.poll() is None and not late:
                continue
            running.remove(entry)
            if process.poll() is None:
                process.kill()
                found[name, mode][peer] = "not done in time"
            out, errors = process.communicate()
            if process.returncode == 0:
                found[name, mode][peer] = float(out.strip().splitlines()[-1])
            else:
                found[name, mode].setdefault(
                    peer, (errors.strip().splitlines() or ["failed"])[-1][:300]
                )
        if late and not running:
            for name, mode, peer in waiting:
                setting.left_out.append(f"first call {name} {mode} {peer}")
            break
        time.sleep(0.1)
    return found


def measure(setting: Setting, name: str, mode: str, peers: tuple[str, ...]) -> dict[str, Any]:
    """All peers in turns, each on a model of its own with the same parameters and inputs."""
    steps: dict[str, Step] = {}
    memory: dict[str, float | None] = {}
    failed: dict[str, str] = {}
    first: dict[str, float] = {}
    for peer in peers:
        try:
            step = make_step(setting, name, mode, peer)
            losses = [step() for _ in range(2)]
            with setting.peak_memory() as peak:
                losses.append(step())
            memory[peer] = peak()
            first[peer] = float(losses[0])
            steps[peer] = step
        except Exception as error:
            failed[peer] = error_of(error)
            if peer == "gflow":
                raise
    samples = setting.interleaved(steps)
    others = [p for p in steps if p.startswith(("compile", "max-"))]
    best = "max-autotune" if "max-autotune" in steps else "compile"
    distance = abs(first["gflow"] - first["eager"]) if "eager" in first else float("nan")
    return {
        "ok": distance <= 2e-2 * max(1.0, abs(first.get("eager", 0.0))),
        "ms": medians(samples),
        "peak_mib": memory,
        "ratio_to_eager": best_ratio(samples, "gflow", ["eager"]),
        "ratio_to_compile": best_ratio(samples, "gflow", others),
        "ratio_to_max_autotune": best_ratio(samples, "gflow", [best]) if others else None,
        "difference_to_eager": distance,
        "failed": failed,
    }


def _first_call(name: str, mode: str, peer: str) -> float:
    setting = Setting(torch.device("cuda"), False, time.monotonic() + 3600)
    step = make_step(setting, name, mode, peer)
    setting.sync()
    begin = time.perf_counter()
    step()
    setting.sync()
    return time.perf_counter() - begin


if __name__ == "__main__":
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    print(_first_call(*json.loads(sys.argv[1])))
