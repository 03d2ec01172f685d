"""Pooling in graphs. Maxima are the same bit for bit; where nothing reads their positions, and windows are small, they
are slices on the CPU; between convolutions they are gflow's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from codegen_harness import Arg, Case, compile_case, copies, make
from torch.nn import functional as F

from gflow import nn
from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.runtime import Executable


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


#: window, stride, padding, dilation, ceil_mode
WINDOWS = [
    (3, 2, 1, 1, False),
    (2, 2, 0, 1, False),
    (3, 1, 1, 2, False),
    (2, 3, 1, 2, True),
    (3, 3, 0, 1, True),
]
POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def own_case(x: torch.Tensor, dy: torch.Tensor, window: tuple[int, ...], own: bool) -> Case:
    """Maxima, their positions, and the gradient for `dy`, channels last. own: the positions are those found here."""
    spatial = x.dim() - 2
    kernel, stride, padding, dilation = ((n,) * spatial for n in window[:4])
    attrs = {"kernel": kernel, "stride": stride, "padding": padding, "layout": "N*C"}
    attrs |= {"dilation": dilation, "ceil_mode": bool(window[4])}
    given = [v.movedim(1, -1).contiguous() for v in (x, dy)]

    def body(x: ir.Value, dy: ir.Value, *positions: ir.Value) -> list[ir.Value]:
        found = builder.build_op("max_pool", [x], attrs | {"positions": "plane"}).results
        shape = {"shape": tuple(given[0].shape)}
        of = positions[0] if positions else found[1]
        return [*found, *builder.build_op("max_pool_grad", [dy, of], attrs | shape).results]

    kind = "f32" if x.dtype == torch.float32 else "bf16"
    args = [Arg(tuple(v.shape), kind, values=v) for v in given]
    if not own:
        place = torch.zeros(given[1].shape, dtype=torch.int64)
        args.append(Arg(tuple(place.shape), "i64", values=place))
    return make("max_pool", args, body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 5, 11), (2, 1, 9, 8), (3, 70, 9, 11), (2, 21, 6, 5, 7)], ids=str
)
def test_own_kernels(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Channels-last maxima, positions and gradients have eager's bits, with ties, NaN and windows of infinities."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-3, 4, shape, generator=generator).to(dtype)
    x[0, 0, 2], x[1, :, 1], x[-1, -1] = float("nan"), float("nan"), -float("inf")
    for window in WINDOWS:
        leaf = x.clone().requires_grad_()
        y, positions = POOLS[x.dim() - 2](leaf, *window, return_indices=True)
        dy = torch.randint(-4, 5, y.shape, generator=generator).to(dtype)
        case = own_case(x, dy, window, True)
        program = compile_case(case)
        assert len(program.kernels) == 2
        got = Executable(program)(copies(case.args))
        (dx,) = torch.autograd.grad(y, leaf, dy)
        for g, want in zip(got, (y.detach(), positions, dx)):
            torch.testing.assert_close(g.movedim(-1, 1), want, rtol=0, atol=0, equal_nan=True)


def test_positions_from_elsewhere() -> None:
    """Positions that no pooling of the program found may be anywhere: their gradient is PyTorch's."""
    x, dy = torch.randn(1, 3, 8, 8), torch.ones(1, 3, 4, 4)
    case = own_case(x, dy, (2, 2, 0, 1, False), False)
    got = Executable(compile_case(case))(copies(case.args))[2]
    assert torch.equal(got[0, 0, 0], torch.full((3,), 16.0))
    assert got.sum() == dy.sum()
