"""ZeRO over one dimension of a mesh, tensor parallelism over the other: 2×2 ranks (Gloo) beside PyTorch on one."""

from __future__ import annotations

from pathlib import Path

import mesh_ranks
import pytest
import torch
from launched import run_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs Gloo",
)


def test_four_ranks(tmp_path: Path) -> None:
    run_ranks(mesh_ranks, tmp_path, 4, list(mesh_ranks.CHECKS))
