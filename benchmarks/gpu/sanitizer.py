"""compute-sanitizer over the kernels of the numerics check, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from typing import Any

from benchmarks.gpu.setting import Setting
from benchmarks.measure import ROOT

TOOLS = ("memcheck", "racecheck")
#: families that between them have every kind of kernel; tools are some hundred times slower
FAMILIES = "softmax float32,layer norm float16,column reductions,matmul bfloat16,linear with,convolution bfloat16,attention, causal bf,embedding float32,cross entropy float32,sort and top-k float32"  # noqa: E501
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")
_RACES = re.compile(r"RACECHECK SUMMARY: (\d+) hazard")


def run(setting: Setting) -> list[dict[str, Any]]:
    """A row for each tool; none without the program."""
    program = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if program is None or setting.stand_in:
        reason = "compute-sanitizer is not installed" if program is None else "no GPU"
        return [{"name": tool, "ok": None, "error": f"not run: {reason}"} for tool in TOOLS]
    rows = []
    for tool in TOOLS:
        if setting.wants(f"sanitizer {tool}"):
            rows.append({"name": tool, **_run(program, tool, setting.deadline - time.monotonic())})
    return rows


def _run(program: str, tool: str, seconds: float) -> dict[str, Any]:
    command = [program, "--tool", tool, "--target-processes", "all", sys.executable, "-m", "benchmarks", "gpu",
               "--sections", "numerics", "--small", "--only", FAMILIES, "--minutes", f"{seconds / 60:.2f}"]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=max(seconds, 30), check=False
        )
    except subprocess.TimeoutExpired:
        return {"ok": None, "error": "not done in time"}
    return read(tool, done.stdout + done.stderr)


def read(tool: str, text: str) -> dict[str, Any]:
    """What a tool found, from what it printed."""
    counts = (_RACES if tool == "racecheck" else _SUMMARY).findall(text)
    if not counts:
        lines = [line for line in text.splitlines() if line.strip()]
        return {
            "ok": None,
            "error": f"no summary: {lines[-1][:200] if lines else 'nothing printed'}",
        }
    errors = sum(map(int, counts))
    first = next(
        (line for line in text.splitlines() if line.startswith("========= ") and "rror" in line), ""
    )
    return {"ok": errors == 0, "errors": errors, **({"error": first[:300]} if errors else {})}
