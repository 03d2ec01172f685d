"""Padding in front of convolutions, against eager: forward and all gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gflow as flow


class Net(nn.Module):
    def __init__(self, pad: tuple[int, ...], groups: int, stride: int) -> None:
        super().__init__()
        conv = nn.Conv2d if len(pad) == 4 else nn.Conv1d
        self.first, self.pad = conv(3, 8, 1), pad
        self.second = conv(8, 8, 3, stride, padding=1, groups=groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.pad(self.first(x), self.pad))


class Step(flow.nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.SGD(model.parameters(), 0.0))
        self.config.keep_gradients()

    def build(self, x: Any) -> Any:
        out = self.model(x)
        out.square().mean().backward()
        return out


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize(
    ("pad", "kept"),
    [((1, 1, 1, 1), 0), ((2, 2, 0, 0), 0), ((2, 2), 0), ((0, 1, 0, 1), 1), ((1, 2, 3, 0), 1)],
    ids=str,
)
def test_like_eager(pad: tuple[int, ...], kept: int, groups: int) -> None:
    torch.manual_seed(0)
    model = Net(pad, groups, stride=2)
    x = torch.randn(2, 3, *(9, 10)[: len(pad) // 2])
    expected = model(x)
    expected.square().mean().backward()
    graph = Step(model)
    torch.testing.assert_close(graph(x), expected.detach(), rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            graph.grad(f"model.{name}"), parameter.grad, rtol=1e-4, atol=1e-5
        )
    assert graph.ir("fused", generic=True).count('"gflow.pad"') == kept
