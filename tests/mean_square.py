"""A training step whose loss is the mean square of a model's results."""

from __future__ import annotations

import torch

import gflow as flow


class MeanSquare(flow.nn.Graph):
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(x).square().mean()
        loss.backward()
        return loss
