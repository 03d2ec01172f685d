"""Training in a graph against the same steps in eager mode: schedules, clipping, groups."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.optim import lr_scheduler as S

import gflow
from gflow.optim import lr_scheduler as G


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def sgd(model: nn.Module, **kwargs: Any) -> optim.Optimizer:
    return optim.SGD(model.parameters(), **({"lr": 0.1, "momentum": 0.9} | kwargs))


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss


def batch(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 6), torch.randn(rows, 3)


class TrainGraph(gflow.nn.Graph):
    def __init__(
        self,
        model: nn.Module,
        *optimizers: Any,
        step: Callable[..., Any] = mse,
        schedules: Any = None,
        scaler: Any = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.step = step
        for i, optimizer in enumerate(optimizers):
            self.add_optimizer(optimizer, lr_sch=schedules[i] if schedules else None)
        if scaler is not None:
            self.set_grad_scaler(scaler)

    def build(self, *args: Any) -> Any:
        return self.step(self.model, *args)


def programs(graph: Any) -> int:
    return sum(len(plans) for plans in graph._state.plans.values())


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=4e-6)


def assert_same(model: nn.Module, other: nn.Module) -> None:
    for (name, p), q in zip(model.state_dict().items(), other.state_dict().values()):
        torch.testing.assert_close(
            p, q, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}"
        )


def check_against_eager(
    make: Callable[[nn.Module], optim.Optimizer] = sgd,
    step: Callable[..., Any] = mse,
    after_backward: Callable[[nn.Module, optim.Optimizer], None] = lambda model, optimizer: None,
    before: Callable[[int, nn.Module], None] = lambda i, model: None,
    steps: int = 5,
    scaler: Any = None,
) -> Any:
    """Train both; `after_backward` is what an eager program does before its step."""
    model = make_model()
    other = copy.deepcopy(model)
    optimizer, reference = make(model), make(other)
    graph = TrainGraph(model, optimizer, step=step, scaler=scaler)
    for i in range(steps):
        x, y = batch()
        before(i, model), before(i, other)
        actual = graph(x, y)
        reference.zero_grad()
        expected = step(other, x, y)
        after_backward(other, reference)
        reference.step()
        assert_close(actual, expected)
        assert_same(model, other)
    return graph


# schedules

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: S.LambdaLR(o, lambda step: 0.95**step),
    "MultiplicativeLR": lambda o: S.MultiplicativeLR(o, lambda step: 0.95),
    "StepLR": lambda o: S.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: S.MultiStepLR(o, [3, 7], 0.3),
    "ConstantLR": lambda o: S.ConstantLR(o, 0.3, 4),
    "LinearLR": lambda o: S.LinearLR(o, 0.2, 1, 5),
    "ExponentialLR": lambda o: S.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: S.PolynomialLR(o, 12, 2.0),
    "CosineAnnealingLR": lambda o: S.CosineAnnealingLR(o, 7),
    "CosineAnnealingWarmRestarts": lambda o: S.CosineAnnealingWarmRestarts(o, 4, 2),
    "CyclicLR": lambda o: S.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=True),
    "OneCycleLR": lambda o: S.OneCycleLR(o, 0.1, total_steps=40),
    "SequentialLR": lambda o: S.SequentialLR(
        o, [S.LinearLR(o, 0.1, 1, 5), S.CosineAnnealingLR(o, 20)], [5]
    ),
    "ChainedScheduler": lambda o: S.ChainedScheduler(
        [S.LinearLR(o, 0.1, 1, 5), S.ExponentialLR(o, 0.95)]
    ),
    "SWALR": lambda o: optim.swa_utils.SWALR(o, 0.01, anneal_epochs=6),
    "CosineDecayLR": lambda o: G.CosineDecayLR(o, 20, alpha=0.1),
    "PolynomialLR with a cycle": lambda o: G.PolynomialLR(
        o, decay_batch=7, end_learning_rate=0.01, power=2.0, cycle=True
    ),
    "WarmupLR": lambda o: G.WarmupLR(G.CosineDecayLR(o, 25), warmup_iters=6),
    "WarmUpLR of PyTorch's": lambda o: G.WarmUpLR(
        S.MultiStepLR(o, [3, 12]), 0.1, 6, "constant", warmup_prefix=True
    ),
}


def test_every_schedule_of_torch_is_tested() -> None:
    known = {
        name
        for name in vars(S)
        if isinstance(getattr(S, name), type)
        and issubclass(getattr(S, name), S.LRScheduler)
        and not name.startswith("_")
    }
    assert known - {"LRScheduler", "ReduceLROnPlateau"} <= set(SCHEDULES)


@pytest.mark.filterwarnings("error:Detected call of")
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_schedule_matches_eager_over_30_steps(name: str) -> None:
    model = make_model()
    other = copy.deepcopy(model)
    optimizer, reference = sgd(model), sgd(other)
    graph = TrainGraph(model, optimizer, schedules=[SCHEDULES[name](optimizer)])
    schedule = SCHEDULES[name](reference)
    for _ in range(30):
        x, y = batch()
        loss = graph(x, y)
        reference.zero_grad()
        assert_close(loss, mse(other, x, y))
        reference.step()
        schedule.step()
        assert graph.learning_rates() == [[reference.param_groups[0]["lr"]]]
        assert optimizer.param_groups[0]["momentum"] == reference.param_groups[0]["momentum"]
    assert_same(model, other)
    assert programs(graph) == 1


def test_documented_schedules() -> None:
    """OneFlow's documents list these learning rates, or the formulas for them."""

    def rates(make: Callable[[Any], Any], steps: int = 12, lr: float = 0.001) -> list[float]:
        optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=lr)
        schedule = make(optimizer)
        found = []
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return found

    def cosine(step: int, steps: int, alpha: float) -> float:
        return (1 - alpha) * 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps)) + alpha

    constant = rates(lambda o: G.WarmUpLR(o, 0.5, 5, "constant"), 7)
    assert constant == pytest.approx([0.0005] * 5 + [0.001] * 2)
    linear = rates(lambda o: G.WarmupLR(o, warmup_factor=0.5, warmup_iters=5), 7)
    assert linear == pytest.approx([0.0005, 0.0006, 0.0007, 0.0008, 0.0009, 0.001, 0.001])
    decay = rates(lambda o: G.CosineDecayLR(o, decay_steps=5, alpha=0.1), 8)
    assert decay == pytest.approx([0.001 * cosine(n, 5, 0.1) for n in range(8)])
    both = rates(lambda o: G.WarmUpLR(G.CosineDecayLR(o, 5, 0.1), 0.5, 2, "linear"), 8)
    middle = (0.5 + cosine(2, 5, 0.1)) / 2
    assert both == pytest.approx(
        [0.0005, 0.001 * middle] + [0.001 * cosine(n, 5, 0.1) for n in range(2, 8)]
    )
    after = rates(lambda o: G.WarmUpLR(S.ExponentialLR(o, 0.5), 0.5, 2, warmup_prefix=True), 5)
    assert after == pytest.approx([0.0005, 0.00075, 0.001, 0.0005, 0.00025])
    together = rates(lambda o: G.WarmUpLR(S.StepLR(o, 2, 0.5), 0.2, 3, "constant"), 5)
    assert together == pytest.approx([0.0002] * 3 + [0.0005, 0.00025])
    ends = rates(lambda o: G.PolynomialLR(o, steps=4, end_learning_rate=0.0002, power=2.0), 6)
    assert ends == pytest.approx([0.0008 * (1 - min(n, 4) / 4) ** 2 + 0.0002 for n in range(6)])
    again = rates(lambda o: G.PolynomialLR(o, decay_batch=3, end_learning_rate=0.0, cycle=True), 8)
    at = [max(n, 1) for n in range(8)]
    assert again == pytest.approx([0.001 * (1 - n / (3 * math.ceil(n / 3))) for n in at])
    assert rates(lambda o: G.PolynomialLR(o, 4, 2.0)) == rates(lambda o: S.PolynomialLR(o, 4, 2.0))
    for wrong, message in (
        (lambda o: G.PolynomialLR(o, 10, 0.001, 0.9), "give OneFlow's by name: decay_batch"),
        (lambda o: G.WarmupLR(3), "a learning rate scheduler or an optimizer, got int"),
        (lambda o: G.WarmupLR(o, warmup_method="fast"), "'linear' or 'constant', got 'fast'"),
        (lambda o: G.WarmupLR(o, warmup_iters=0), "warmup_iters is a number of steps"),
        (lambda o: G.CosineDecayLR(o, 0), "decay_steps is a number of steps, at least 1; got 0"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            rates(wrong)


def test_each_optimizer_has_its_own_schedule() -> None:
    model = make_model()
    other = copy.deepcopy(model)

    def make(m: nn.Module) -> tuple[list[optim.Optimizer], list[Any]]:
        first = optim.SGD(m[0].parameters(), lr=0.1)
        second = optim.Adam([*m[2].parameters(), *m[3].parameters()], lr=0.01)
        return [first, second], [S.StepLR(first, 2, 0.5), S.LinearLR(second, 0.1, 1, 4)]

    optimizers, schedules = make(model)
    references, expected = make(other)
    graph = TrainGraph(model, *optimizers, schedules=schedules)
    for _ in range(8):
        x, y = batch()
        graph(x, y)
        for o in references:
            o.zero_grad()
        mse(other, x, y)
        for o in references:
            o.step()
        for s in expected:
            s.step()
        assert graph.learning_rates() == [s.get_last_lr() for s in expected]
    assert_same(model, other)
    assert programs(graph) == 1


def test_plateau_is_stepped_by_hand() -> None:
    model = make_model()
    optimizer = sgd(model)
    plateau = S.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    with pytest.raises(gflow.GraphError, match=r"call scheduler\.step\(metric\) after the graph"):
        TrainGraph(model, optimizer, schedules=[plateau])
    graph = TrainGraph(model, optimizer)
    for metric in (1.0, 2.0, 3.0):
        graph(*batch())
        plateau.step(metric)
    assert graph.learning_rates() == [[pytest.approx(0.001)]]
    assert programs(graph) == 1


def test_schedule_of_another_optimizer() -> None:
    model = make_model()
    other = sgd(model)
    with pytest.raises(gflow.GraphError, match="StepLR of another optimizer"):
        TrainGraph(model, sgd(model), schedules=[S.StepLR(other, 2)])
    with pytest.raises(gflow.GraphError, match="takes a learning rate scheduler as lr_sch, got"):
        TrainGraph(model, sgd(model), schedules=[0.1])


# clipping


CLIP = {"clip_grad_max_norm": 0.05, "clip_grad_norm_type": 2.0}


def group_clipping(norm_type: float, max_norm: float = 0.05) -> Callable[..., optim.Optimizer]:
    clip = {"clip_grad_max_norm": max_norm, "clip_grad_norm_type": norm_type}

    def make(m: nn.Module) -> optim.Optimizer:
        groups = [{"params": m[0].parameters(), **clip}, {"params": m[3].parameters(), "lr": 0.01}]
        return optim.SGD(groups, lr=0.1, momentum=0.9)

    return make


def clip_eagerly(model: nn.Module, optimizer: optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        if "clip_grad_max_norm" in group:
            nn.utils.clip_grad_norm_(
                group["params"], group["clip_grad_max_norm"], group["clip_grad_norm_type"]
            )


@pytest.mark.parametrize("norm_type", [1.0, 3.5, math.inf, -math.inf, 0.0])
def test_clipping_by_group(norm_type: float) -> None:
    check_against_eager(group_clipping(norm_type), after_backward=clip_eagerly)


def test_clipping_norm_is_no_constant() -> None:
    model = make_model()
    optimizer = optim.SGD(
        [{"params": model.parameters(), "clip_grad_max_norm": 1e-3}], lr=1.0, momentum=0.0
    )
    graph = TrainGraph(model, optimizer)
    for norm in (1e-3, 1e-2):
        optimizer.param_groups[0]["clip_grad_max_norm"] = norm
        before = nn.utils.parameters_to_vector(model.parameters()).clone()
        graph(*batch())
        moved = nn.utils.parameters_to_vector(model.parameters()) - before
        assert moved.norm().item() == pytest.approx(norm, rel=1e-2)
    assert programs(graph) == 1


def test_clipping_that_begins_later() -> None:
    def begin(i: int, model: nn.Module) -> None:
        for optimizer in optimizers:
            if i == 2:
                optimizer.param_groups[0].update(CLIP)

    optimizers: list[optim.Optimizer] = []

    def make(model: nn.Module) -> optim.Optimizer:
        optimizers.append(sgd(model))
        return optimizers[-1]

    graph = check_against_eager(make, before=begin, after_backward=clip_eagerly)
    assert programs(graph) == 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"clip_grad_max_norm": -1.0}, "is a number above 0; got -1.0"),
        ({"clip_grad_max_norm": 1.0, "clip_grad_norm_type": "l2"}, "inf or -inf; got 'l2'"),
        ({"clip_grad_norm_type": 2.0}, "and no clip_grad_max_norm"),
    ],
)
def test_wrong_clipping_keys(keys: dict[str, Any], message: str) -> None:
    model = make_model()
    optimizer = optim.SGD([{"params": model.parameters(), **keys}], lr=0.1)
    with pytest.raises(gflow.GraphError, match=message):
        TrainGraph(model, optimizer)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_clip_grad_norm_in_build(norm_type: float) -> None:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = mse(model, x, y)
        return loss, nn.utils.clip_grad_norm_(model.parameters(), 0.05, norm_type)

    check_against_eager(step=step)


def test_clip_grad_value_in_build() -> None:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = mse(model, x, y)
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        return loss

    check_against_eager(step=step)


def test_error_if_nonfinite() -> None:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = mse(model, x, y)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        return loss

    graph = TrainGraph(model := make_model(), sgd(model), step=step)
    with pytest.raises(gflow.GraphTraceError, match=r"test_training\.py.*check it after the call"):
        graph(*batch())


class FirstGradient(optim.Optimizer):
    """Makes its state from the first gradient."""

    def __init__(self, model: nn.Module, **group: Any) -> None:
        super().__init__([{"params": model.parameters(), **group}], {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["buffer"] = state["buffer"] * 0.9 + p.grad if "buffer" in state else p.grad
                p -= group["lr"] * state["buffer"]


@pytest.mark.parametrize("make", [sgd, FirstGradient])
@pytest.mark.parametrize("static", [False, True])
def test_clipping_sees_unscaled_gradients(static: bool, make: Any) -> None:
    """By groups and in build(), with a grad scaler: as without."""

    def in_build(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = mse(model, x, y)
        return loss, nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    def scaler() -> Any:
        return gflow.amp.StaticGradScaler(512.0) if static else gflow.amp.GradScaler()

    check_against_eager(make, step=in_build, scaler=scaler())

    def with_keys(model: nn.Module) -> optim.Optimizer:
        optimizer = make(model)
        optimizer.param_groups[0].update(CLIP)
        return optimizer

    check_against_eager(with_keys, after_backward=clip_eagerly, scaler=scaler())


def test_scaler_skips_clipped_steps_that_are_not_finite() -> None:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = mse(model, x, y)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        return loss

    model = make_model()
    scaler = gflow.amp.GradScaler(init_scale=1024.0)
    graph = TrainGraph(model, sgd(model), step=step, scaler=scaler)
    graph(*batch())
    before = copy.deepcopy(model.state_dict())
    x, y = batch()
    graph(x, y * math.inf)
    assert scaler.get_scale() == 512.0
    for a, b in zip(before.values(), model.state_dict().values()):
        assert torch.equal(a, b)


def test_backward_after_gradients_were_unscaled() -> None:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
        mse(model, x, y)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        return mse(model, x, y)

    model = make_model()
    graph = TrainGraph(model, sgd(model), step=step, scaler=gflow.amp.GradScaler())
    with pytest.raises(gflow.GraphTraceError, match=r"call every backward\(\) first"):
        graph(*batch())


# groups, frozen parameters


def test_groups_with_own_settings() -> None:
    def make(m: nn.Module) -> optim.Optimizer:
        groups = [
            {"params": m[0].parameters(), "lr": 0.01},
            {"params": m[2].parameters(), "weight_decay": 0.1, "betas": (0.5, 0.9)},
            {"params": m[3].parameters()},
        ]
        return optim.AdamW(groups, lr=0.02, weight_decay=0.0)

    graph = check_against_eager(make)
    assert graph.learning_rates() == [[0.01, 0.02, 0.02]]


def test_frozen_and_thawed_parameters() -> None:
    """A frozen parameter is not decayed, its moments stay; each set of them is one program."""

    def freeze(i: int, model: nn.Module) -> None:
        model[0].weight.requires_grad_(i not in (0, 1, 4))

    graph = check_against_eager(lambda m: optim.AdamW(m.parameters(), lr=0.1), before=freeze)
    assert programs(graph) == 2


# gradients by hand


def penalty(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_(True)
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = F.mse_loss(out, y) + ((slope.norm(2, dim=1) - 1) ** 2).mean()
    loss.backward()
    return loss


def own_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.mse_loss(model(x), y)
    for p, grad in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
        p.grad = grad * 0.5
    return loss


def two_backwards(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.mse_loss(model(x), y)
    loss.backward(retain_graph=True)
    (loss**2).backward()
    return loss


def penalty_of_parameters(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.mse_loss(model(x), y)
    grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    loss = loss + 0.01 * sum((g**2).sum() for g in grads)
    loss.backward()
    return loss


@pytest.mark.parametrize("step", [penalty, own_gradients, two_backwards, penalty_of_parameters])
def test_gradients_by_hand(step: Any) -> None:
    check_against_eager(lambda m: optim.SGD(m.parameters(), lr=0.01), step=step)


def test_hooks_of_parameters() -> None:
    model = make_model()
    other = copy.deepcopy(model)
    for m in (model, other):
        m[0].weight.register_hook(lambda grad: grad * 3)  # type: ignore[union-attr]
    optimizer, reference = sgd(model), sgd(other)
    graph = TrainGraph(model, optimizer)
    for _ in range(2):
        x, y = batch()
        reference.zero_grad()
        assert_close(graph(x, y), mse(other, x, y))
        reference.step()
        assert_same(model, other)
    late = make_model()
    late[3].bias.register_post_accumulate_grad_hook(lambda p: None)  # type: ignore[union-attr]
    with pytest.raises(
        gflow.GraphTraceError, match=r"'model\.3\.bias' has a hook from register_post_accumulate"
    ):
        TrainGraph(late, sgd(late))(*batch())


def test_lazy_modules() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    graph = TrainGraph(model, optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    with pytest.raises(gflow.GraphInputError, match=r"model\.0\.weight' of a lazy module"):
        graph(*batch())


def test_training_without_backward_warns() -> None:
    class Forgotten(gflow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(3, 2)
            self.add_optimizer(optim.SGD(self.model.parameters(), lr=0.1))

        def build(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).sum()

    graph = Forgotten()
    before = graph.model.to(nn.Module).weight.detach().clone()
    with pytest.warns(UserWarning, match=r"updates nothing. Call backward\(\)") as seen:
        graph(torch.randn(4, 3))
    assert seen[0].filename == __file__
    assert torch.equal(graph.model.to(nn.Module).weight, before)
