"""Small models and training loops that show what mixed precision does to a loss curve."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflow
from benchmarks.workloads.networks import MLP, Decoder

Batch = tuple[Tensor, Tensor]


class Inverted(nn.Module):
    """A block of MobileNetV2: expand, depthwise, project, shortcut."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        wide = 3 * cin
        self.shortcut = stride == 1 and cin == cout
        self.conv = nn.Sequential(
            nn.Conv2d(cin, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU6(), nn.Conv2d(wide, cout, 1, bias=False), nn.BatchNorm2d(cout),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.shortcut else self.conv(x)


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        Inverted(16, 16, 1), Inverted(16, 24, 2), Inverted(24, 24, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
    )  # fmt: skip


def pictures(generator: torch.Generator) -> Batch:
    target = torch.randint(10, (16,), generator=generator)
    noise = torch.randn(16, 3, 16, 16, generator=generator)
    return noise + target.view(-1, 1, 1, 1) / 5, target


def vectors(generator: torch.Generator) -> Batch:
    x = torch.randn(32, 32, generator=generator)
    return x, x[:, :10].argmax(1)


def text(generator: torch.Generator) -> Batch:
    start = torch.randint(64, (8, 1), generator=generator)
    tokens = (start + 3 * torch.arange(17)) % 64
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Batch]]] = {
    "convnet": (convnet, pictures),
    "decoder": (lambda: Decoder(2, 32, 2, 64, 16), text),
    "mlp": (lambda: MLP((32, 64, 64, 10)), vectors),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0]()


def batches(name: str, count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [MODELS[name][1](generator) for _ in range(count)]


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2).float(), target.flatten())


class Training(gflow.nn.Graph):
    def __init__(self, model: nn.Module, optimizer: Any, amp: Any = None, scaler: Any = None):
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        if amp is not None:
            self.config.enable_amp(True, dtype=amp)
        if scaler is not None:
            self.set_grad_scaler(scaler)

    def build(self, x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(self.model(x), y)
        loss.backward()
        return loss


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def compiled_curve(name: str, steps: int, amp: Any = None, scaler: Any = None) -> Tensor:
    """The losses of a graph's training."""
    model = make(name)
    graph = Training(model, optimizer_of(model), amp, scaler)
    return torch.tensor([graph(x, y).item() for x, y in batches(name, steps)])


@cache
def eager_curve(name: str, steps: int, amp: Any = None, scaler: Any = None) -> Tensor:
    """The losses of an eager loop under `torch.autocast`."""
    model = make(name)
    optimizer = optimizer_of(model)
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    losses = []
    for x, y in batches(name, steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", amp or torch.bfloat16, enabled=amp is not None):
            loss = loss_of(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return torch.tensor(losses)
