"""Graphs of global tensors on 2 and 4 ranks (Gloo), beside PyTorch on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import global_ranks
import pytest
import torch

import gflow as flow

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs Gloo",
)


@pytest.mark.parametrize(
    ("world", "checks"),
    [
        (2, [*global_ranks.CHECKS]),
        pytest.param(4, ["mlp", "decoder"], marks=pytest.mark.slow),
    ],
)
def test_ranks(tmp_path: Path, world: int, checks: list[str]) -> None:
    root = Path(flow.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(global_ranks.__file__))]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(tmp_path / "store"), *checks],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(world)
    ]  # fmt: skip
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
