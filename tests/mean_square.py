"""A training step whose loss is the mean square of a model's results."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

import gflow as flow


class MeanSquare(flow.nn.Graph):
    def __init__(self, model: torch.nn.Module, optimizer: Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(x).square().mean()
        loss.backward()
        return loss


def beside_eager(
    mine: torch.nn.Module, ours: Optimizer, want: torch.nn.Module, theirs: Optimizer, steps: int
) -> None:
    """Train a model by a graph and its copy by eager, on the same inputs [4, 3] of float64, to equal parameters."""
    graph = MeanSquare(mine, ours)
    for _ in range(steps):
        x = torch.randn(4, 3, dtype=torch.float64)
        theirs.zero_grad()
        want(x).square().mean().backward()
        theirs.step()
        graph(x)
    torch.testing.assert_close(list(mine.parameters()), list(want.parameters()))
