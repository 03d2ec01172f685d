"""Python integers as arguments under `torch.compile(backend="gflow")`: inputs of one program, whatever they are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import gflow.dynamo.backend  # noqa: F401

X = torch.linspace(-2, 2, 12).reshape(3, 4)
INTS = torch.arange(-6, 6)


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def programs(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if "is compiled for" in r.message]


def check(function: Callable[[Tensor, int], Any], values: tuple[int, ...]) -> None:
    compiled = torch.compile(function, backend="gflow")
    for n in values:
        found, wanted = tree_leaves(compiled(X, n)), tree_leaves(function(X, n))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: (x * n + n / 3, n - x, x > n, torch.full((2,), n), x.masked_fill(x > 0, n)),
        lambda x, n: (INTS * n, INTS + (2 * n + 1), n == INTS, x.bfloat16() * n, x // n),
    ],
)
def test_one_program_for_all_values(
    function: Callable[[Tensor, int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="gflow"):
        check(function, (1, 2, 3, 7, -4, 5000, 2**40, 2**53 + 1, 2**61 + 1))
    assert len(programs(caplog)) == 1
    assert "numbers of any value" in programs(caplog)[0]


def test_numbers_that_no_program_takes_run_op_by_op(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gflow"):
        check(lambda x, n: x * (n * n), (2, 3, 5, 2**32 - 1, -7))
        function = torch.compile(lambda x, n: x * (n * n), backend="gflow")
    assert len(programs(caplog)) == 1
    assert function(X, 3).equal(X * 9)


def test_a_length_and_a_step_vary_together(caplog: pytest.LogCaptureFixture) -> None:
    layer = nn.Linear(4, 3)

    def step(x: Tensor, n: int) -> Tensor:
        return (layer(x) / (n + 1)).square().mean()

    compiled = torch.compile(step, backend="gflow")
    with caplog.at_level(logging.INFO, logger="gflow"):
        for n in range(2, 12):
            x = torch.randn(3 + 2 * n, 4)
            gradients = []
            for run in (compiled, step):
                layer.zero_grad()
                run(x, 10 * n).backward()
                gradients.append([p.grad.clone() for p in layer.parameters()])
            torch.testing.assert_close(*gradients)
    assert len(programs(caplog)) <= 2  # forward and backward, for a range of lengths


def test_kernels_with_rules_of_their_own() -> None:
    """`beta=0` leaves an operand out, integers have no negative powers, and int8 holds no 300."""
    bad = torch.full_like(X, float("inf"))
    check(lambda x, n: torch.addmm(bad, x, x.T @ x, beta=n - 3), (4, 5, 3, 6))
    check(lambda x, n: (x.abs() ** n, INTS**n), (2, 3, 5))
    fill: Any = torch.compile(lambda x, n: (x > 0).to(torch.int8).fill_(n), backend="gflow")
    constant: Any = torch.compile(lambda x: (x > 0).to(torch.int8).fill_(300), backend="gflow")
    for n in (2, 3, 100):
        assert fill(X, n).equal(torch.full((3, 4), n, dtype=torch.int8))
    with pytest.raises(RuntimeError, match=r"int8_t without overflow|int8 cannot hold"):
        fill(X, 300)
    with pytest.raises(RuntimeError, match=r"int8_t without overflow|int8 cannot hold"):
        constant(X)


@pytest.mark.parametrize(
    "function", [lambda x, n: (INTS << n, INTS >> n), lambda x, n: (x[n:], x.sum() + (n << 2))]
)
def test_shifts(function: Callable[[Tensor, int], Any]) -> None:
    check(function, (0, 1, 2, 3))


def test_floats_beside_remainders_of_sizes() -> None:
    """AOTAutograd knows no `%` for a Python float that it takes as a tensor: the float is a constant."""

    def scaled(x: Tensor, s: float) -> Any:
        rest = -x.shape[0] % 4
        return x * s * rest, x / (1.0 * rest + 1), nn.functional.pad(x, (0, 0, 0, rest)) * s

    compiled: Any = torch.compile(scaled, backend="gflow", dynamic=True)
    for n, s in ((3, 0.5), (4, 1.5), (6, 2.5), (9, 0.5)):
        x = torch.randn(n, 2)
        torch.testing.assert_close(compiled(x, s), scaled(x, s))
