"""Data parallelism in graphs: steps around a data-parallel module beside eager DDP, in Gloo processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import data_parallel_ranks
import pytest
import torch
from launched import run_ranks
from torch.utils._pytree import tree_flatten

import gflow as flow
from gflow.runtime.stored.sharded import load_sharded, save_sharded

needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs Gloo",
)
pytestmark = needs_gloo


def same_tree(a: Any, b: Any) -> None:
    left, right = tree_flatten(a), tree_flatten(b)
    assert left[1] == right[1]
    for x, y in zip(left[0], right[0]):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


def test_two_ranks(tmp_path: Path) -> None:
    run_ranks(data_parallel_ranks, tmp_path, 2, list(data_parallel_ranks.CHECKS))
    # what two ranks have written, one process reads
    same_tree(load_sharded(tmp_path / "sharded"), flow.load(tmp_path / "whole.safetensors"))


_SAVES = """
import sys, torch
from pathlib import Path
from gflow.runtime.stored.sharded import save_sharded
for n in range(10_000):
    save_sharded({"a": torch.full((1000,), n), "b": [torch.full((3, 5), float(n)), n]}, Path(sys.argv[1]))
    print(n, flush=True)
"""


def test_a_killed_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    root = Path(flow.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    path = tmp_path / "checkpoint"
    saving = subprocess.Popen(
        [sys.executable, "-c", _SAVES, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert saving.stdout is not None
    try:
        for _ in range(3):
            done = int(saving.stdout.readline())
        time.sleep(random.uniform(0, 0.05))
    finally:
        saving.kill()
    done += len(saving.stdout.read().split())
    found = load_sharded(path)
    assert found["b"][1] >= done
    assert (found["a"] == found["b"][1]).all()
    assert (found["b"][0] == found["b"][1]).all()
    save_sharded({"a": torch.zeros(2)}, path)  # over what the killed one has left
    assert load_sharded(path)["a"].tolist() == [0, 0]


def test_four_ranks(tmp_path: Path) -> None:
    run_ranks(data_parallel_ranks, tmp_path, 4, ["amp_and_scaler", "checkpoint"])
    same_tree(load_sharded(tmp_path / "sharded"), flow.load(tmp_path / "whole.safetensors"))
