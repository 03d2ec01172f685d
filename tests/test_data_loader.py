"""A plain training loop over a `torch.utils.data.DataLoader`: only the step is a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from gflow import nn


class Step(nn.Graph):
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def eager_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Tensor]:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def losses(make: Callable[..., Any], workers: int) -> list[Tensor]:
    """Of two epochs; the last batch of each is smaller."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(22, 4), torch.randint(3, (22,)))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=workers)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    step = make(model, optimizer)
    return [step(x, y) for _ in range(2) for x, y in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_loop(workers: int) -> None:
    found = losses(Step, workers)
    assert len(found) == 6
    torch.testing.assert_close(found, losses(eager_step, workers))
