"""Pooling in graphs. Maxima are the same bit for bit; where nothing reads their positions, and windows are small, they
are slices on the CPU."""

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
    ("window", "slices"),
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
def test_values(window: tuple[Any, ...], slices: bool, layout: torch.memory_format) -> None:
    x = picture().to(memory_format=layout)
    graph = Call(lambda x: F.max_pool2d(x, *window))
    expected = F.max_pool2d(x, *window)
    torch.testing.assert_close(graph(x), expected, rtol=0, atol=0, equal_nan=True)
    assert ("gflow.max_pool" in graph.ir("traced", generic=True)) is not slices


def test_other_ranks_and_types() -> None:
    for function, x in (
        (F.max_pool1d, torch.randn(2, 3, 9).half()),
        (F.max_pool3d, torch.randn(2, 3, 9, 8, 7).double()),
        (F.max_pool2d, torch.randn(3, 9, 8)),
    ):
        graph = Call(lambda x, f=function: f(x, 3, 2, 1))
        assert torch.equal(graph(x), function(x, 3, 2, 1))
        assert "gflow.aten" not in graph.ir("traced", generic=True)


def test_positions() -> None:
    x = torch.randn(2, 3, 8, 8)
    for pick in (slice(None), slice(1, 2)):
        graph = Call(lambda x, p=pick: F.max_pool2d(x, 3, 2, 1, return_indices=True)[p])
        expected = F.max_pool2d(x, 3, 2, 1, return_indices=True)[pick]
        torch.testing.assert_close(graph(x), expected, rtol=0, atol=0)


def gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    """The values and the gradient of the sum of their squares."""

    def both(x: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = function(x)
            return y, torch.autograd.grad(y.square().sum(), x)[0]

    return both


CALLS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "max": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 8, 9)),
    "max, ceil, dilated": (lambda x: F.max_pool2d(x, 2, 3, 1, 2, ceil_mode=True), (3, 8, 9)),
    "max 1-d": (lambda x: F.max_pool1d(x, 3, 2), (2, 3, 11)),
    "max 3-d": (lambda x: F.max_pool3d(x, 2, 1), (2, 3, 4, 5, 6)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (3, 4)), (2, 3, 7, 9)),
    "adaptive max 3-d": (lambda x: F.adaptive_max_pool3d(x, 2), (2, 3, 5, 4, 3)),
    "mean": (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 8, 9)),
    "mean, ceil": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), (2, 3, 8, 8)),
    "mean, divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (3, 8, 8)),
    "mean 1-d": (lambda x: F.avg_pool1d(x, 3, 1, 1), (2, 3, 9)),
    "mean 3-d": (lambda x: F.avg_pool3d(x, 3, 2, 1), (2, 3, 4, 5, 6)),
    "tiles": (lambda x: F.avg_pool2d(x, 2), (2, 3, 8, 8)),
    "adaptive mean": (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), (2, 3, 7, 9)),
    "adaptive mean 1-d": (lambda x: F.adaptive_avg_pool1d(x, 4), (2, 3, 9)),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients(name: str) -> None:
    function, shape = CALLS[name]
    x = torch.randn(shape)
    graph = Call(gradient(function))
    torch.testing.assert_close(graph(x), gradient(function)(x))
    assert "gflow.aten" not in graph.ir("traced", generic=True)


def test_no_copies_between_convolutions() -> None:
    """Pooling is channels last where convolutions are."""

    def build(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        def function(x: torch.Tensor) -> torch.Tensor:
            return F.conv2d(F.avg_pool2d(F.max_pool2d(F.conv2d(x, a).relu(), 3, 2, 1), 3, 1), b)

        return gradient(function)(x)

    class Net(nn.Graph):
        def build(self, x: Any, a: Any, b: Any) -> Any:
            return build(x, a, b)

    args = torch.randn(2, 3, 12, 13), torch.randn(8, 3, 3, 3), torch.randn(4, 8, 1, 1)
    graph = Net()
    torch.testing.assert_close(graph(*args), build(*args), rtol=1e-4, atol=1e-4)
    lines = [
        line
        for line in graph.ir("planned", generic=True).splitlines()
        if "_pool" in line and '"gflow.' in line
    ]
    assert len(lines) == 4
    assert all('layout = "N*C"' in line for line in lines)
