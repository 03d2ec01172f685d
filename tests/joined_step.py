"""A training step for passes that join kernels, and the gradients that eager gives for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import gflow
from gflow.compiler import CompileOptions


class Train(gflow.nn.Graph):
    """A step of size 1 on the mean square of a model's error."""

    def __init__(self, model: nn.Module, options: CompileOptions) -> None:
        super().__init__()
        self.model = model
        self.config.compile_options = options
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = ((self.model(x) - y) ** 2).float().mean()
        loss.backward()
        return loss


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Eager's gradients of that loss, in float64."""
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    return {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
