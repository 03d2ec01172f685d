"""compute-sanitizer over the kernels of the numerics check, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import Row
from benchmarks.gpu.setting import Setting
from benchmarks.harness.measure import ROOT

TOOLS = ("memcheck", "racecheck")
#: families that between them have every kind of kernel; tools are some hundred times slower
FAMILIES = (
    "softmax float32", "layer norm float16", "column reductions", "matmul bfloat16", "linear with",
    "convolution bfloat16", "attention, causal bf", "embedding float32", "cross entropy float32",
    "sort and top-k float32",
)  # fmt: skip
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")
_RACES = re.compile(r"RACECHECK SUMMARY: (\d+) hazard")


def run(setting: Setting, tool: str, seconds: float) -> Row:
    """What a tool finds within a time; `ok` is None without the program."""
    program = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if program is None or setting.stand_in:
        reason = "compute-sanitizer is not installed" if program is None else "no GPU"
        return {"ok": None, "error": f"not run: {reason}"}
    command = [program, "--tool", tool, "--target-processes", "all", sys.executable, "-m", "benchmarks", "gpu",
               "--sections", "numerics", "--small", "--in-process", "--minutes", f"{seconds / 60:.2f}",
               "--json"]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as said:
        command.append(str(Path(folder, "found.json")))
        for family in FAMILIES:
            command += ["--only", family]
        with suppress(subprocess.TimeoutExpired):  # what it has said until then is read
            subprocess.run(
                command,
                cwd=ROOT,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=seconds + 20,
                check=False,
            )
        said.seek(0)
        return read(tool, said.read())


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
