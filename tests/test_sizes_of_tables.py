"""Tables of a fixed size, of which calls of varying sizes use a part: slices, padding to the greatest length, and their
gradients. Which of two sizes is smaller must not be decided once for all calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gflow
from gflow.dialects.extents import Symbol, is_ordered, size_of_program

ROWS = 16
#: below, at and above the half of the table, both ways
LENGTHS = (5, 7, 16, 4, 9, 3, 15, 2)


def _assigned(table: Tensor, x: Tensor, n: int) -> Tensor:
    y = torch.zeros(ROWS, 4, dtype=x.dtype)
    y[ROWS - n :] = x * 2
    return y * table


def _updated(table: Tensor, x: Tensor, n: int) -> Tensor:
    y = table * 2.0
    y[:n] += x
    y[n:] *= 3
    return y


PARTS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "first rows": lambda t, x, n: x + t[:n],
    "last rows": lambda t, x, n: x + t[-n:] * t[ROWS - n :],
    "last rows alone": lambda t, x, n: t[ROWS - n :] * 1.5,
    "one row": lambda t, x, n: x + t[n - 1] * t[-n],
    "narrow": lambda t, x, n: x * t.narrow(0, ROWS - n, n),
    "padded behind": lambda t, x, n: F.pad(x, (0, 0, 0, ROWS - n)) * t,
    "padded before": lambda t, x, n: F.pad(x, (0, 0, ROWS - n, 0), value=2.0) * t,
    "cut": lambda t, x, n: F.pad(t, (0, 0, 0, n - ROWS)) + F.pad(t, (0, 0, n - ROWS, 0)) * x,
    "assigned": _assigned,
    "updated": _updated,
    "scattered": lambda t, x, n: torch.slice_scatter(t, x, 0, 0, n)
    + torch.slice_scatter(t, x, 0, ROWS - n, ROWS),
    "rolled": lambda t, x, n: torch.roll(x, 8 - n, 0) + torch.roll(t, n, 0)[:n],
    "diagonals": lambda t, x, n: (x @ t.t()).diagonal(1).sum() + (t @ x.t()).diagonal(-1).sum() + x,
    "joined": lambda t, x, n: torch.cat([x, t[n:]]) * torch.cat([t[: ROWS - n], x]),
    "variance": lambda t, x, n: t[: n + 3].var(0, correction=4) + x,
}  # fmt: skip


class Net(nn.Module):
    def __init__(self, part: Callable[[Tensor, Tensor, int], Tensor]) -> None:
        super().__init__()
        self.part = part
        self.table = nn.Parameter(
            torch.randn(ROWS, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.table, x, x.shape[0])


class Step(gflow.nn.Graph):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def _rows(n: int) -> Tensor:
    return torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(n))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("name", PARTS)
def test_steps_of_many_lengths(name: str) -> None:
    eager = Net(PARTS[name])
    model = copy.deepcopy(eager)
    graph, optimizer = Step(model, _sgd(model)), _sgd(eager)
    for n in LENGTHS:
        x = _rows(n)
        optimizer.zero_grad()
        loss = eager(x).square().mean()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(graph(x), loss.detach())
        torch.testing.assert_close(model.table, eager.table)
    if name in ("first rows", "padded behind", "padded before"):
        assert len(graph.explain_recompiles()) == 2


@pytest.mark.parametrize("way", ["gflow.compile", "torch.compile"])
@pytest.mark.parametrize("name", ["last rows", "last rows alone", "padded before", "scattered"])
def test_gradients_of_many_lengths(name: str, way: str) -> None:
    eager = Net(PARTS[name])
    model = copy.deepcopy(eager)
    torch._dynamo.reset()
    run: Any = (
        gflow.compile(model) if way == "gflow.compile" else torch.compile(model, backend="gflow")
    )
    for n in LENGTHS:
        x, again = _rows(n).requires_grad_(), _rows(n).requires_grad_()
        eager.zero_grad()
        model.zero_grad()
        want, got = eager(x), run(again)
        want.square().sum().backward()
        got.square().sum().backward()
        for a, b in ((got, want), (model.table.grad, eager.table.grad), (again.grad, x.grad)):
            torch.testing.assert_close(a, b)


def test_two_sizes() -> None:
    table = nn.Parameter(torch.randn(41, 3, dtype=torch.float64))

    def parts(x: Tensor) -> Tensor:
        first, half = table.as_strided((x.shape[0], 3), (3, 1)), table[: x.shape[0] // 2]
        return x.sum() * (first.square().sum() + half.sum())

    torch._dynamo.reset()
    run: Any = torch.compile(parts, backend="gflow")
    for n, m in ((2, 4), (9, 6), (5, 9), (2, 9), (17, 40)):
        x = torch.randn(n, m, dtype=torch.float64)
        (want,) = torch.autograd.grad(parts(x), table)
        (got,) = torch.autograd.grad(run(x), table)
        torch.testing.assert_close(got, want)


def test_gradient_of_a_row_from_the_end_by_one_of_two_sizes() -> None:
    """The row's index from the start was read as a constant, and the table got no gradient."""
    table = torch.randn(41, 3, dtype=torch.float64, requires_grad=True)
    divisor = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)

    def parts(y: Tensor, x: Tensor) -> list[Tensor]:
        return [table[-x.shape[1]] * 1.5, torch.fmod(y, divisor)]

    compiled = torch.compile(parts, backend="gflow")
    for n, m in ((7, 16), (12, 40), (3, 3), (7, 3), (17, 5), (41, 6)):
        y, x = torch.randn(m, dtype=torch.float64), torch.randn(1, n)
        found, wanted = (
            torch.autograd.grad(sum(z.sum() for z in f(y, x)), [table, divisor])
            for f in (compiled, parts)
        )
        for a, b in zip(found, wanted):
            torch.testing.assert_close(a, b)


def test_order_of_sizes() -> None:
    outer = Symbol("n", 2, 64)
    with size_of_program(outer):
        n = outer.stand_in
        assert is_ordered(0, n, 64)
        assert is_ordered(0, 64 - n)
        assert not is_ordered(n, 63)
        assert not is_ordered(3, n)
    both = replace(outer, second=Symbol("m", 1, 20)).standing(0)
    assert both.second is not None
    with size_of_program(both):
        m = both.second.stand_in
        assert is_ordered(0, m, 41)
        assert not is_ordered(41, m)
        assert is_ordered(m, m * both.stand_in)


def test_windows_that_tile_some_sizes() -> None:
    """The stand-in of n + 1 is even."""
    graph = gflow.nn.Graph.trace(lambda x: F.adaptive_avg_pool1d(F.pad(x, (0, 1)), 2))
    for n in (5, 7, 6, 9, 3, 12):
        x = torch.randn(2, 3, n)
        torch.testing.assert_close(graph(x), F.adaptive_avg_pool1d(F.pad(x, (0, 1)), 2))
