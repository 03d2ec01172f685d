"""`gflow.compile`: backwards in which some results take no part, beside eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflow as flow


class Heads(nn.Module):
    """Two results with parameters of their own behind common ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x).tanh()
        return self.first(h), self.second(h)


def test_training_one_of_two_heads() -> None:
    """What only the other depends on has no gradient: weights don't decay, and states don't step."""
    models = Heads(), Heads()
    runs = flow.compile(models[0]), models[1]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1, weight_decay=0.5) for m in models]
    for used in ((0,), (1,), (0, 1), (0,)):
        x = torch.randn(5, 4)
        for run, optimizer in zip(runs, optimizers):
            optimizer.zero_grad()
            results = run(x)
            sum(results[n].square().sum() for n in used).backward()  # type: ignore[union-attr]
            optimizer.step()
        for (name, a), b in zip(models[0].named_parameters(), models[1].parameters()):
            assert (a.grad is None) == (b.grad is None), (used, name)
            torch.testing.assert_close(a.detach(), b.detach())


def _sums(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * y, x.log() * y, torch.cat([x, y]).sqrt(), (x + y).unbind()[0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_derivatives_that_are_infinite(create_graph: bool) -> None:
    """0 · inf is NaN; no gradient is none."""
    x, y = (
        torch.tensor([0.0, 1.0], requires_grad=True),
        torch.tensor([2.0, 0.0], requires_grad=True),
    )
    fast = flow.compile(_sums)
    for used in ((0,), (1,), (2,), (3,), (0, 3), (0, 1, 2, 3)):
        found = []
        for run in (fast, _sums):
            loss = sum(t.sum() for n, t in enumerate(run(x, y)) if n in used)
            found.append(
                torch.autograd.grad(loss, (x, y), create_graph=create_graph, allow_unused=True)
            )
        torch.testing.assert_close(*found, equal_nan=True)


class _Odd(torch.autograd.Function):
    """Whose backward is not linear."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return a.exp() + b, torch.cat([a, b]).sum() + b.clamp(1, 2)


def test_cells_and_functions_of_ones_own() -> None:
    torch.manual_seed(0)
    cell = nn.LSTMCell(3, 4)
    x = torch.randn(2, 3, requires_grad=True)
    odd = flow.compile(lambda x: _Odd.apply(x * 1, x + 1))
    other = lambda x: _Odd.apply(x * 1, x + 1)  # noqa: E731
    for run, eager in ((flow.compile(copy.deepcopy(cell)), cell), (odd, other)):
        for used in (0, 1):
            found = [torch.autograd.grad(r(x)[used].sum(), x) for r in (run, eager)]
            torch.testing.assert_close(*found)
