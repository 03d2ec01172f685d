"""What autograd keeps on tensors from outside: hooks, gradients, `requires_grad`, histories. A graph refuses or tells
of changes that would be lost, `gflow.compile` makes them at each call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gflow as flow
from gflow import nn


class Held:
    """Tensors that exist before the call."""

    def __init__(self) -> None:
        self.leaf = torch.ones(3, requires_grad=True)
        self.leaf.grad = torch.ones(3)
        self.plain = torch.zeros(3)
        self.bare = torch.ones(3, requires_grad=True)
        self.result = self.leaf * 2
        self.seen: list[float] = []

    def hook(self, x: Tensor) -> None:
        self.leaf.register_hook(lambda gradient: gradient * 2)

    def hook_after(self, x: Tensor) -> None:
        self.bare.register_post_accumulate_grad_hook(lambda p: self.seen.append(1.0))

    def assign(self, x: Tensor) -> None:
        self.leaf.grad = x.detach() * 2

    def clear(self, x: Tensor) -> None:
        self.leaf.grad = None

    def delete(self, x: Tensor) -> None:
        del self.leaf.grad

    def add(self, x: Tensor) -> None:
        assert self.leaf.grad is not None
        self.leaf.grad.add_(1)

    def replace(self, x: Tensor) -> None:
        self.plain.set_(torch.ones(3))  # type: ignore[call-overload]

    def detach(self, x: Tensor) -> None:
        self.result.detach_()

    def retain(self, x: Tensor) -> None:
        self.result.retain_grad()

    def freeze(self, x: Tensor) -> None:
        self.bare.requires_grad_(False)

    def switch_off(self, x: Tensor) -> None:
        torch.set_grad_enabled(False)

    def shown(self) -> list[Any]:
        found: list[Any] = [torch.is_grad_enabled(), self.bare.requires_grad]
        torch.set_grad_enabled(True)
        found += [self.plain.tolist(), self.result.requires_grad, self.result.retains_grad]
        (self.leaf * 3).sum().backward()
        if self.bare.requires_grad:
            self.bare.sum().backward()
        assert self.leaf.grad is not None
        return [*found, self.leaf.grad.tolist(), list(self.seen)]


REFUSED = ("hook", "hook_after", "assign", "clear", "delete", "add", "replace", "detach", "retain")


def _function(held: Held, name: str) -> Callable[[Tensor], Tensor]:
    change = getattr(held, name)

    def function(x: Tensor) -> Tensor:
        change(x)
        return x * 2

    return function


@pytest.mark.parametrize("name", [*REFUSED, "freeze", "switch_off"])
def test_changes_of_tensors_from_outside(name: str) -> None:
    graph = nn.Graph.trace(_function(Held(), name))
    if name in REFUSED:
        with pytest.raises(flow.GraphTraceError, match=r"test_autograd_state.py:\d+: .*build\(\)"):
            graph(torch.arange(3.0))
    else:
        with pytest.warns(UserWarning, match="after each call it is as before"):
            graph(torch.arange(3.0))
    wanted, mine = Held(), Held()
    eager, call = _function(wanted, name), flow.compile(_function(mine, name))
    for n in range(3):
        x = torch.arange(3.0) + n
        result, shown = call(x).tolist(), mine.shown()
        assert (result, shown) == (eager(x).tolist(), wanted.shown())


def test_changes_that_a_call_takes_back() -> None:
    """Hooks that `build()` removes, and gradients that were not there."""
    held = Held()
    parameter = torch.nn.Parameter(torch.ones(3))

    class Training(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.parameter = parameter
            self.add_optimizer(torch.optim.SGD([parameter], lr=1.0))

        def build(self, x: Tensor) -> Tensor:
            held.bare.grad = None
            handle = self.parameter.register_hook(lambda gradient: gradient * 3)
            loss = (self.parameter * x).sum()
            loss.backward()
            handle.remove()
            return loss

    Training()(torch.ones(3))
    assert parameter.tolist() == [-2.0] * 3


class Adjoint(torch.autograd.Function):
    """A module's call, whose backward calls it again and differentiates by what it saved."""

    @staticmethod
    def forward(ctx: Any, module: torch.nn.Module, x: torch.Tensor, *parameters: Any) -> Any:
        ctx.module = module
        ctx.save_for_backward(x, *parameters)
        return module(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            found = torch.autograd.grad(
                ctx.module(x), (x, *parameters), gradients, allow_unused=True
            )
        return None, *(torch.zeros_like(x) if g is None else g for g in found)


def test_a_backward_that_differentiates_its_module_again() -> None:
    """Saved parameters are those that the module reads, as in eager."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    module, x = module.double(), torch.randn(5, 3, dtype=torch.float64)
    other = copy.deepcopy(module)

    def step(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = Adjoint.apply(model, x, *model.parameters()).square().sum()
        loss.backward()
        return loss

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            self.add_optimizer(torch.optim.SGD(module.parameters(), lr=0.1))

        def build(self, x: torch.Tensor) -> torch.Tensor:
            return step(self.module, x)

    graph, sgd = Step(), torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(3):
        sgd.zero_grad()
        loss = step(other, x)
        sgd.step()
        torch.testing.assert_close(graph(x), loss.detach())
    for a, b in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(a, b)
