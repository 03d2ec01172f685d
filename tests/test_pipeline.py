"""Pipeline stages in graphs, in Gloo processes, beside one process."""

from __future__ import annotations

from pathlib import Path

import pipeline_ranks
import pytest
from launched import run_ranks
from test_data_parallel import needs_gloo

pytestmark = needs_gloo


def test_two_ranks(tmp_path: Path) -> None:
    checks = [name for name in pipeline_ranks.CHECKS if name != "several_pipelines"]
    run_ranks(pipeline_ranks, tmp_path, 2, checks)


def test_two_pipelines(tmp_path: Path) -> None:
    run_ranks(pipeline_ranks, tmp_path, 4, ["several_pipelines"])


@pytest.mark.sweep
def test_four_ranks(tmp_path: Path) -> None:
    run_ranks(pipeline_ranks, tmp_path, 4, ["schedules"])
