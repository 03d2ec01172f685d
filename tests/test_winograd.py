"""Convolutions by Winograd's algorithm, and their gradients, beside float64 and eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gflow
from gflow.compiler.ir.errors import CannotLower
from gflow.compiler.kernel.selection.choice import Choice
from gflow.compiler.kernel.selection.cpu.convolutions import winograd
from gflow.compiler.targets.processors import PROCESSORS
from gflow.dialects.program import processor

Tensor = torch.Tensor
LEVELS = [n for n in PROCESSORS if processor.LEVELS[n] <= processor.features()]
pytestmark = pytest.mark.skipif(not LEVELS, reason="this processor has no vectors for products")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is slower."""
    monkeypatch.setattr(winograd, "_SAVED", math.inf)
    monkeypatch.setattr(winograd, "_TILES", 1)
    monkeypatch.setattr(winograd, "_DEEP", 1)


@dataclass(frozen=True)
class Sizes:
    """Of a convolution with a kernel of 3×3 behind `depth`. last: the weight is channels last, too."""

    images: int
    inputs: int
    outputs: int
    spatial: tuple[int, ...]
    padding: int = 1
    depth: int = 0
    last: bool = False


#: odd sizes, other paddings, parts of vectors of channels, strips of 1 to 3 vectors, three dimensions
SIZES = [
    Sizes(2, 32, 32, (17, 19)),
    Sizes(1, 64, 32, (33, 20), 0),
    Sizes(3, 48, 96, (15, 16), 2),
    Sizes(2, 24, 40, (9, 7)),
    Sizes(1, 21, 16, (6, 35)),
    Sizes(2, 24, 40, (6, 7, 10), 1, 3),
    Sizes(1, 16, 32, (3, 8, 8), 0, 2),
    Sizes(2, 24, 40, (9, 7), last=True),
    Sizes(1, 32, 24, (5, 7, 10), 1, 3, True),
]


def _given(s: Sizes) -> list[Tensor]:
    """Input, weight, bias and the gradient of the result, channels last."""
    random = torch.Generator().manual_seed(s.inputs)
    depth = (s.depth,) if s.depth else ()
    last = torch.channels_last_3d if s.depth else torch.channels_last
    x = torch.randn(s.images, s.inputs, *s.spatial, generator=random)
    w = torch.randn(s.outputs, s.inputs, *depth, 3, 3, generator=random) / s.inputs**0.5
    w = w.contiguous(memory_format=last) if s.last else w
    b = torch.randn(s.outputs, generator=random)
    y = _convolution(s)(x, w, b, padding=s.padding)
    dy = torch.randn(y.shape, generator=random)
    return [x.contiguous(memory_format=last), w, b, dy.contiguous(memory_format=last)]


def _convolution(s: Sizes) -> Callable[..., Tensor]:
    return F.conv3d if s.depth else F.conv2d


def _step(s: Sizes) -> Callable[..., list[Tensor]]:
    def step(x: Tensor, w: Tensor, b: Tensor, dy: Tensor) -> list[Tensor]:
        x, w = (t.detach().requires_grad_() for t in (x, w))
        y = _convolution(s)(x, w, b, padding=s.padding)
        return [F.relu(y), *torch.autograd.grad(y, (x, w), dy)]

    return step


def _kernels(graph: gflow.nn.Graph, *given: Tensor) -> list[str]:
    return [step.kernel for step in graph.profile(*given, rounds=1).steps]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("s", SIZES, ids=str)
def test_errors_are_those_of_eager(s: Sizes, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an epilogue on tiles."""
    monkeypatch.setenv(processor.ISA, level)
    given, step = _given(s), _step(s)
    graph = gflow.nn.Graph.trace(step)
    found, eager, exact = graph(*given), step(*given), step(*(t.double() for t in given))
    for ours, theirs, wanted in zip(found, eager, exact, strict=True):
        a, b = ((t.double() - wanted).norm() for t in (ours, theirs))
        assert a <= 1.5 * b + 1e-7 * wanted.norm()
        torch.testing.assert_close(ours, wanted.float(), rtol=1e-4, atol=1e-4)
    names = _kernels(graph, *given)
    assert sum(n.startswith("winograd") for n in names) == 3


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the processor has no dot products of bfloat16; results are rounded once."""
    monkeypatch.setenv(processor.ISA, LEVELS[-1])
    s = Sizes(2, 24, 40, (9, 7))
    given, step = [t.to(dtype) for t in _given(s)], _step(s)
    graph = gflow.nn.Graph.trace(step)
    for ours, wanted in zip(graph(*given), step(*(t.double() for t in given)), strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - wanted).norm() <= torch.finfo(dtype).eps * wanted.norm()
    assert sum(n.startswith("winograd") for n in _kernels(graph, *given)) == 3


@pytest.mark.usefixtures("always")
def test_threads_change_no_bits() -> None:
    s = Sizes(3, 32, 64, (40, 25))
    given, before, found = _given(s), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append([t.clone() for t in gflow.nn.Graph.trace(_step(s))(*given)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("where", [0, 1, 3])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "s", [Sizes(2, 20, 32, (7, 9)), Sizes(1, 16, 32, (3, 5, 6), 1, 3)], ids=str
)
def test_numbers_that_are_not_finite(s: Sizes, where: int, number: float) -> None:
    """They reach the results that they have a part in, with their signs, and no others."""
    given, step = _given(s), _step(s)
    place = (0, 5, *(0,) * (given[where].dim() - 4), 2, 1)
    given[where][place] = number
    found, exact = gflow.nn.Graph.trace(step)(*given), step(*(t.double() for t in given))
    for ours, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, wanted.float(), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.usefixtures("always")
def test_sums_that_overflow_in_the_transforms() -> None:
    """Four elements of the input of 2e38 have a sum beyond float32, where the convolution is finite."""
    s = Sizes(1, 16, 32, (8, 8))
    x, w, b, dy = _given(s)
    x, w = torch.full_like(x, 2e38), w * 1e-3
    found, exact = (
        gflow.nn.Graph.trace(_step(s))(x, w, b, dy),
        _step(s)(*(t.double() for t in (x, w, b, dy))),
    )
    for ours, wanted in zip(found[:2], exact, strict=False):
        assert ours.isfinite().all()
        assert (ours.double() - wanted).norm() <= 1e-5 * wanted.norm()
    large = torch.full_like(dy, 2e38)
    (_, dx, dw), (_, dx64, dw64) = (
        gflow.nn.Graph.trace(_step(s))(x * 1e-38, w, b, large),
        _step(s)(*(t.double() for t in (x * 1e-38, w, b, large))),
    )
    torch.testing.assert_close(dx, dx64.float(), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(dw, dw64.float(), rtol=1e-4, atol=0.0)


def test_a_training_step_with_and_without_it() -> None:
    """It is the default where it is faster, and the switch leaves it out."""
    network = nn.Sequential(
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)
    )  # fmt: skip

    class Step(gflow.nn.Graph):
        def __init__(self, mode: bool) -> None:
            super().__init__()
            self.network = network
            self.config.enable_winograd(mode)
            self.add_optimizer(torch.optim.SGD(network.parameters(), lr=0.0))

        def build(self, x: Tensor) -> Tensor:
            loss = self.network(x).square().mean()
            loss.backward()
            return loss

    x = torch.randn(4, 32, 32, 32)
    with_it, without = Step(True), Step(False)
    torch.testing.assert_close(with_it(x), without(x), rtol=1e-5, atol=0.0)
    assert any(n.startswith("winograd") for n in _kernels(with_it, x))
    assert not any(n.startswith("winograd") for n in _kernels(without, x))


@torch.no_grad()
def test_frozen_weights() -> None:
    """They are not packed for windows in place where the algorithm is faster."""
    network = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()).eval()

    class Frozen(gflow.nn.Graph):
        def __init__(self, mode: bool) -> None:
            super().__init__()
            self.network = network
            self.config.freeze()
            self.config.enable_winograd(mode)

        def build(self, x: Tensor) -> Tensor:
            return self.network(x)

    x = torch.randn(4, 32, 32, 32)
    for mode in (True, False):
        graph = Frozen(mode)
        torch.testing.assert_close(graph(x), network(x), rtol=1e-4, atol=1e-5)
        names = _kernels(graph, x)
        assert any(n.startswith("winograd") for n in names) is mode
        assert any(n.startswith("packed_product") for n in names) is not mode


def test_choices_that_no_code_follows() -> None:
    what = "has a blocking of Winograd's algorithm"
    for tile, block in (((12, 40), (24,)), ((12, 32), (25,)), ((12, 32), (24, 1))):
        with pytest.raises(CannotLower, match=what):
            Choice("winograd", tile=tile, block=block).winograd()
    for tile, block in (((12, 32), (48, 3, 48)), ((12, 32), (48, 4, 40)), ((12, 32), (48,))):
        with pytest.raises(CannotLower, match=what):
            Choice("winograd", tile=tile, block=block).winograd_gradient()
