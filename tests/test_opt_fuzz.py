"""gflow-opt survives mutated input: no traceback, no crash, no hang, and always a message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent / "fuzz_opt.py"


def _fuzz(seconds: float, seed: int, tmp_path: Path) -> None:
    case = tmp_path / "case.mlir"
    command = [sys.executable, str(FUZZ), str(seconds), str(seed), str(case)]
    done = subprocess.run(
        command, text=True, capture_output=True, check=False, timeout=seconds + 120
    )
    flags = case.with_suffix(".flags").read_text() if case.exists() else ""
    data = case.read_bytes() if case.exists() else b""
    what = (
        f"status {done.returncode} on flags '{flags}' and input:\n{data!r}\n{done.stderr[-2000:]}"
    )
    assert done.returncode == 0, done.stdout + what
    assert int(done.stdout.split()[-1]) > 0


def test_short_fuzz(tmp_path: Path) -> None:
    _fuzz(8, 1, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2, 6))
def test_long_fuzz(tmp_path: Path, seed: int) -> None:
    _fuzz(60, seed, tmp_path)
