"""Maximum pooling whose positions nothing reads needs no call into PyTorch, and is the same bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from gflow import nn


class Call(nn.Graph):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, x: Any) -> Any:
        return self.function(x)


def picture() -> torch.Tensor:
    x = torch.randn(2, 5, 13, 14)
    x[0, 0, 3, 4], x[1, 2] = float("nan"), -float("inf")
    return x


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("window", "native"),
    [
        ((3, 2, 1), True),
        ((2,), True),
        ((3, 2, 1, 2), True),
        (((2, 3), (1, 2), (1, 0)), True),
        ((3, 2, 1, 1, True), False),
        ((7, 7), False),
    ],
    ids=str,
)
def test_values(window: tuple[Any, ...], native: bool, layout: torch.memory_format) -> None:
    x = picture().to(memory_format=layout)
    graph = Call(lambda x: F.max_pool2d(x, *window))
    expected = F.max_pool2d(x, *window)
    torch.testing.assert_close(graph(x), expected, rtol=0, atol=0, equal_nan=True)
    assert ("gflow.aten" in graph.ir("traced")) is not native


def test_other_ranks_and_types() -> None:
    for function, x in (
        (F.max_pool1d, torch.randn(2, 3, 9).half()),
        (F.max_pool3d, torch.randn(2, 3, 9, 8, 7).double()),
        (F.max_pool2d, torch.randn(3, 9, 8)),
    ):
        graph = Call(lambda x, f=function: f(x, 3, 2, 1))
        assert torch.equal(graph(x), function(x, 3, 2, 1))
        assert "gflow.aten" not in graph.ir("traced")


def test_positions() -> None:
    x = torch.randn(2, 3, 8, 8)
    for pick in (slice(None), slice(1, 2)):
        graph = Call(lambda x, p=pick: F.max_pool2d(x, 3, 2, 1, return_indices=True)[p])
        expected = F.max_pool2d(x, 3, 2, 1, return_indices=True)[pick]
        torch.testing.assert_close(graph(x), expected, rtol=0, atol=0)


def test_gradients() -> None:
    x = torch.randn(2, 3, 8, 8)

    def function(x: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(F.max_pool2d(x, 3, 2, 1).square().sum(), x)[0]

    torch.testing.assert_close(Call(function)(x), function(x))
