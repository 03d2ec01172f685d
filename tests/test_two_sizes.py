"""Models in whose calls two sizes vary on their own, beside eager: one program follows both, where one can."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gflow
import gflow.dynamo.backend
from gflow.dialects.extents import Symbol, evaluate, horner, size_of_program, varies


class Model(nn.Module):
    def __init__(self, function: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.parts, self.function = nn.ModuleList(parts), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.parts)


class Step(gflow.nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))

    def build(self, x: Tensor) -> Tensor:
        y = self.model(x)
        y.square().mean().backward()
        return y


def _scores(x: Tensor, linear: nn.Module) -> Tensor:
    y = linear(x)
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return (y @ y.transpose(1, 2)).masked_fill(mask, -1e9).softmax(-1)


def _up(x: Tensor, a: nn.Module, down: nn.Module, up: nn.Module) -> Tensor:
    y = F.relu(a(x))
    return torch.cat([y, up(F.relu(down(y)))], 1)


def _windows(x: Tensor, linear: nn.Module) -> Tensor:
    b, c, h, w = x.shape
    y = x.view(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1)
    return linear(y.reshape(-1, 16, c))


def _conv(**words: Any) -> nn.Conv2d:
    return nn.Conv2d(3, 4, 3, **words)


_SEQUENCES = [(2, 6, 8), (3, 9, 8), (4, 12, 8), (3, 7, 8), (5, 30, 8)]
_IMAGES = [(2, 3, 8, 12), (2, 3, 12, 16), (2, 3, 16, 12), (2, 3, 8, 40)]
_SQUARES = [(2, 3, 8, 8), (3, 3, 12, 12), (3, 3, 8, 8)]

#: name: model, the shapes of its calls, and how many programs they have
_MODELS: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]], int]] = {
    "mean": (
        lambda: Model(lambda x, m: (m(x) / x.shape[1]).sum(1) / x.shape[0], nn.Linear(8, 4)),
        _SEQUENCES,
        2,
    ),
    "scores": (lambda: Model(_scores, nn.Linear(8, 4)), _SEQUENCES, 2),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        _SEQUENCES,
        2,
    ),
    "recurrence": (
        lambda: Model(lambda x, m: m(x)[0], nn.LSTM(8, 8, batch_first=True)),
        _SEQUENCES,
        2,
    ),
    "strided sequence": (
        lambda: Model(
            lambda x, m: m(x.transpose(1, 2)), nn.Conv1d(8, 4, 3, stride=2, padding=1)
        ),
        _SEQUENCES,
        3,
    ),
    "convolution": (lambda: Model(lambda x, m: m(x).relu(), _conv(padding=1)), _IMAGES, 2),
    "strides": (
        lambda: Model(
            lambda x, m, n: n(m(x).relu()),
            _conv(stride=2, padding=1),
            nn.Conv2d(4, 4, 3, stride=2, padding=1),
        ),
        _IMAGES,
        2,
    ),
    "pooling": (
        lambda: Model(lambda x, m: F.avg_pool2d(F.max_pool2d(m(x), 2), 2), _conv(padding=1)),
        _IMAGES,
        2,
    ),
    "resampling": (
        lambda: Model(lambda x, m: F.interpolate(m(x), scale_factor=2), _conv(padding=1)),
        _IMAGES,
        2,
    ),
    "shuffle": (lambda: Model(lambda x, m: F.pixel_shuffle(m(x), 2), _conv(padding=1)), _IMAGES, 2),
    "U-Net": (
        lambda: Model(
            _up, _conv(padding=1), nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 4, 2, 2)
        ),
        _IMAGES,
        2,
    ),
    "patches": (
        lambda: Model(
            lambda x, m, n: n(m(x).flatten(2).transpose(1, 2)).mean(1),
            nn.Conv2d(3, 8, 4, stride=4),
            nn.LayerNorm(8),
        ),
        _IMAGES,
        2,
    ),
    "windows": (lambda: Model(_windows, nn.Linear(3, 4)), _IMAGES, 2),
    "windows of squares": (lambda: Model(_windows, nn.Linear(3, 4)), _SQUARES, 2),
    "batch statistics": (
        lambda: Model(lambda x, m, n: n(m(x)), _conv(padding=1), nn.BatchNorm2d(4)),
        _IMAGES,
        2,
    ),
}  # fmt: skip
_QUICK = ("mean", "scores", "strided sequence", "resampling")


def _marked(names: Any) -> list[Any]:
    return [n if n in _QUICK else pytest.param(n, marks=pytest.mark.sweep) for n in names]


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.parametrize("name", _marked(_MODELS))
def test_training_steps(name: str) -> None:
    make, shapes, programs = _MODELS[name]
    model = make()
    eager = copy.deepcopy(model)
    step, optimizer = Step(model), torch.optim.SGD(eager.parameters(), lr=0.01)
    for shape in shapes:
        x = torch.randn(*shape)
        got, want = step(x), eager(x)
        optimizer.zero_grad()
        want.square().mean().backward()
        optimizer.step()
        torch.testing.assert_close(got, want.detach(), rtol=1e-4, atol=1e-5)
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    made = step.explain_recompiles()
    assert len(made) == programs, str(made)
    assert made[-1].sizes.count(" in ") == 2
    assert "Costs before and after" in str(step.explain())


@pytest.mark.parametrize("name", _marked(_MODELS))
@pytest.mark.parametrize(
    "way", ["gflow.compile", pytest.param("torch.compile", marks=pytest.mark.sweep)]
)
def test_gradients(name: str, way: str) -> None:
    make, shapes, programs = _MODELS[name]
    model = make()
    eager = copy.deepcopy(model)
    if way == "gflow.compile":
        run = gflow.compile(model)
    else:
        run = torch.compile(model, backend="gflow", dynamic=True)
    for shape in shapes:
        x = torch.randn(*shape)
        for call, own in ((run, model), (eager, eager)):
            own.zero_grad()
            call(x).square().mean().backward()
        for a, b in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)
    if way == "gflow.compile":
        assert len(run.explain_recompiles()) == programs


def test_integers_of_two_sizes() -> None:
    inner = Symbol("m", 1, 512, forms=((-2, 1), (1, 2)))
    first = Symbol("n", 1, 64, second=inner).standing(0)
    polynomials: list[Any] = [
        ((0, 1),), (0, 1), ((1, 1),), ((-1, 1),), (0, (0, 768)), (0, (0, 201_028)), ((0, 0, 1),),
        (0, (0, 0, 400)), ((1, 2),), (0, (48, 96)), (2_359_296,), (0, 2_359_296), (5, (0, 7)),
    ]  # fmt: skip
    for symbol in (first, first.standing(1)):
        with size_of_program(symbol):
            for c in polynomials:
                value = evaluate(c, symbol.place)
                assert symbol.coefficients(value) == c
                assert varies(value) == (c != (2_359_296,))
                assert symbol.at(value, (3, 5)) == evaluate(c, (3, 5)) == horner(c, [3, 5])
    assert first.text(evaluate((1, (0, 2)), first.place)) == "2*m*n + 1"
    assert first.is_count(evaluate((0, (-1, 1)), first.place))
    assert not first.is_count(evaluate((0, (-2, 1)), first.place))
