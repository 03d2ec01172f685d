"""Ranks are killed after a checkpoint; as many, more and fewer go on from it, with the steps that would have been."""

from __future__ import annotations

from pathlib import Path

import pytest
import restart_ranks
from launched import run_ranks, start
from restart_ranks import SAVED, STEPS, Train, batch, compare, net
from test_data_parallel import needs_gloo
from torch import nn

import gflow as flow

pytestmark = needs_gloo


def killed(folder: Path, how: str) -> None:
    """Two ranks train, save, and are killed in a later step."""
    ranks = [
        start(str(restart_ranks.__file__), r, 2, folder / "store", f"start {how}") for r in range(2)
    ]
    try:
        for each in ranks:
            assert each.stdout is not None
            assert each.stdout.readline() == "saved\n", "it has ended before"
    finally:
        for each in ranks:
            each.kill()
            each.communicate()
    (folder / "store").unlink()


def in_one_process(folder: Path) -> None:
    model = net()
    for p in model.parameters():
        nn.init.zeros_(p)
    train = Train(model)
    flow.distributed.load_checkpoint(train, folder / "checkpoint")
    compare(model, [train(*batch(step)).item() for step in range(SAVED, STEPS)])


def test_zero(tmp_path: Path) -> None:
    killed(tmp_path, "3")
    run_ranks(restart_ranks, tmp_path, 2, ["go on 3"])
    in_one_process(tmp_path)


@pytest.mark.sweep
def test_zero_on_more_ranks(tmp_path: Path) -> None:
    killed(tmp_path, "3")
    for how in ("3", "0"):
        run_ranks(restart_ranks, tmp_path, 3, [f"go on {how}"])
        (tmp_path / "store").unlink(missing_ok=True)


@pytest.mark.sweep
def test_pipeline(tmp_path: Path) -> None:
    killed(tmp_path, "pipeline")
    for world in (2, 3):
        run_ranks(restart_ranks, tmp_path, world, ["go on pipeline"])
        (tmp_path / "store").unlink(missing_ok=True)
    in_one_process(tmp_path)
