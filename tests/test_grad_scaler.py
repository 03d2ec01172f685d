"""Loss scaling inside graphs beside `torch.amp.GradScaler` around an eager loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_optimizers import OPTIMIZERS
from torch import nn, optim
from torch.nn import functional as F

import gflow

#: steps whose loss is inf or nan: the first, two in a row, one after the scale has grown
BAD = (0, 3, 4, 9)
STEPS = 12


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(5, 6, generator=generator)
    y = torch.randn(5, 3, generator=generator)
    if step in BAD:
        y[0, 0] = float("inf") if step % 2 else float("nan")
    return x, y


class Training(gflow.nn.Graph):
    def __init__(self, model: nn.Module, optimizers: Any, scaler: Any, scheduler: Any = None):
        super().__init__()
        self.model = model
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            self.add_optimizer(optimizer, lr_sch=scheduler)
        self.set_grad_scaler(scaler)

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        return loss


def eager_step(
    model: nn.Module, optimizers: list[optim.Optimizer], scaler: Any, x: Any, y: Any
) -> torch.Tensor:
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def assert_close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def assert_same_state(mine: dict[str, Any], eager: dict[str, Any]) -> None:
    for key, entry in eager["state"].items():
        for name, value in entry.items():
            if isinstance(value, torch.Tensor):
                assert_close(mine["state"][key][name], value)
            else:
                assert mine["state"][key][name] == value


SETTINGS = {"init_scale": 1024.0, "growth_interval": 3}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n != "muon"])
def test_steps_are_skipped_as_in_an_eager_loop(name: str) -> None:
    """Parameters, statistics, optimizer state and the scale, after every step."""
    make: Callable[[Any], optim.Optimizer] = OPTIMIZERS[name]
    eager, mine = make_model(), make_model()
    eager_optimizer, optimizer = make(list(eager.parameters())), make(list(mine.parameters()))
    eager_scaler = torch.amp.GradScaler("cpu", **SETTINGS)
    scaler = gflow.amp.GradScaler(**SETTINGS)
    graph = Training(mine, optimizer, scaler)
    for step in range(STEPS):
        x, y = batch(step)
        before = copy.deepcopy(list(mine.parameters()))
        want = eager_step(eager, [eager_optimizer], eager_scaler, x, y)
        assert_close(graph(x, y), want)
        assert scaler.state_dict() == eager_scaler.state_dict()
        for a, b in zip(mine.state_dict().values(), eager.state_dict().values(), strict=True):
            assert_close(a, b)
        if step in BAD:
            assert all(map(torch.equal, before, mine.parameters()))
    assert_same_state(optimizer.state_dict(), eager_optimizer.state_dict())


def test_optimizers_skip_each_by_its_own_gradients() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.a(x), self.b(x)], 1)

    def setting() -> tuple[nn.Module, list[optim.Optimizer]]:
        torch.manual_seed(0)
        model = Heads()
        return model, [
            optim.Adam(model.a.parameters(), lr=0.1),
            optim.SGD(model.b.parameters(), lr=0.1, momentum=0.9, dampening=0.5),
        ]

    eager, eager_optimizers = setting()
    mine, optimizers = setting()
    eager_scaler, scaler = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")
    graph = Training(mine, optimizers, scaler)
    for step in range(8):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(4, 6, generator=generator), torch.randn(4, 6, generator=generator)
        if step in (0, 3):
            y[0, 5] = torch.inf  # the second head only
        if step == 5:
            y[0, 0] = torch.nan  # the first
        want = eager_step(eager, eager_optimizers, eager_scaler, x, y)
        assert_close(graph(x, y), want)
        assert scaler.state_dict() == eager_scaler.state_dict()
        assert_close(mine.state_dict(), eager.state_dict())


def test_the_schedule_goes_on_when_a_step_is_skipped() -> None:
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    graph = Training(model, optimizer, gflow.amp.GradScaler(), scheduler)
    for step in range(5):
        graph(*batch(step))
        assert scheduler.get_last_lr() == [0.5 ** (step + 1)]


def test_state_is_saved_and_restored() -> None:
    def run(graph: Training, steps: range) -> None:
        for step in steps:
            graph(*batch(step))

    model, scaler = make_model(), gflow.amp.GradScaler(**SETTINGS)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    run(Training(model, optimizer, scaler), range(6))
    saved = copy.deepcopy([x.state_dict() for x in (model, optimizer, scaler)])
    assert saved[2]["scale"] == 128.0
    assert saved[2]["_growth_tracker"] == 1
    run(Training(model, optimizer, scaler), range(6, STEPS))

    for loaded_early in (False, True):
        other, other_scaler = make_model(), gflow.amp.GradScaler(**SETTINGS)
        other_optimizer = optim.Adam(other.parameters(), lr=0.01)
        graph = Training(other, other_optimizer, other_scaler)
        if not loaded_early:
            run(graph, range(2))
        for target, state in zip((other, other_optimizer, other_scaler), saved, strict=True):
            target.load_state_dict(copy.deepcopy(state))
        run(graph, range(6, STEPS))
        assert other_scaler.state_dict() == scaler.state_dict()
        assert_close(other.state_dict(), model.state_dict())


def test_settings_may_change_between_steps() -> None:
    eager, mine = make_model(), make_model()
    eager_optimizer = optim.SGD(eager.parameters(), lr=0.1)
    optimizer = optim.SGD(mine.parameters(), lr=0.1)
    eager_scaler, scaler = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")
    graph = Training(mine, optimizer, scaler)
    for step in range(9):
        if step == 5:
            for s in (eager_scaler, scaler):
                s.set_growth_interval(2)
                s.set_growth_factor(4.0)
                s.set_backoff_factor(0.25)
        if step == 7:
            for s in (eager_scaler, scaler):
                s.update(512.0) if s._scale is not None else None
        want = eager_step(eager, [eager_optimizer], eager_scaler, *batch(step))
        assert_close(graph(*batch(step)), want)
        assert scaler.state_dict() == eager_scaler.state_dict()
        assert_close(mine.state_dict(), eager.state_dict())


def test_the_scale_grows_only_to_finite_values() -> None:
    model, scaler = make_model(), gflow.amp.GradScaler(init_scale=2.0**126, growth_interval=1)
    graph = Training(model, optim.SGD(model.parameters(), lr=0.0), scaler)
    x, _ = batch(1)
    with torch.no_grad():
        y = model(x)  # no gradients to overflow
    seen = []
    for _ in range(3):
        graph(x, y)
        seen.append(scaler.get_scale())
    eager = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=1)
    weight = nn.Parameter(torch.zeros(1))
    optimizer = optim.SGD([weight], lr=0.0)
    want = []
    for _ in range(3):
        optimizer.zero_grad()
        eager.scale((weight * 0.0).sum()).backward()
        eager.step(optimizer)
        eager.update()
        want.append(eager.get_scale())
    assert seen == want


def test_a_static_scaler_changes_no_result() -> None:
    plain, scaled = make_model(), make_model()
    without = Training(plain, optim.SGD(plain.parameters(), lr=0.1), None)
    graph = Training(
        scaled, optim.SGD(scaled.parameters(), lr=0.1), gflow.amp.StaticGradScaler(64.0)
    )
    for step in (1, 2, 5):
        assert_close(graph(*batch(step)), without(*batch(step)))
    assert_close(scaled.state_dict(), plain.state_dict())


class Tiny(Training):
    """A loss so small that its gradient is no float16."""

    def build(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).sum() * 1e-9
        loss.backward()
        return loss


def test_small_gradients_survive_in_float16() -> None:
    def trained(scaler: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        graph = Tiny(model, optim.SGD(model.parameters(), lr=1e9), scaler)
        graph.config.enable_amp(True, dtype=torch.float16)
        start = model[0].weight.detach().clone()
        graph(torch.randn(4, 4), torch.zeros(()))
        return model[0].weight.detach() - start

    full = trained(gflow.amp.StaticGradScaler(2.0**16))
    assert full.abs().max() > 0.1
    assert torch.equal(trained(None), torch.zeros(4, 4))
    assert_close(trained(gflow.amp.GradScaler()), full)


def test_a_disabled_scaler_does_nothing() -> None:
    model = make_model()
    scaler = gflow.amp.GradScaler(enabled=False)
    graph = Training(model, optim.SGD(model.parameters(), lr=0.1), scaler)
    graph(*batch(1))
    assert scaler.state_dict() == {}
    assert "scaler_state" not in graph.ir("traced", generic=True)


def test_the_scale_is_an_argument_that_each_step_updates() -> None:
    model = make_model()
    graph = Training(model, optim.SGD(model.parameters(), lr=0.1), gflow.amp.GradScaler())
    graph(*batch(1))
    text = graph.ir("traced", generic=True)
    assert 'gflow.name = "scaler.scale", gflow.role = "scaler_state"' in text
    assert 'gflow.name = "scaler.growth_tracker", gflow.role = "scaler_state"' in text


def test_errors_say_what_to_do() -> None:
    model = make_model()
    with pytest.raises(gflow.GraphError, match=r"test_grad_scaler.py:\d+: set_grad_scaler\(\)"):
        Training(model, optim.SGD(model.parameters(), lr=0.1), 1024.0)
    with pytest.raises(ValueError, match="positive"):
        gflow.amp.StaticGradScaler(0.0)
    half = make_model().to(torch.bfloat16)
    graph = Training(half, optim.SGD(half.parameters(), lr=0.1), gflow.amp.GradScaler())
    x, y = batch(1)
    with pytest.raises(gflow.GraphTraceError, match="keep parameters in float32"):
        graph(x.bfloat16(), y.bfloat16())


def test_optimizers_of_other_parameters() -> None:
    """Of a network that was exchanged: eager's scaler, which saw no gradient, raises in update()."""
    optimizer, scaler = optim.SGD(make_model().parameters(), lr=0.1), gflow.amp.GradScaler()
    with pytest.raises(
        gflow.GraphTraceError, match="no parameter of its optimizers has a gradient"
    ):
        Training(make_model(), optimizer, scaler)(*batch(1))
    assert scaler._get_growth_tracker() == 0


def test_names_of_torch_amp_resolve() -> None:
    assert gflow.amp.autocast is torch.amp.autocast
    assert issubclass(gflow.amp.GradScaler, torch.amp.GradScaler)
    with pytest.raises(AttributeError, match=r"neither gflow.amp nor torch.amp has 'nothing'"):
        gflow.amp.nothing  # noqa: B018
