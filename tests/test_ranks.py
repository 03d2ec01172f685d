"""Graphs in a group of two ranks (Gloo): collectives are right and in order, what would be lost is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import two_ranks

import gflow as flow

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs Gloo",
)
_SLOW = ["through_dynamo"]


def run(tmp_path: Path, checks: list[str]) -> None:
    root = Path(flow.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(two_ranks.__file__))]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), *checks],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(two_ranks.WORLD)
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
    run(tmp_path, [name for name in two_ranks.CHECKS if name not in _SLOW])


@pytest.mark.slow
def test_two_ranks_through_dynamo(tmp_path: Path) -> None:
    run(tmp_path, _SLOW)
