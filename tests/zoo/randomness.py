"""Models that draw random numbers: their outputs have the right distribution, not eager's bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .case import Tensor


class Vae(nn.Module):
    """Reparametrisation with randn_like; the reconstruction of a constant input."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_var = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.mean + torch.exp(0.5 * self.log_var) * torch.randn_like(x)


class Dropped(nn.Module):
    """Dropout of every kind on ones: each keeps the mean 1 and has a known variance."""

    def __init__(self, kind: nn.Module) -> None:
        super().__init__()
        self.kind, self.scale = kind, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.kind(torch.ones_like(x) * self.scale)


class DropPath(nn.Module):
    """Stochastic depth, as timm writes it."""

    def forward(self, x: Tensor) -> Tensor:
        mask = x.new_empty(x.shape[0], *[1] * (x.ndim - 1)).bernoulli_(0.75)
        return x * mask.div_(0.75)


class Noisy(nn.Module):
    """A function of random tensors, as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) * self.scale


#: name: (model, shape of the input)
RANDOM: dict[str, tuple[Any, tuple[int, ...]]] = {
    "VAE": (Vae, (4000, 8)),
    "Dropout": (lambda: Dropped(nn.Dropout(0.2)), (200, 200)),
    "Dropout1d": (lambda: Dropped(nn.Dropout1d(0.2)), (200, 200, 3)),
    "Dropout2d": (lambda: Dropped(nn.Dropout2d(0.2)), (200, 200, 2, 2)),
    "FeatureAlphaDropout": (lambda: Dropped(nn.FeatureAlphaDropout(0.2)), (200, 200, 2)),
    "DropPath": (lambda: Dropped(DropPath()), (40000, 2)),
    "rand": (lambda: Noisy(lambda x: torch.rand(x.shape)), (200, 200)),
    "randn": (lambda: Noisy(lambda x: torch.randn(x.shape)), (200, 200)),
    "normal_": (lambda: Noisy(lambda x: x.new_empty(x.shape).normal_(2, 3)), (200, 200)),
    "uniform_": (lambda: Noisy(lambda x: torch.empty_like(x).uniform_(-1, 1)), (200, 200)),
    "randint": (lambda: Noisy(lambda x: torch.randint(0, 4, x.shape)), (200, 200)),
    "bernoulli": (lambda: Noisy(lambda x: torch.bernoulli(x * 0 + 0.3)), (200, 200)),
    "exponential_": (
        lambda: Noisy(lambda x: torch.empty_like(x).exponential_(2.0)), (200, 200)),
    "gumbel softmax": (
        lambda: Noisy(lambda x: nn.functional.gumbel_softmax(x * 0, hard=True)), (20000, 4)),
    "rrelu": (lambda: Noisy(lambda x: nn.functional.rrelu(x * 0 - 1, 0.1, 0.3, True)), (200, 200)),
    "multinomial": (
        lambda: Noisy(lambda x: torch.multinomial(x[:, :2] * 0 + 1, 1).float()), (40000, 2)),
    "randperm": (lambda: Noisy(lambda x: torch.randperm(x.shape[0]).float()[:1]), (2, 1)),
}  # fmt: skip
