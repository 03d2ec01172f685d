"""Optimizers that tell parameters apart by their ids, or keep them in sets and dicts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from mean_square import MeanSquare

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
    graph, other = MeanSquare(mine, optimizer), _Picky(want.parameters(), kept, late)
    for _ in range(3):
        x = torch.randn(4, 3, dtype=torch.float64)
        other.zero_grad()
        want(x).square().mean().backward()
        other.step()
        graph(x)
    torch.testing.assert_close(list(mine.parameters()), list(want.parameters()))
    assert optimizer.members == {mine.bias}
