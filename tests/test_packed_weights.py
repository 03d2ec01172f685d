"""Products and convolutions of frozen graphs, whose weights are packed: sizes that fill no tile, and what follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import gflow as flow
from gflow.compiler.kernel.blocks import Problem
from gflow.compiler.kernel.selection.cpu.strips import strip_for, strips_of
from gflow.compiler.targets.processors import PROCESSORS, host_level

pytestmark = pytest.mark.skipif(not host_level(), reason="no processor of the table")


class Frozen(flow.nn.Graph):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.config.freeze()
        self.config.enable_winograd(False)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x) + x)


class Normed(nn.Module):
    """What follows reduces rows, so it cannot run on tiles."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(37, 53)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y / y.square().sum(-1, keepdim=True)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(64, 96), (40, 64)),
    "three dimensions": (lambda: nn.Linear(33, 50), (3, 17, 33)),
    "long sums": (lambda: nn.Linear(700, 33), (41, 700)),
    "no bias": (lambda: nn.Linear(161, 20, bias=False), (19, 161)),
    "a reduction": (Normed, (29, 37)),
    "1x1": (lambda: nn.Conv2d(24, 40, 1), (2, 24, 7, 7)),
    "1x1, stride": (lambda: nn.Conv2d(24, 40, 1, stride=2), (2, 24, 7, 8)),
    "1x1, padding": (lambda: nn.Conv2d(5, 20, 1, padding=2), (1, 5, 4, 6)),
    "stem": (lambda: nn.Sequential(nn.Conv2d(3, 40, 7, 2, 3), nn.ReLU()), (2, 3, 17, 19)),
    "dilation": (lambda: nn.Conv2d(20, 33, (3, 5), padding=(1, 4), dilation=(2, 1)), (2, 20, 13, 9)),
    "only padding": (lambda: nn.Conv2d(4, 20, 3, padding=3, stride=5), (1, 4, 1, 2)),
    "long taps": (lambda: nn.Conv2d(200, 50, 3, stride=(2, 1)), (2, 200, 9, 8)),
    "residual": (lambda: Residual(nn.Conv2d(32, 32, 3, padding=1)), (2, 32, 9, 5)),
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(20, 64, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU6()),
        (1, 20, 8, 8),
    ),
    "three dimensions, stride": (lambda: nn.Conv3d(6, 40, 3, stride=(1, 2, 2), padding=1), (2, 6, 5, 9, 4)),
    "depthwise": (lambda: nn.Conv2d(40, 40, 3, padding=1, groups=40), (2, 40, 9, 5)),
    "depthwise, stride": (
        lambda: nn.Sequential(nn.Conv2d(100, 100, (5, 3), (2, 1), 2, (1, 2), 100), nn.ReLU6()),
        (1, 100, 11, 12),
    ),
    "depthwise, three dimensions": (
        lambda: nn.Conv3d(16, 16, 3, padding=1, groups=16),
        (2, 16, 4, 5, 3),
    ),
    "windows inside": (lambda: nn.Conv2d(24, 24, 3, dilation=(1, 2)), (2, 24, 15, 30)),
    "twelve rows": (lambda: nn.Conv2d(3, 32, 3, 2, 1), (1, 3, 64, 64)),
    "large": (lambda: nn.Conv2d(64, 128, 3, padding=1), (1, 64, 30, 31)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    torch.manual_seed(0)
    make, shape = CASES[name]
    module = make().eval().requires_grad_(False)
    graph = Frozen(module)
    for _ in range(3):  # shares are counted anew at each call
        x = torch.randn(shape)
        torch.testing.assert_close(graph(x), module(x), rtol=1e-4, atol=2e-5)
    assert "gflow.packed_product" in graph.ir("planned")


def test_what_is_not_packed() -> None:
    """Groups, and weights that are used by few rows or make few outputs."""
    torch.manual_seed(0)
    for module, shape in (
        (nn.Conv2d(8, 16, 3, groups=2), (1, 8, 6, 6)),
        (nn.Linear(64, 96), (4, 64)),
        (nn.Linear(64, 3), (40, 64)),
    ):
        module.eval().requires_grad_(False)
        graph, x = Frozen(module), torch.randn(shape)
        torch.testing.assert_close(graph(x), module(x), rtol=1e-4, atol=2e-5)
        assert "gflow.packed_product" not in graph.ir("planned")


def test_infinities_and_nan() -> None:
    """They go where eager has them, and what fills a strip up reaches no result."""
    torch.manual_seed(0)
    module = nn.Linear(40, 21).eval().requires_grad_(False)
    x = torch.randn(50, 40)
    x[3, 5], x[7, 0] = float("inf"), float("nan")
    module.weight[4, 2], module.weight[20, 39] = float("nan"), float("-inf")
    torch.testing.assert_close(Frozen(module)(x), module(x), equal_nan=True)


def test_a_changed_weight_is_packed_again() -> None:
    torch.manual_seed(0)
    module, x = nn.Conv2d(8, 20, 3).eval().requires_grad_(False), torch.randn(1, 8, 9, 9)
    graph = Frozen(module)
    graph(x)
    module.weight.mul_(-2)
    torch.testing.assert_close(graph(x), module(x), rtol=1e-4, atol=2e-5)


def test_sizes_that_vary() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(8, 24, 3, padding=1), nn.ReLU()).eval().requires_grad_(False)
    graph = Frozen(module)
    for n in (3, 5, 9, 4, 11):
        x = torch.randn(n, 8, 7, 6)
        torch.testing.assert_close(graph(x), module(x), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("isa", PROCESSORS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (49, 512, 4608), (3136, 64, 576), (17, 1000, 3)])
def test_cuts(isa: str, sizes: tuple[int, int, int]) -> None:
    """Shares are whole tiles, and cover the product; of long ones each thread has several."""
    p, product = PROCESSORS[isa], Problem(*sizes)
    width = strip_for(p, product)
    made = strips_of(p, product, width, 4 * sizes[0] * sizes[2], 4)
    assert made is not None
    assert made.tile[1] == width
    assert made.rows % made.tile[0] == made.across % width == 0
    shares = -(-product.rows // made.rows) * -(-product.columns // made.across)
    assert shares >= 8 or product.rows * product.columns * product.k < 1 << 22
