"""Python integers as arguments: the second value makes one an input of the program, with Python's arithmetic."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import gflow

X = torch.linspace(-2, 2, 12).reshape(3, 4)
INTS = torch.arange(-6, 6).reshape(3, 4)
LEAST, MOST = -(2**63), 2**63 - 1


def assert_same(found: Any, wanted: Any) -> None:
    for a, b in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        assert type(a) is type(b)
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b, equal_nan=True)  # dtypes, too
        else:
            assert a == b


def updated(x: Tensor, n: int) -> Tensor:
    y = x.clone()
    y[0] = n
    y[:, 1] += n
    return y.mul_(n).clamp_(-abs(n), abs(n))


#: what takes an integer → how many programs calls with 20 of them make
TAKERS: dict[str, tuple[Callable[[Tensor, int], Any], int]] = {
    "arithmetic": (lambda x, n: (x * n + n, n - x, x / n, n / (x + 3), x // n, x % n), 2),
    "integers": (lambda x, n: (INTS * n, n - INTS, INTS / n, INTS // n, INTS % n, INTS & n, INTS | n, INTS << n), 2),
    "narrow": (lambda x, n: (INTS.to(torch.int8) * n, (x > 0) * n, x.half() * n, torch.arange(3) + n), 2),
    "comparisons": (lambda x, n: (x > n, n >= INTS, n == INTS, n > INTS.int()), 2),
    "powers": (lambda x, n: (x.abs() ** n, INTS**n, n ** x.abs()), 2),
    "python": (lambda x, n: x * (n + 1) * (n * n) * (n // 3 + 1) * (n / 3) * -n * (n & 7 | 1), 2),
    "more of python": (lambda x, n: (x * (2**n) + (n >> 1), x * n**-1, x + divmod(n, 7)[1], x + ~n), 3),
    "values": (lambda x, n: (torch.full((3,), n), torch.tensor(n), torch.tensor([n, 2.5])), 2),
    "choices": (lambda x, n: (torch.where(x > 0, n, 0), x.masked_fill(x > 0, n), x.clamp(max=n)), 2),
    "updates": (updated, 2),
    "a branch": (lambda x, n: x + 1 if n > 9 else x * n, 3),
    "its type": (lambda x, n: x * n if isinstance(n, int) else x, 2),
    "its exact type": (lambda x, n: x * n * {int: 2, float: 3}.get(type(n), 5) if type(n / 2) is float else x, 2),
}  # fmt: skip


@pytest.mark.parametrize("what", TAKERS)
def test_an_integer_that_changes(what: str) -> None:
    function, programs = TAKERS[what]
    fast = gflow.compile(function)
    for n in range(1, 21):
        assert_same(fast(X, n), function(X, n))
    assert len(fast.explain_recompiles()) <= programs


def test_integers_that_float64_and_int64_do_not_hold() -> None:
    """Python's quotients are rounded once, and its products have no end."""

    def function(x: Tensor, n: int) -> tuple[Tensor, ...]:
        return (
            INTS * n,
            INTS + n,
            n == INTS,
            x.double() * n,
            x * n,
            x.double() * (n / 3),
            x.double() * (n * n // n * 1.0),
        )

    fast = gflow.compile(function)
    values = (3, 5, 2**53 + 1, -(2**53) - 3, 2**62 + 1, MOST, LEAST, LEAST + 1, 2**31, 2**63, -7)
    for n in values:
        found, wanted = fast(X, n), function(X, n)
        for a, b in zip(found, wanted, strict=True):
            if b.dtype == torch.float32:
                torch.testing.assert_close(a, b)
            else:
                assert torch.equal(a, b), n
    for n in (LEAST - 1, 2**100):
        with pytest.raises(OverflowError):
            fast(X, n)


def test_values_with_rules_of_their_own() -> None:
    function = lambda x, n: (x * n, 1 / (x * n + 9), torch.addmm(X, X, X.T @ X, beta=n))  # noqa: E731
    fast = gflow.compile(function)
    bad = torch.full_like(X, math.nan)
    with_bad = gflow.compile(lambda x, n: torch.addmm(bad, X, X.T @ X, beta=n - 3))
    for n in (1, 2, 0, -1, True, False, 2.0, 3, 4):
        assert_same(fast(X, n), function(X, n))
    before = len(fast.explain_recompiles())
    for n in range(4, 20):
        fast(X, n)
    assert len(fast.explain_recompiles()) == before
    for n in (1, 2, 3, 4):
        assert with_bad(X, n).isnan().any() == (n != 3)


def test_refusals_of_eager_come_for_later_values() -> None:
    small = torch.arange(3, dtype=torch.uint8)
    fast = gflow.nn.Graph.trace(lambda x, n: small.clone().fill_(n))
    power = gflow.nn.Graph.trace(lambda x, n: INTS**n)
    for n in (1, 2, 3, 200):
        assert torch.equal(fast(X, n), torch.full_like(small, n))
        assert torch.equal(power(X, n), INTS**n)
    with pytest.raises(gflow.GraphTraceError, match="uint8 cannot hold"):
        fast(X, 1000)
    with pytest.raises(gflow.GraphTraceError, match="negative integer power"):
        power(X, -1)
    assert torch.equal(fast(X, 201), torch.full_like(small, 201))
    assert len(power.explain_recompiles()) == len(fast.explain_recompiles()) == 2


#: what needs the integer itself
NEEDS: dict[str, Callable[[Tensor, int], Any]] = {
    "a size": lambda x, n: torch.zeros(n) + x.sum(),
    "range": lambda x, n: sum((x * i for i in range(n)), x),
    "its text": lambda x, n: x * len(f"{n:04}" + str(n) + repr(n)),
    "a key": lambda x, n: x * {1: 2, 2: 5}.get(n, 9),
    "a dimension": lambda x, n: x.sum(n % 2),
    "its methods": lambda x, n: x * n.bit_length(),
    "a result": lambda x, n: (x, n + 1),
}


@pytest.mark.parametrize("what", NEEDS)
def test_what_needs_the_integer_says_so(what: str, caplog: pytest.LogCaptureFixture) -> None:
    function = NEEDS[what]
    fast = gflow.compile(function)
    with caplog.at_level(logging.WARNING, logger="gflow"):
        for n in (1, 2, 2, 3, 1, 11):
            assert_same(fast(X, n), function(X, n))
    said = [r.message for r in caplog.records if "for each value" in r.message]
    assert len(said) == 1
    assert "args.1" in said[0]
    assert len(fast.explain_recompiles()) == 4


def test_reasons_name_the_integer() -> None:
    fast = gflow.compile(lambda x, n: x + 1 if n > 5 else x * n)
    for n in (1, 2, 9):
        fast(X, n)
    _, second, third = fast.explain_recompiles()
    assert "'args.1' is an int that varies, the graph takes 1" in second.reason
    assert "args.1 > 5" in third.reason


def test_a_training_step_takes_its_count() -> None:
    class Step(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x: Tensor, step: int) -> Tensor:
            loss = self.model(x).square().mean() * (1 / (1 + step))
            loss.backward()
            return loss

    model = nn.Linear(4, 1)
    weights = [p.detach().clone().requires_grad_() for p in model.parameters()]
    graph, optimizer = Step(), torch.optim.SGD(weights, lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        loss = nn.functional.linear(X, *weights).square().mean() * (1 / (1 + step))
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(graph(X, step), loss.detach())
    torch.testing.assert_close(list(model.parameters()), weights)
    assert len(graph.explain_recompiles()) == 2


def test_gradients_and_floats_beside() -> None:
    fast = gflow.compile(lambda x, n, s: (x * n * s).exp().sum())
    x = torch.linspace(0, 0.1, 5, requires_grad=True)
    calls = [(n, 1.0 / n) for n in (1, 2, 3, 4)]
    sum(fast(x, n, s) for n, s in calls).backward()
    torch.testing.assert_close(x.grad, sum((n * s * (n * s * x).exp()).detach() for n, s in calls))
    assert len(fast.explain_recompiles()) == 2


def test_saved_graphs_take_integers(tmp_path: Path) -> None:
    graph = gflow.nn.Graph.trace(lambda x, n: x * n if n > 3 else x + n)
    for n in (5, 7):
        graph(X, n)
    gflow.save(graph, tmp_path / "graph")
    loaded = gflow.load(tmp_path / "graph")
    for n in (5, 7, 11, 2**40):
        torch.testing.assert_close(loaded(X, n), X * n)
    for n in (2, 0, 7.0, True, 2**63):
        with pytest.raises(ValueError, match="lambda"):
            loaded(X, n)


def test_switched_off() -> None:
    off = gflow.compile(lambda x, n: x * n, dynamic=False)
    for n in (1, 2, 3):
        off(X, n)
    assert len(off.explain_recompiles()) == 3


def test_a_size_beside_an_integer(caplog: pytest.LogCaptureFixture) -> None:
    apart = gflow.compile(lambda x, n: (x * n).sum() / x.shape[0])
    mixed = gflow.compile(lambda x, n: x * (x.shape[0] - n))
    with caplog.at_level(logging.WARNING, logger="gflow"):
        for n in range(2, 8):
            x = torch.randn(3 * n)
            torch.testing.assert_close(apart(x, n), (x * n).sum() / x.shape[0])
            torch.testing.assert_close(mixed(x, n), x * (x.shape[0] - n))
    assert len(apart.explain_recompiles()) <= 3
    (said,) = [r.message for r in caplog.records if "each size" in r.message]
    assert "a number that varies and a size that varies" in said
