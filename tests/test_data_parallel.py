"""Data parallelism in graphs: steps around a data-parallel module beside eager DDP, in Gloo processes."""

from __future__ import annotations

import os
import pickle
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
from gflow.runtime.stored.checkpoint import CheckpointError
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


class _Code:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


def _emptied(metadata: Any) -> None:
    metadata.state_dict_metadata["a"].chunks.clear()


def _elsewhere(metadata: Any) -> None:
    for info in metadata.storage_data.values():
        info.relative_path = "../../" + info.relative_path


def _cut(metadata: Any) -> None:
    for info in metadata.storage_data.values():
        info.length //= 2


@pytest.mark.parametrize(
    "change", [_Code(), 3, _emptied, _elsewhere, _cut, "latest", "data", "end"]
)
def test_sharded_checkpoints_that_were_changed(
    change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run no code, and no memory that nothing was read into is a tensor of theirs."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "checkpoint"
    save_sharded(
        {"a": torch.arange(6.0).view(2, 3), "b": [torch.ones(3, dtype=torch.int8), 1]}, path
    )
    listed, (data,) = path / "1/.metadata", list((path / "1").glob("*.distcp"))
    if change == "latest":
        (path / "latest").write_text("../checkpoint/1")
    elif change == "data":
        data.write_bytes(data.read_bytes().replace(b"\0\0\x80?", b"\0\0\x80@"))
    elif change == "end":
        data.write_bytes(data.read_bytes()[:-200])
    elif callable(change):
        metadata = pickle.loads(listed.read_bytes())  # noqa: S301
        change(metadata)
        listed.write_bytes(pickle.dumps(metadata))
    else:
        listed.write_bytes(pickle.dumps(change))
    with pytest.raises(CheckpointError) as error:
        load_sharded(path)
    assert len(str(error.value).splitlines()) == 1
    assert not Path("ran").exists()
