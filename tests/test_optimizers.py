"""Every torch.optim optimizer, and user-written ones, trained in a graph and eagerly."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from trace_interpreter import interpret

import gflow

STEPS = 6


class Lion(optim.Optimizer):
    """A user's optimizer: Python-int state, `.data`, `alpha=-lr`, `math.sqrt`."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                state["step"] += 1
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                update = state["exp_avg"] * beta1 + p.grad * (1 - beta1)
                p.data.add_(update.sign(), alpha=-group["lr"] / math.sqrt(state["step"]))
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


class ClassicMomentum(optim.Optimizer):
    """Makes its buffer from the first gradient, counts in the group and on itself."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.9, "dampening": 0.1, "step": 0})
        self.total = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.total += 1
        for group in self.param_groups:
            group["step"] += 1
            warmup = min(1.0, group["step"] / 4)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "buffer" not in state:
                    state["buffer"] = p.grad.clone()
                else:
                    state["buffer"] = state["buffer"] * group["momentum"] + p.grad * (
                        1 - group["dampening"]
                    )
                p -= group["lr"] * warmup * state["buffer"]


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "sgd-momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd-nesterov": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd-dampening": lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.5, weight_decay=0.1),
    "sgd-maximize": lambda p: optim.SGD(p, lr=0.01, maximize=True),
    "sgd-foreach": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "adam-amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adam-foreach": lambda p: optim.Adam(p, lr=0.01, foreach=True),
    "adam-fused": lambda p: optim.Adam(p, lr=0.01, fused=True),
    "adam-tensor-lr": lambda p: optim.Adam(p, lr=torch.tensor(0.01)),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.01, lr_decay=0.1, weight_decay=0.01),
    "adadelta": lambda p: optim.Adadelta(p, lr=0.5, weight_decay=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01),
    "rmsprop-centered": lambda p: optim.RMSprop(p, 0.01, centered=True, momentum=0.9),
    "nadam": lambda p: optim.NAdam(p, lr=0.01, weight_decay=0.01),
    "radam": lambda p: optim.RAdam(p, lr=0.01),
    "adamax": lambda p: optim.Adamax(p, lr=0.01),
    "asgd": lambda p: optim.ASGD(p, lr=0.01, t0=3),
    "rprop": lambda p: optim.Rprop(p, lr=0.01),
    "adafactor": lambda p: optim.Adafactor(p, lr=0.01),
    "lion": lambda p: Lion(p, lr=0.01),
    "classic": lambda p: ClassicMomentum(p, lr=0.05),
}
if hasattr(optim, "Muon"):
    OPTIMIZERS["muon"] = lambda p: optim.Muon([q for q in p if q.ndim == 2], lr=0.01)


class TrainGraph(gflow.nn.Graph):
    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, scheduler: Any = None) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer, lr_sch=scheduler)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def batches(count: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(5, 6, generator=generator), torch.randn(5, 3, generator=generator))
        for _ in range(count)
    ]


def eager_step(model: nn.Module, optimizer: optim.Optimizer, x: Any, y: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def assert_same(
    model: nn.Module,
    optimizer: optim.Optimizer,
    other: nn.Module,
    reference: optim.Optimizer,
    tolerance: dict[str, float] | None = None,
) -> None:
    tolerance = tolerance or {"rtol": 1e-4, "atol": 1e-6}
    for (name, p), q in zip(model.named_parameters(), other.parameters()):
        torch.testing.assert_close(p, q, msg=lambda m, name=name: f"{name}: {m}", **tolerance)
        expected, state = reference.state.get(q, {}), optimizer.state.get(p, {})
        assert {k for k, v in expected.items() if v is not None} <= set(state)
        for key, value in expected.items():
            if value is not None:
                torch.testing.assert_close(state[key], value, **tolerance)
                assert type(state[key]) is type(value)


def traces(graph: Any) -> int:
    return sum(len(plans) for plans in graph._state.plans.values())


@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "scheduled"])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_matches_eager(name: str, scheduled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled with a schedule; without, the trace itself, op by op."""
    if not scheduled:
        monkeypatch.setattr("gflow.execution.executor.compile_trace", interpret)
    # Muon orthogonalizes in bfloat16, where fused kernels round less often than eager ops.
    tolerance = {"rtol": 1e-2, "atol": 1e-3} if name == "muon" else {"rtol": 1e-4, "atol": 1e-6}
    model = make_model()
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    reference = OPTIMIZERS[name](list(other.parameters()))
    schedulers = [
        optim.lr_scheduler.ExponentialLR(o, 0.7) if scheduled else None
        for o in (optimizer, reference)
    ]
    graph = TrainGraph(model, optimizer, schedulers[0])
    for x, y in batches():
        loss = graph(x, y)
        torch.testing.assert_close(loss, eager_step(other, reference, x, y), **tolerance)
        if schedulers[1] is not None:
            schedulers[1].step()
    assert_same(model, optimizer, other, reference, tolerance)
    assert traces(graph) == 1
    assert all(p.grad is None for p in model.parameters())
    if name == "classic":
        assert optimizer.total == STEPS
        assert optimizer.param_groups[0]["step"] == STEPS


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: optim.lr_scheduler.StepLR(o, 2, gamma=0.5),
        lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 5),
        lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
        lambda o: optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    ],
    ids=["step", "cosine", "one-cycle", "cyclic"],
)
def test_schedulers_never_retrace(schedule: Callable[[Any], Any]) -> None:
    """OneCycleLR and CyclicLR change the momentum too."""
    model = make_model()
    other = copy.deepcopy(model)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    reference = optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    graph = TrainGraph(model, optimizer, schedule(optimizer))
    scheduler = schedule(reference)
    for x, y in batches():
        graph(x, y)
        eager_step(other, reference, x, y)
        scheduler.step()
    assert_same(model, optimizer, other, reference)
    assert traces(graph) == 1


def test_hyperparameters_set_by_hand() -> None:
    """A new value is used at the next call; a new kind of update is traced anew."""
    model = make_model()
    other = copy.deepcopy(model)
    optimizer, reference = (optim.AdamW(m.parameters(), lr=0.01) for m in (model, other))
    graph = TrainGraph(model, optimizer)
    changes = [{}, {"lr": 0.05}, {"betas": (0.5, 0.9)}, {"weight_decay": 0.0}, {"maximize": True}]
    seen = []
    for change, (x, y) in zip(changes, batches()):
        for o in (optimizer, reference):
            o.param_groups[0].update(change)
        graph(x, y)
        eager_step(other, reference, x, y)
        seen.append(traces(graph))
    assert_same(model, optimizer, other, reference)
    assert seen == [1, 1, 1, 2, 3]


def test_groups_with_different_hyperparameters() -> None:
    model = make_model()
    other = copy.deepcopy(model)

    def make(m: nn.Module) -> optim.Optimizer:
        groups = [
            {"params": m[0].parameters(), "lr": 0.1},
            {"params": m[3].parameters(), "lr": 0.01, "weight_decay": 0.1},
        ]
        return optim.Adam(groups)

    optimizer, reference = make(model), make(other)
    graph = TrainGraph(model, optimizer)
    for x, y in batches():
        graph(x, y)
        eager_step(other, reference, x, y)
    assert_same(model, optimizer, other, reference)


def test_parameters_without_gradient_are_skipped() -> None:
    model = make_model()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    graph = TrainGraph(model, optimizer)
    for x, y in batches(2):
        graph(x, y)
    torch.testing.assert_close(model[0].weight, before)
    assert model[0].weight not in optimizer.state


def test_two_optimizers() -> None:
    model = make_model()
    other = copy.deepcopy(model)

    def make(m: nn.Module) -> list[optim.Optimizer]:
        first = optim.SGD(m[0].parameters(), lr=0.1, momentum=0.9, dampening=0.5)
        return [first, optim.Adam([*m[2].parameters(), *m[3].parameters()], lr=0.01)]

    class Two(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            for o in optimizers:
                self.add_optimizer(o)

        def build(self, x: Any, y: Any) -> Any:
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            return loss

    optimizers, references = make(model), make(other)
    graph = Two()
    for x, y in batches():
        graph(x, y)
        for r in references:
            r.zero_grad()
        nn.functional.mse_loss(other(x), y).backward()
        for r in references:
            r.step()
    for p, q in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_optimizer_state_is_the_authors() -> None:
    """state_dict() sees each step, and a loaded one is used."""
    data = batches()
    model = make_model()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    graph = TrainGraph(model, optimizer)
    for x, y in data[:2]:
        graph(x, y)
    assert optimizer.state_dict()["state"][0]["step"] == 2
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for x, y in data[2:4]:
        graph(x, y)
    ahead = copy.deepcopy(model.state_dict())
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    for x, y in data[2:4]:
        graph(x, y)
    for a, b in zip(ahead.values(), model.state_dict().values()):
        torch.testing.assert_close(a, b)
    assert traces(graph) == 1


def test_eager_and_graph_steps_mix() -> None:
    model = make_model()
    other = copy.deepcopy(model)
    optimizer, reference = (optim.Adam(m.parameters(), lr=0.01) for m in (model, other))
    graph = TrainGraph(model, optimizer)
    for i, (x, y) in enumerate(batches()):
        if i % 2:
            graph(x, y)
        else:
            eager_step(model, optimizer, x, y)
        eager_step(other, reference, x, y)
    assert_same(model, optimizer, other, reference)


def test_float64_and_zero_dim_parameters() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.shift = nn.Parameter(torch.zeros(3, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[:, :3] * self.scale).double() + self.shift

    for make in (OPTIMIZERS["adam"], OPTIMIZERS["radam"], OPTIMIZERS["sgd-momentum"]):
        model = Scale()
        other = copy.deepcopy(model)
        optimizer, reference = make(list(model.parameters())), make(list(other.parameters()))
        graph = TrainGraph(model, optimizer)
        for x, y in batches():
            graph(x, y.double())
            eager_step(other, reference, x, y.double())
        assert_same(model, optimizer, other, reference)


def test_gradient_clipping_in_build() -> None:
    class Clipped(TrainGraph):
        def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
            return loss

    model = make_model()
    other = copy.deepcopy(model)
    optimizer, reference = (optim.SGD(m.parameters(), lr=0.1) for m in (model, other))
    graph = Clipped(model, optimizer)
    for x, y in batches():
        graph(x, y)
        reference.zero_grad()
        nn.functional.mse_loss(other(x), y).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.1)
        reference.step()
    assert_same(model, optimizer, other, reference)
