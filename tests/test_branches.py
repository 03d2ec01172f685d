"""Conditions on values that a program computes, in `build()`, beside eager: calls whose truths alternate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gflow
from gflow import nn
from gflow.compiler import CompileOptions
from gflow.errors import GraphTraceError
from gflow.optim import SGD, Adagrad


def _halved(x: Tensor) -> Tensor:
    """A loop until a condition holds."""
    while x.abs().max() > 1:
        x = x / 2
    return x


def _found(x: Tensor) -> Tensor:
    """An index that is in range in one branch only."""
    place = x[0, 0].long()
    return x[place].clone() if (place >= 0) & (place < 4) else x.sum(0)


CASES: dict[str, Callable[[Tensor], Any]] = {
    "finite": lambda x: (x * 2).clamp(-9, 9) if not torch.isfinite(x * 2).all() else x * 2,
    "inf": lambda x: x.nan_to_num() if torch.isinf(x).any() else x.exp(),
    "two": lambda x: (x + 1 if x.sum() > 0 else x - 1) * (2 if x[0, 0] > 0 else 3),
    "number": lambda x: x.log() if (x > 0).all().item() else x.abs(),
    "truth of a number": lambda x: x + 1 if (x > 0).sum() else x - 1,
    "allclose": lambda x: x + 1 if torch.allclose(x, x.relu()) else x - 1,
    "equal": lambda x: x + 1 if torch.equal(x, x.relu()) else x - 1,
    "loop": _halved,
    "index": _found,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_beside_eager(name: str) -> None:
    torch.manual_seed(0)
    graph = nn.Graph.trace(CASES[name])
    many, one = torch.rand(4, 3) + 0.5, torch.full((4, 3), float("inf"))
    one[0] = -7.0
    given = [many, -many, torch.ones(4, 3), one if name != "loop" else many * 40]
    for k in (0, 0, 1, 3, 1, 2, 0, 3):
        torch.testing.assert_close(graph(given[k]), CASES[name](given[k]))
    made = graph.explain_recompiles()
    assert 2 <= len(made) <= 4
    assert "the condition at" in str(made) or name == "loop"


class _Guarded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Linear(3, 4, bias=False), torch.nn.BatchNorm1d(4)
        self.last = torch.nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        if not torch.isfinite(h).all():
            h = h.nan_to_num(0.0)
        return self.last(h)


class _Training(nn.Graph):
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


@pytest.mark.parametrize("kind", [SGD, Adagrad, torch.optim.Rprop])
def test_training(kind: Any) -> None:
    """Nothing is updated by the run whose check fails, running statistics included."""
    torch.manual_seed(0)
    model = _Guarded()
    eager = copy.deepcopy(model)
    graph = _Training(model, kind(model.parameters(), lr=0.01))
    optimizer = getattr(torch.optim, kind.__name__)(eager.parameters(), lr=0.01)
    for k in range(6):
        x = torch.randn(8, 3)
        if k in (2, 3):
            x[0, 0] = float("inf")
        loss = graph(x)
        optimizer.zero_grad()
        expected = eager(x).square().mean()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), equal_nan=True)
    assert len(graph.explain_recompiles()) == 2


def test_random_numbers() -> None:
    """A call that runs again draws what it had drawn, and the generator goes on as after one run."""

    def drops(x: Tensor) -> Tensor:
        h = torch.nn.functional.dropout(x, 0.5)
        return h + 1 if x.sum() > 0 else h - 1

    def plain(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    found = []
    for function in (drops, plain):
        graph = nn.Graph.trace(function)
        torch.manual_seed(1)
        found.append([graph(sign * torch.ones(64)) for sign in (1, -1, 1, -1)])
        found[-1].append(torch.rand(3))
    for k, sign in enumerate((1, -1, 1, -1)):
        assert torch.equal(found[0][k] - sign, found[1][k])
    assert torch.equal(found[0][-1], found[1][-1])


class _Kept(torch.optim.Optimizer):
    """Makes its state from the first gradients, for which gflow runs the first step op by op."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            kept = state.setdefault("kept", p.grad * 0.5) if "kept" not in state else state["kept"]
            kept.mul_(0.9).add_(p.grad)
            p.add_(kept, alpha=-0.01)


def test_random_condition() -> None:
    """The first step draws other numbers than the trace, so its condition may have another truth."""

    class Drawn(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            noise, y = torch.rand(()), x * self.scale
            return torch.stack([noise, (y * 2 if noise > y[0] * 0.5 else y).square().mean()])

    class Training(_Training):
        def build(self, x: Tensor) -> Tensor:
            noise, loss = self.model(x).unbind()
            loss.backward()
            return torch.stack([noise, loss])

    for seed in range(4):
        model = Drawn()
        graph = Training(model, _Kept(model.parameters()))
        torch.manual_seed(seed)
        x, kept, scale = torch.ones(3), None, 1.0
        for _ in range(6):
            noise, loss = graph(x).tolist()
            factor = 4 if noise > scale * 0.5 else 1
            assert loss == pytest.approx(factor * scale**2, rel=1e-5)
            gradient = 2 * factor * scale
            kept = (gradient * 0.5 if kept is None else kept) * 0.9 + gradient
            scale -= 0.01 * kept
            assert model.scale.item() == pytest.approx(scale, rel=1e-5)
        assert len(graph.explain_recompiles()) <= 3


def test_saved(tmp_path: Path) -> None:
    """A saved program ends with an error for the other truth."""
    graph = nn.Graph.trace(CASES["finite"])
    x = torch.ones(4, 3)
    graph(x)
    gflow.save(graph, tmp_path / "graph")
    loaded = gflow.load(tmp_path / "graph")
    torch.testing.assert_close(loaded(x), x * 2)
    with pytest.raises(RuntimeError, match=r"condition 0 of the program.*is True"):
        loaded(x / 0)


def test_refused() -> None:
    """On a GPU a check comes too late, and an endless loop has no program."""
    graph = nn.Graph.trace(CASES["finite"])
    graph.config.compile_options = CompileOptions(target="sm_90")
    with pytest.raises(GraphTraceError, match="Python asks for the value of a tensor"):
        graph(torch.ones(4, 3))

    def endless(x: Tensor) -> Tensor:
        while x.sum() > 0:
            x = x + 1
        return x

    with pytest.raises(GraphTraceError, match="Python asks for the value of a tensor"):
        nn.Graph.trace(endless)(torch.ones(4, 3))
