"""Graphs of global tensors on 2 and 4 ranks (Gloo), beside PyTorch on one."""

from __future__ import annotations

from pathlib import Path

import global_ranks
import pytest
import torch
from launched import run_ranks

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
    run_ranks(global_ranks, tmp_path, world, checks)
