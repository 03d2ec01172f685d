"""Arguments that come to share memory in a later call of `torch.compile` and `gflow.compile`, one of them updated; and
updates of arguments with values that have a gradient."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gflow as flow


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def _update(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    before = y * w
    x.add_(before.detach())
    return before + y


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile(gradients: bool, dynamic: bool, caplog: pytest.LogCaptureFixture) -> None:
    def grown(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        before = y * w
        x.mul_(2)
        return before + y

    fast = torch.compile(grown, backend="gflow", dynamic=dynamic)
    w = torch.full((4,), 3.0, requires_grad=gradients)
    for begin in (12, 2, 6, 0, 12, 8):
        found = []
        for run in (fast, grown):
            whole = torch.arange(16.0)
            first = whole[:4] if begin < 12 else whole[:4].clone()  # in memory of its own
            found.append((run(first, whole[begin : begin + 4], w), whole, first))
        torch.testing.assert_close(*found, msg=f"from {begin} on")
    said = [r for r in caplog.records if "share memory" in r.message]
    assert said


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_updated_argument_stays_and_another_one_moves_to_it(dynamic: bool) -> None:
    fast = torch.compile(lambda x, y: x.mul_(2) + y.sum(), backend="gflow", dynamic=dynamic)
    whole, other = torch.arange(32.0), torch.arange(32.0)
    # y: its tensor, first element and length
    calls = [
        (other, 0, 4),
        (other, 8, 4),
        (whole, 8, 4),
        (whole, 6, 4),
        (whole, 8, 4),
        (other, 0, 4),
    ]
    calls += [(whole, 8, 5), (whole, 0, 9), (whole, 7, 6), (other, 0, 6)] if dynamic else []
    for tensor, begin, length in calls:
        start = whole.clone()
        y = tensor[begin : begin + length]
        expected = start[:8] * 2  # eager updates x before it reads y
        start[:8] = expected
        given = start[begin : begin + length] if tensor is whole else y
        want = expected + given.sum()
        torch.testing.assert_close(fast(whole[:8], y), want, msg=f"{begin}, {length}")
        torch.testing.assert_close(whole, start)
        whole.copy_(torch.arange(32.0))


def test_gflow_compile_that_goes_through_dynamo() -> None:
    fast = flow.compile(_update)
    w = torch.ones(4, requires_grad=True)
    for begin in (12, 2, 6, 0, 12):
        found = []
        for run in (fast, _update):
            whole = torch.arange(16.0)
            first = whole[:4] if begin < 12 else whole[:4].clone()
            found.append((run(first, whole[begin : begin + 4], w), whole, first))
        torch.testing.assert_close(*found)


def test_columns_and_parameters_in_one_memory() -> None:
    """Which are apart: calls go on in the program."""
    whole = torch.arange(12.0).reshape(4, 3)
    fast = torch.compile(lambda x, y: x.add_(1) * 2 + y, backend="gflow")
    fast(torch.zeros(4), torch.zeros(4))
    assert torch.equal(fast(whole[:, 0], whole[:, 1]), torch.tensor([3.0, 12, 21, 30]))


def test_updates_with_values_that_have_a_gradient(caplog: pytest.LogCaptureFixture) -> None:
    """Which nothing reads: the argument's update takes no part, though a derivative of it is infinite."""

    def keeps(cache: Tensor, x: Tensor) -> Tensor:
        cache.copy_(x.log())
        return x * 2

    def updated(run: Any) -> list[Tensor]:
        x, cache = torch.tensor([0.0, 1.0], requires_grad=True), torch.zeros(2)
        result = run(cache, x)
        return [result, cache, *torch.autograd.grad(result.sum(), x)]

    fast = flow.compile(keeps)
    with caplog.at_level(logging.WARNING, logger="gflow"):
        for _ in range(2):
            torch.testing.assert_close(updated(fast), updated(keeps))
    assert "eager mode" in caplog.text


@pytest.mark.parametrize("updates", [None, "shared", "other"])
def test_an_argument_beside_what_is_detached_from_it(
    updates: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Tensors of their own in one memory: what counts is whether the graph updates it."""

    def function(x: Tensor, y: Tensor, other: Tensor) -> Tensor:
        result = (x + y).sin()
        if updates == "shared":
            y.add_(1)
        elif updates == "other":
            F.relu(other, inplace=True)
        return result + x * other

    found = []
    for run in (torch.compile(function, backend="gflow"), function):
        x = torch.arange(4.0, requires_grad=True)
        other = torch.tensor([-1.0, 1.0, -2.0, 2.0])
        result = run(x, x.detach(), other)
        found.append([result, *torch.autograd.grad(result.sum(), x), x.detach(), other])
    torch.testing.assert_close(*found)
    assert ("share memory" in caplog.text) == (updates == "shared")
