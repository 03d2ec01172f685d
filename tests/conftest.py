"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from benchmarks.workloads.third_party import declare_torchvision_ops

# Tests compile: what an earlier run left on disk must not stand in for the code at hand.
os.environ.setdefault("GFLOW_CACHE", "0")

# Lines about the progress of builds would come where the machine is slow.
os.environ.setdefault("GFLOW_PROGRESS", "0")

declare_torchvision_ops()


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """TorchDynamo without programs, before and after a test; random numbers from seed 0."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
