"""Convolutions that read windows in place or as patches, and their gradients, beside float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflow as flow
from gflow.compiler.kernel.convolution import Geometry
from gflow.compiler.kernel.selection.cpu.convolutions import direct
from gflow.compiler.targets.processors import ANY, PROCESSORS, host_level
from gflow.runtime.cpu import llvm

pytestmark = pytest.mark.skipif(not host_level(), reason="no processor of the table")

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

#: batch, channels in and out, spatial sizes; kernel, stride, padding, dilation
CASES: list[tuple[tuple[int, ...], tuple[Any, ...]]] = [
    ((16, 32, 64, 4, 4), (3, 1, 1, 1)),  # by position: whole tiles at each
    ((11, 24, 50, 2, 2), (3, 1, 1, 1)),  # tiles across positions
    ((3, 5, 7, 9, 8), (3, 2, 1, 1)),
    ((2, 3, 64, 33, 31), (7, 2, 3, 1)),
    ((16, 8, 20, 6, 6), (3, 2, 1, 1)),  # the gradient's positions have 1, 2 or 4 taps
    ((1, 6, 18, 11, 13), ((3, 5), (2, 1), (0, 2), (1, 2))),
    ((8, 4, 4, 3, 3), (5, 1, 4, 1)),  # windows beyond the input
    ((9, 4, 20, 5, 3), (2, 3, 0, 1)),  # inputs that no window reads
    ((2, 200, 40, 7, 7), (3, 3, 2, 2)),  # several chains for each tap
    ((20, 16, 1, 9, 9), (3, 1, 1, 1)),  # one output channel, and more than a chain of positions
    ((5, 6, 18, 40), (5, 2, 2, 1)),
    ((3, 20, 18, 4, 5, 6), (3, 1, 1, 1)),
    ((2, 5, 33, 5, 7, 9), ((3, 1, 2), (1, 2, 2), (1, 0, 1), (2, 1, 1))),
    ((9, 16, 24, 1, 3, 3), (3, 1, 1, 1)),  # of a depth of 3, one is inside
]  # fmt: skip

#: the same, without the gradients' order of taps that direct convolutions have; the last number is of groups
BY_PATCHES: list[tuple[tuple[int, ...], tuple[Any, ...]]] = [
    ((3, 6, 18, 4, 5, 6), (3, 1, 1, 1)),
    ((2, 32, 20, 3, 5, 6), (3, 2, 1, 1)),  # channels of which patches in two dimensions are gathered
    ((2, 6, 9, 5, 7, 9), ((3, 1, 2), (1, 2, 2), (1, 0, 1), (2, 1, 1), 3)),
    ((3, 6, 9, 20), (4, 3, 1, 2, 3)),
    ((300, 4, 8, 1, 2, 2), ((1, 2, 2), 1, 0, 1)),  # several chunks of positions
]  # fmt: skip


class Step(flow.nn.Graph):
    """A convolution with a residual and ReLU, and its gradients."""

    def __init__(self, w: Tensor, given: tuple[Any, ...], gradients: bool = True) -> None:
        super().__init__()
        self.w, self.given, self.gradients = nn.Parameter(w), given, gradients
        self.config.enable_winograd(False)

    def build(self, x: Tensor, dy: Tensor) -> Any:
        return (
            step(x, self.w, dy, self.given)
            if self.gradients
            else forward(x, self.w, dy, self.given)
        )


def forward(x: Tensor, w: Tensor, dy: Tensor, given: tuple[Any, ...]) -> Tensor:
    return torch.relu(convolution(x, w, given) + dy)


def convolution(x: Tensor, w: Tensor, given: tuple[Any, ...]) -> Tensor:
    return CONVOLUTIONS[x.ndim - 2](x, w, None, *given)


def step(x: Tensor, w: Tensor, dy: Tensor, given: tuple[Any, ...]) -> tuple[Tensor, ...]:
    x = x.detach().requires_grad_()
    y = convolution(x, w, given)
    return torch.relu(y + dy), *torch.autograd.grad(y, [x, w], dy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_beside_float64(
    case: tuple[tuple[int, ...], tuple[Any, ...]],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct, "_by_patches", lambda *_: math.inf)
    for name, p in PROCESSORS.items():  # several blocks of columns, of rows and of positions
        monkeypatch.setitem(PROCESSORS, name, replace(p, block=1 << 13, near=1 << 15))
    text = beside_float64(*case, dtype)
    if dtype == torch.float32:
        assert text.count('kind = "direct"') == 3
    elif host_level() == "x86-64-v4+bf16":
        (_, c, o, *_), _ = case  # pairs of positions, of input channels and of output channels
        pairs = 1 + (c % 2 == 0 and o > 1) + (o % 2 == 0)
        assert text.count('kind = "direct", precision = "bf16"') == pairs


@pytest.mark.parametrize("case", BY_PATCHES, ids=str)
def test_patches_beside_float64(
    case: tuple[tuple[int, ...], tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_by_patches", lambda *_: 0)
    monkeypatch.setattr(type(ANY), "gathered", 1 << 14)
    assert beside_float64(*case).count('kind = "patches"') == 3


def beside_float64(
    sizes: tuple[int, ...], given: tuple[Any, ...], dtype: torch.dtype = torch.float32
) -> str:
    """The planned program of a graph whose errors are those of eager."""
    (n, c, o, *spatial), (kernel, *given) = sizes, given
    torch.manual_seed(0)
    taps = kernel if isinstance(kernel, tuple) else (kernel,) * len(spatial)
    groups = given[3] if len(given) > 3 else 1
    x, w = (torch.randn(size, dtype=dtype) for size in ((n, c, *spatial), (o, c // groups, *taps)))
    dy = torch.randn_like(convolution(x, w, given))
    graph = Step(w, given)
    for _ in range(2):  # shares are counted anew at each call
        found = graph(x, dy)

    def of(dtype: torch.dtype) -> tuple[Tensor, ...]:
        return step(x.to(dtype), w.to(dtype).requires_grad_(), dy.to(dtype), given)

    for own, eager, exact in zip(found, of(x.dtype), of(torch.float64)):
        error, eagers = ((y.double() - exact).abs().max().item() for y in (own, eager))
        assert error <= 4 * eagers + 1e-6
    return graph.ir("planned", generic=True)


def test_infinities_and_nan_stay_in_their_windows() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(16, 32, 4, 4), torch.randn(40, 32, 3, 3)
    x[3, 5, 0, 0], x[4, 1, 2, 3], x[5, 2, 1, 1] = math.inf, math.nan, 3e38
    graph = Step(w, (1, 1), False)
    dy = torch.zeros(16, 40, 4, 4)
    found, wanted = graph(x, dy), forward(x, w, dy, (1, 1))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5, equal_nan=True)
    assert 'kind = "direct"' in graph.ir("planned", generic=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("which", ["x", "w", "dy"])
@pytest.mark.parametrize("size", [2, 5])
def test_padding_beside_infinities(
    which: str, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros around the input are multiplied with infinities where eager does so: not in gradients of the input."""
    monkeypatch.setattr(direct, "_by_patches", lambda *_: math.inf)
    torch.manual_seed(0)
    shapes = (9, 16, size, size), (24, 16, 3, 3), (9, 24, size, size)
    x, w, dy = (torch.randn(shape, dtype=dtype) for shape in shapes)
    given = {"x": x, "w": w, "dy": dy}[which].view(-1)
    given[::701], given[5] = math.inf, math.nan
    found = Step(w, (1, 1))(x, dy)
    wanted = step(x.double(), w.double().requires_grad_(), dy.double(), (1, 1))
    for own, exact in zip(found, wanted):
        rounding = 1e-4 if dtype == torch.float32 else 2.0**-7
        wanted = exact.to(dtype)
        torch.testing.assert_close(own, wanted, rtol=rounding, atol=rounding, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spatial", [(9,), (7, 6), (3, 4, 5)], ids=str)
def test_batches_that_vary(spatial: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    w = torch.randn(24, 16, *(3 for _ in spatial), dtype=dtype)
    graph = Step(w, (1, 1), False)
    rtol, atol = (1e-4, 2e-5) if dtype == torch.float32 else (2.0**-7, 2.0**-6)
    for n in (3, 5, 9, 4, 11):
        x, dy = (torch.randn(n, c, *spatial, dtype=dtype) for c in (16, 24))
        torch.testing.assert_close(graph(x, dy), forward(x, w, dy, (1, 1)), rtol=rtol, atol=atol)


def test_bfloat16_without_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program for AVX-512's dot products also runs where the processor has none."""
    monkeypatch.setattr(llvm, "bf16", lambda level: False)
    monkeypatch.setenv("GFLOW_CACHE", "0")
    beside_float64((3, 32, 40, 9, 8), (3, 1, 1, 1), torch.bfloat16)


@pytest.mark.parametrize(
    ("size", "stride", "name", "by_image", "by_position"),
    [
        (8, 1, "convolution", 22 / 24, (22 / 24) ** 2),  # a line is a tile
        (2, 1, "convolution", 1, 4 / 9),
        (8, 2, "convolution_input_grad", 11 / 24, (11 / 24) ** 2),
    ],
)
def test_taps_that_tiles_of_eight_rows_read(
    size: int, stride: int, name: str, by_image: float, by_position: float
) -> None:
    outputs = (size // stride,) * 2
    given = (outputs, (3, 3), (stride,) * 2, (1, 1), (1, 1), True)
    g = Geometry(name, 16, 32, 32, 1, (size, size), *given)
    found = [direct.part_of_taps(g, g.walk, 8, order) for order in (False, True)]
    assert found == pytest.approx([by_image, by_position])


def test_taps_of_a_long_kernel_are_not_counted_one_by_one() -> None:
    """The time to compile must not grow with the square of a length, which may be the greatest of a range."""
    long = 1 << 20
    given = ((long,), (long,), (1,), (long // 2,), (1,), True)
    g = Geometry("convolution", 16, 32, 32, 1, (long,), *given)
    assert direct.part_of_taps(g, g.walk, 8, False) == 1.0
