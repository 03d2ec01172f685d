"""Optimizers that tell parameters apart: by their ids, in sets and dicts, in closures and globals, by modules."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mean_square import MeanSquare, beside_eager

import gflow as flow

Tensor = torch.Tensor


class _Picky(torch.optim.Optimizer):
    """Parameters with one dimension have a rate of their own. kept: where they are noted. late: whether a step makes
    state from gradients, so that a graph's first step is made op by op."""

    def __init__(self, parameters: Any, kept: str, late: bool) -> None:
        super().__init__(parameters, {"lr": 0.1})
        every = [p for group in self.param_groups for p in group["params"]]
        picked = [p for p in every if p.ndim == 1]
        self.kept, self.late = kept, late
        self.ids = {id(p) for p in picked}
        self.numbers = {id(p): 0.3 for p in picked}
        self.members = set(picked)
        self.frozen = frozenset(picked)
        self.rates = dict.fromkeys(picked, 0.3)
        for group in self.param_groups:
            if kept == "own":
                group["own"] = {p for p in picked if any(p is q for q in group["params"])}

    def _rate(self, p: Tensor, group: dict[str, Any]) -> float:
        if self.kept == "numbers":
            return self.numbers.get(id(p), 0.1)
        if self.kept == "rates":
            return self.rates.get(p, 0.1)
        if self.kept == "ids":
            return 0.3 if id(p) in self.ids else 0.1
        members = group["own"] if self.kept == "own" else getattr(self, self.kept)
        return 0.3 if p in members else 0.1

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if self.late:
                    state = self.state[p]
                    state["last"] = p.grad.clone() if not state else 0.5 * state["last"] + p.grad
                p.sub_(self._rate(p, group) * (self.state[p]["last"] if self.late else p.grad))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kept", ["ids", "numbers", "members", "frozen", "rates", "own"])
def test_parameters_are_known(kept: str, late: bool) -> None:
    torch.manual_seed(0)
    mine = torch.nn.Linear(3, 2).double()
    want = copy.deepcopy(mine)
    optimizer = _Picky(mine.parameters(), kept, late)
    beside_eager(mine, optimizer, want, _Picky(want.parameters(), kept, late), 3)
    assert optimizer.members == {mine.bias}


CHOSEN: set[Tensor] = set()
Rate = Callable[[Tensor], float]


def _in_a_global(model: torch.nn.Linear) -> Rate:
    CHOSEN.add(model.bias)
    return lambda p: 0.3 if p in CHOSEN else 0.1


def _in_a_dict(model: torch.nn.Linear) -> Rate:
    rates = {model.weight: 0.1, model.bias: 0.3}
    return lambda p: rates[p]


def _is_another(model: torch.nn.Linear) -> Rate:
    special = model.bias
    return lambda p: 0.3 if p is special else 0.1


def _of_a_module(model: torch.nn.Linear) -> Rate:
    return lambda p: 0.3 if p is model.bias else 0.1


def _by_a_weak_reference(model: torch.nn.Linear) -> Rate:
    special = weakref.ref(model.bias)
    return lambda p: 0.3 if p is special() else 0.1


def _by_its_place(model: torch.nn.Linear) -> Rate:
    order = tuple(model.parameters())
    return lambda p: 0.1 * (2 + [q is p for q in order].index(True))


def _of_a_partial(model: torch.nn.Linear) -> Rate:
    def rate(chosen: frozenset[Tensor], p: Tensor) -> float:
        return 0.3 if p.mul_(1.0) in chosen else 0.1  # what was updated in place is the parameter

    return functools.partial(rate, frozenset([model.bias]))


class _Choosing(torch.optim.Optimizer):
    """Where the rate is above 0.2, momentum, which begins with a gradient, so that a graph makes its first step op by
    op. averages: parameters with their moving averages, which a step updates."""

    def __init__(self, model: torch.nn.Module, rate: Rate, averages: dict[Tensor, Tensor]) -> None:
        super().__init__(model.parameters(), {"lr": 1.0})

        def choose(p: Tensor) -> tuple[float, Tensor]:
            return rate(p), averages[p]

        self.choose = choose

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            rate, average = self.choose(p)
            update, state = p.grad, self.state[p]
            if rate > 0.2:
                state["last"] = update = (
                    p.grad.clone() if not state else state["last"] * 0.5 + p.grad
                )
            p.sub_(rate * update)
            average.mul_(0.9).add_(p, alpha=0.1)


@pytest.mark.parametrize(
    "how",
    [_in_a_global, _in_a_dict, _is_another, _of_a_module, _by_a_weak_reference, _by_its_place, _of_a_partial],
)  # fmt: skip
def test_parameters_that_a_step_finds_elsewhere(how: Any) -> None:
    torch.manual_seed(0)
    mine = torch.nn.Linear(3, 2).double()
    want = copy.deepcopy(mine)
    averages = [{p: p.detach().clone() for p in m.parameters()} for m in (mine, want)]
    optimizer = _Choosing(mine, how(mine), averages[0])
    beside_eager(mine, optimizer, want, _Choosing(want, how(want), averages[1]), 3)
    torch.testing.assert_close(list(averages[0].values()), list(averages[1].values()))
    assert set(optimizer.state) == {mine.bias}


def test_another_choice_is_another_program() -> None:
    torch.manual_seed(0)
    mine = torch.nn.Linear(3, 2).double()
    want = copy.deepcopy(mine)
    chosen: list[set[Tensor]] = [{mine.bias}, {want.bias}]
    optimizers = []
    for n, model in enumerate((mine, want)):

        def rate(p: Tensor, n: int = n) -> float:
            return 0.2 if p in chosen[n] else 0.1

        optimizers.append(
            _Choosing(model, rate, {p: p.detach().clone() for p in model.parameters()})
        )
    graph = MeanSquare(mine, optimizers[0])
    x = torch.randn(4, 3, dtype=torch.float64)
    for step in range(4):
        if step == 2:
            chosen[0].add(mine.weight)
            chosen[1].add(want.weight)
        optimizers[1].zero_grad()
        want(x).square().mean().backward()
        optimizers[1].step()
        graph(x)
    torch.testing.assert_close(list(mine.parameters()), list(want.parameters()))


@pytest.mark.parametrize("run", [flow.nn.Graph.trace, flow.compile])
def test_a_parameter_of_no_module_is_not_written(run: Any) -> None:
    """Of which an argument may be a view, and which what eager has saved for a backward may be."""
    weight = torch.nn.Parameter(torch.arange(3.0))
    call = run(lambda x: (weight * x).sum())
    later = (weight * weight).sum()
    with torch.no_grad():
        for x in (torch.ones(3), weight[:], weight.detach()):
            assert call(x) == (weight * x).sum()
    assert weight._version == 0
    later.backward()
    torch.testing.assert_close(weight.grad, 2 * weight.detach())
