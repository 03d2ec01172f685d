"""Data parallelism in graphs: steps around a data-parallel module beside eager DDP, in Gloo processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import data_parallel_ranks
import pytest
import torch

import gflow as flow

needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs Gloo",
)
pytestmark = needs_gloo


def run(
    tmp_path: Path, world: int, checks: list[str], program: ModuleType = data_parallel_ranks
) -> None:
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


def test_two_ranks(tmp_path: Path) -> None:
    run(tmp_path, 2, list(data_parallel_ranks.CHECKS))


def test_four_ranks(tmp_path: Path) -> None:
    run(tmp_path, 4, ["amp_and_scaler"])
