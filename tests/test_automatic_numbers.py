"""Python floats as arguments: the second value makes one an input of the program."""

from __future__ import annotations

import copy
import logging
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gflow

X = torch.linspace(-2, 2, 12).reshape(3, 4)
VALUES = (0.5, 0.25, 1.5, 0.25)


def updated(x: Tensor, s: float) -> Tensor:
    y = x.clone()
    y[0] = s
    y[:, 1] += s
    return y.mul_(s).clamp_(-s, s)


#: what takes a number → how many programs four calls of three values make
TAKERS: dict[str, tuple[Callable[[Tensor, float], Any], int]] = {
    "arithmetic": (lambda x, s: (x * s + s - x / s, x // s, s - x, x.abs() ** s, s * 2 - 1), 4),
    "arithmetic of tensors": (lambda x, s: (x * s + s - x / s, x // s, s - x, x.abs() ** s), 2),
    "integers": (lambda x, s: (x.int() * s, (x > 0) * s, torch.arange(3) / s, x > s), 2),
    "keywords": (lambda x, s: torch.add(torch.addcmul(x, x, x, value=s), x, alpha=s), 2),
    "functions": (lambda x, s: F.elu(F.leaky_relu(x, s), s) + torch.lerp(x, x + 1, s), 2),
    "values": (lambda x, s: torch.where(x > 0, torch.full((3, 4), s), torch.tensor(s)), 2),
    "updates": (updated, 2),
    "halves": (lambda x, s: (x.bfloat16() * s, x.half() + s), 2),
    "a choice": (lambda x, s: x + 1 if s > 0.3 else x - s, 3),
    "its type": (lambda x, s: x * s if isinstance(s, float) else x, 2),
    "a slice": (lambda x, s: x[: int(2 * s)], 4),
    "a function of Python's": (lambda x, s: x * math.floor(10 * s), 4),
}


@pytest.mark.parametrize("what", TAKERS)
def test_a_number_that_changes(what: str) -> None:
    function, programs = TAKERS[what]
    fast = gflow.compile(function)
    for value in VALUES:
        torch.testing.assert_close(fast(X, value), function(X, value))
    assert len(fast.explain_recompiles()) <= programs


def test_many_values_and_those_with_rules_of_their_own() -> None:
    fast = gflow.compile(lambda x, s: (x * s, 1 / x * s))
    for value in (0.1, 0.2, 0.0, -0.0, math.inf, math.nan, 0.3, -1e300, 5e-324):
        torch.testing.assert_close(fast(X, value), (X * value, 1 / X * value), equal_nan=True)
    before = len(fast.explain_recompiles())
    for n in range(1, 50):
        fast(X, 0.1 * n)
    assert len(fast.explain_recompiles()) == before


def test_what_needs_the_value_says_so(caplog: pytest.LogCaptureFixture) -> None:
    fast = gflow.compile(lambda x, s: x * float(s))
    with caplog.at_level(logging.WARNING, logger="gflow"):
        for value in VALUES:
            torch.testing.assert_close(fast(X, value), X * value)
    (said,) = [r.message for r in caplog.records if "for each value" in r.message]
    assert "args.1" in said


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.seen = 0.0, []

    def forward(self, x: Tensor, s: float) -> Tensor:
        self.last = s
        self.seen.append(s)
        return x * s


@pytest.mark.filterwarnings("ignore:build")
def test_no_traced_number_stays_behind() -> None:
    class Calls(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.m = Keeps()

        def build(self, x: Tensor, s: float) -> tuple[Tensor, float]:
            return self.m(x, s), s * 2

    graph = Calls()
    for value in VALUES[:3]:
        out, double = graph(X, value)
        torch.testing.assert_close(out, X * value)
        assert type(double) is float
        assert double == 2 * value
        assert type(graph.m.last) is float
    assert graph.m.seen == list(VALUES[:3])


def test_gradients_sizes_and_switches() -> None:
    fast = gflow.compile(lambda x, s: (x * s).exp().sum())
    x = torch.randn(5, requires_grad=True)
    sum(fast(x, s) for s in VALUES).backward()  # after calls with other values
    torch.testing.assert_close(x.grad, sum((s * (s * x).exp()).detach() for s in VALUES))
    for n, s in ((4, 0.5), (6, 0.7), (7, 0.9), (9, 0.2)):
        y = torch.randn(n)
        torch.testing.assert_close(fast(y, s), (y * s).exp().sum())
    assert len(fast.explain_recompiles()) <= 5
    off = gflow.compile(lambda x, s: x * s, dynamic=False)
    for s in VALUES:
        off(X, s)
    assert len(off.explain_recompiles()) == 3


def test_a_training_step_takes_its_weight() -> None:
    class Step(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

        def build(self, x: Tensor, weight: float = 1.0) -> Tensor:
            loss = self.model(x).square().mean() * weight
            loss.backward()
            return loss

    model = nn.Linear(4, 1)
    graph, eager = Step(), copy.deepcopy(model)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1, momentum=0.9)
    for weight in (1.0, 0.5, 0.25, 0.125):
        optimizer.zero_grad()
        loss = eager(X).square().mean() * weight
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(graph(X, weight), loss.detach())
    torch.testing.assert_close(model.weight, eager.weight)
    assert len(graph.explain_recompiles()) == 2


def test_saved_graphs_take_numbers(tmp_path: Path) -> None:
    graph = gflow.nn.Graph.trace(lambda x, s: x * s if s > 0.3 else x + s)
    for s in (0.5, 0.75):
        graph(X, s)
    gflow.save(graph, tmp_path / "graph")
    loaded = gflow.load(tmp_path / "graph")
    for s in (0.5, 0.75, 1.25):
        torch.testing.assert_close(loaded(X, s), X * s)
    for s in (0.25, 0.0, 1):
        with pytest.raises(ValueError, match="lambda"):
            loaded(X, s)


@pytest.mark.parametrize("kind", ["graph", "compiled", "with gradients"])
def test_threads_call_with_floats_and_sizes_of_their_own(kind: str) -> None:
    weight = torch.ones(1, requires_grad=kind == "with gradients")

    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * weight * by

    run: Any = gflow.nn.Graph.trace(scaled) if kind == "graph" else gflow.compile(scaled)
    for n, by in ((4, 0.5), (7, 0.25), (9, 0.75)):
        run(torch.ones(n), by)
    wrong: list[tuple[int, float]] = []

    def call(first: int) -> None:
        for i in range(100):
            n, by = 2 + (7 * first + i) % 30, first + (i + 1) / 128
            if not torch.equal(run(torch.ones(n), by).detach(), torch.full((n,), by)):
                wrong.append((n, by))

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
