"""Graphs in a group of two ranks (Gloo): collectives are right and in order, what would be lost is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import two_ranks
from launched import run_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs Gloo",
)
_SLOW = ["through_dynamo"]


def test_two_ranks(tmp_path: Path) -> None:
    run_ranks(
        two_ranks,
        tmp_path,
        two_ranks.WORLD,
        [name for name in two_ranks.CHECKS if name not in _SLOW],
    )


@pytest.mark.slow
def test_two_ranks_through_dynamo(tmp_path: Path) -> None:
    run_ranks(two_ranks, tmp_path, two_ranks.WORLD, _SLOW)
