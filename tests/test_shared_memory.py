"""Different tensors in one memory: parameters, buffers, inputs; one of them is updated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import gflow


class Run(gflow.nn.Graph):
    def __init__(self, run: Callable[..., Any], model: nn.Module | None, *optimizers: Any) -> None:
        super().__init__()
        self.run, self.model = run, model
        for optimizer in optimizers:
            self.add_optimizer(optimizer)

    def build(self, *args: Any) -> Any:
        return self.run(*args) if self.model is None else self.run(self.model, *args)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x).square().mean()
    loss.backward()
    return loss


class Tied(nn.Module):
    """Weights in one memory: one whole, one transposed's part, one that is read only."""

    def __init__(self, part: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.second.weight.data = self.first.weight.data
        if part:
            self.third = nn.Linear(4, 2, bias=False)
            self.third.weight.data = self.first.weight.data[1:3]
        self.register_buffer("row", self.first.weight.data[0])

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).tanh()) + self.row
        return self.third(x) if hasattr(self, "third") else x


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("make", [optim.SGD, optim.Adam])
def test_parameters_in_one_memory(make: Any, part: bool) -> None:
    model, other = Tied(part), Tied(part)
    more = [model.third] if part else []
    optimizers = [
        make(model.first.parameters(), lr=0.1),
        make([model.second.weight, *[m.weight for m in more]], lr=0.05),
    ]
    references = [
        make(other.first.parameters(), lr=0.1),
        make([p for n, p in other.named_parameters() if "first" not in n], lr=0.05),
    ]
    graph = Run(loss_of, model, *optimizers)
    for _ in range(4):
        x = torch.randn(3, 4)
        for o in references:
            o.zero_grad()
        torch.testing.assert_close(graph(x), loss_of(other, x))
        for o in references:
            o.step()
        torch.testing.assert_close(model.state_dict(), other.state_dict())
    assert model.second.weight.data_ptr() == model.first.weight.data_ptr()
    model.second.weight.data = model.second.weight.data.clone()  # no longer
    other.second.weight.data = other.second.weight.data.clone()
    x = torch.randn(3, 4)
    for o in references:
        o.zero_grad()
    torch.testing.assert_close(graph(x), loss_of(other, x))
    for o in references:
        o.step()
    torch.testing.assert_close(model.state_dict(), other.state_dict())


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.arange(12.0).view(3, 4))
        self.register_buffer("row", self.whole[1])
        self.register_buffer("column", self.whole[:, 2])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        before = self.row * x
        self.whole.add_(1)
        between = self.column.sum() + self.row
        self.column.mul_(2)
        return before, between, self.whole * x


def test_buffers_that_are_views() -> None:
    model = Cache()
    other = copy.deepcopy(model)
    graph, x = Run(lambda m, x: m(x), model), torch.randn(4)
    for _ in range(3):
        for mine, theirs in zip(graph(x), other(x)):
            torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(model.state_dict(), other.state_dict())
    assert model.row.data_ptr() == model.whole[1].data_ptr()


def test_a_view_that_is_no_attribute() -> None:
    model = nn.Linear(4, 3)
    bias = model.bias.detach()
    other = copy.deepcopy(model)
    view = other.bias.detach()

    def step(m: nn.Linear, held: Tensor, x: Tensor) -> Tensor:
        loss = (m(x) * held).sum()
        loss.backward()
        return loss

    graph = Run(lambda m, x: step(m, bias, x), model, optim.SGD(model.parameters(), lr=0.1))
    reference = optim.SGD(other.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(2, 4)
        reference.zero_grad()
        torch.testing.assert_close(graph(x), step(other, view, x))
        reference.step()


def test_parts_that_overlap_are_refused() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            memory = torch.zeros(6)
            self.register_buffer("head", memory[:4])
            self.register_buffer("tail", memory[2:])

        def forward(self, x: Tensor) -> Tensor:
            self.head.add_(x)
            return self.tail + x

    graph = Run(lambda m, x: m(x), Parts())
    with pytest.raises(
        gflow.GraphTraceError,
        match=r"buffer 'model\.head' is updated, .* memory with buffer 'model\.tail'",
    ):
        graph(torch.ones(4))


def test_inputs_in_the_memory_of_others() -> None:
    model = Cache()
    graph = Run(lambda m, x: m(x), model)
    with pytest.raises(
        gflow.GraphInputError,
        match=r"test_shared_memory.py:\d+: build\(\) updates buffer 'model.whole' in place.*'args.0'",
    ):
        graph(model.whole[2])

    # parameters change after all that reads the input
    linear = nn.Linear(4, 4)
    other = copy.deepcopy(linear)
    train = Run(loss_of, linear, optim.SGD(linear.parameters(), lr=0.1))
    reference = optim.SGD(other.parameters(), lr=0.1)
    for _ in range(2):
        reference.zero_grad()
        loss = loss_of(other, other.weight.detach())
        torch.testing.assert_close(train(linear.weight.detach()), loss)
        reference.step()
        torch.testing.assert_close(linear.state_dict(), other.state_dict())

    # an input that changes, and others in one memory with it
    def change(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2

    changing, memory = Run(change, None), torch.arange(6.0)
    assert changing(memory[:2], memory[2:4]).tolist() == [4, 6]
    assert memory.tolist() == [1, 2, 2, 3, 4, 5]
    with pytest.raises(gflow.GraphInputError, match=r"shares memory with input 'args\.1'"):
        changing(memory[:2], memory[1:3])


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("through", ["gflow.compile", "torch.compile"])
def test_updates_of_arguments_in_one_memory(through: str, needs_grad: bool) -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        return y[0], (y * x.sum()).sum()

    def run(function: Any) -> Any:
        start = torch.arange(40.0).requires_grad_(needs_grad)
        memory = start * 1
        view, loss = function(memory[:10], memory[5:20].view(3, 5))
        if needs_grad:
            loss.backward()
        return memory.detach(), view.detach(), loss.detach(), start.grad

    torch._dynamo.reset()
    compiled = (
        gflow.compile(update)
        if through == "gflow.compile"
        else torch.compile(update, backend="gflow")
    )
    for one, other in zip(run(compiled), run(update)):
        assert (one is None and other is None) or torch.equal(one, other)
