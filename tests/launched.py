"""Programs of several ranks: processes that a test starts, and what each rank runs.

A program is a file with a table of checks. Its command line is `RANK WORLD STORE CHECK...`, and it prints as JSON what
went wrong in each check.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import gflow as flow


def run_ranks(program: ModuleType, tmp_path: Path, world: int, checks: list[str]) -> None:
    """Run checks of a program on so many ranks; all must be good on all of them."""
    root = Path(flow.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    path = str(program.__file__)
    ranks = [
        subprocess.Popen(
            [sys.executable, path, str(rank), str(world), str(tmp_path / "store"), *checks],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(world)
    ]
    try:
        outputs = [r.communicate(timeout=240) for r in ranks]
    finally:
        for r in ranks:
            r.kill()
    for n, (out, err) in enumerate(outputs):
        assert out.strip(), f"rank {n}: {err[-2000:]}"
        found = json.loads(out.strip().splitlines()[-1])
        problems = [f"{label}: {text}" for label, text in found.items() if text]
        assert not problems, f"rank {n}: {problems[0]}"
        assert list(found) == checks
