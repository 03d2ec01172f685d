"""A call is all or nothing: interrupts at any line and instant, steps, schedulers and compilations that fail."""

from __future__ import annotations

import datetime
import itertools
import random
import time
from types import CodeType
from typing import Any

import interrupts
import pytest
import torch
from interrupts import (
    KINDS,
    Stop,
    Train,
    at_line,
    by_line,
    by_signal,
    call_path,
    prepared,
    same,
    snapshot,
)
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import gflow as flow
from gflow.call.modes import Modes
from gflow.tracing.context import watched_calls

_fails: list[int] = []


@torch.library.custom_op("gflow_test_interrupts::may_fail", mutates_args=())
def may_fail(x: Tensor) -> Tensor:
    if _fails:
        raise ArithmeticError("on purpose")
    return x.clone()


@may_fail.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def _works() -> Any:
    _fails.clear()
    yield
    _fails.clear()


def whole(found: Any) -> int:
    """How many calls were interrupted, all of which are whole."""
    count = 0
    for result in itertools.takewhile(lambda r: r is not None, found):
        assert result
        count += 1
    return count


def test_functions_that_are_watched_while_a_trace_runs_are_put_back() -> None:
    """An interrupt while they are exchanged, too."""

    def code(of: CodeType) -> bool:
        return of.co_filename == watched_calls.__file__ and of.co_name == "watched_calls"

    found = time.perf_counter, random.random, datetime.datetime, torch.get_rng_state
    with at_line(0, code) as seen, watched_calls.watched_calls(lambda *_: None):
        lines = seen[0]
    assert lines > 300
    for number in range(1, lines, 97):
        with pytest.raises(Stop), at_line(number, code):  # noqa: SIM117
            with watched_calls.watched_calls(lambda *_: None):
                pass
        now = time.perf_counter, random.random, datetime.datetime, torch.get_rng_state
        assert all(a is b for a, b in zip(now, found, strict=True)), number


def test_modes_that_a_trace_enters_are_put_back() -> None:
    """An interrupt at the first line of their `__exit__`, before it sets what was set before."""

    def code(of: CodeType) -> bool:
        return of.co_name == "__exit__" and "/torch/" in of.co_filename

    for _ in range(2):  # the first one imports
        graph, x = prepared("adam", 0)
        with at_line(0, code) as seen:
            graph(x)
    before, lines = Modes.current(), seen[0]
    for number in range(1, lines, lines // 8):
        graph, x = prepared("adam", 0)
        with pytest.raises(Stop), at_line(number, code):
            graph(x)
        assert Modes.current() == before, number


@pytest.mark.parametrize("kind", KINDS)
def test_later_calls_at_any_line(kind: str) -> None:
    ways = (by_line(n) for n in range(1, 100_000, 41))
    assert whole(interrupts.later_calls(kind, ways)) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["adam", *(pytest.param(k, marks=pytest.mark.sweep) for k in KINDS if k != "adam")]
)
def test_later_calls_at_each_line(kind: str) -> None:
    assert whole(interrupts.later_calls(kind, map(by_line, range(1, 100_000)))) > 500


@pytest.mark.parametrize("kind", ["adam", "gradients"])
def test_first_calls_at_some_lines(kind: str) -> None:
    lines = (3_000, 30_000)
    assert whole(interrupts.first_calls(kind, map(by_line, lines))) == 2


@pytest.mark.parametrize("kind", ["adam", "micro-batches"])
def test_signals(kind: str) -> None:
    _graph, _x = prepared(kind, 3)
    ways = [by_signal(n * 5e-5 + 1e-6) for n in range(16)]
    assert False not in list(interrupts.later_calls(kind, ways))
    first = [by_signal(0.05 + 0.3 * n) for n in range(2)]
    assert False not in list(interrupts.first_calls(kind, first))


def test_the_harness_finds_torn_states(monkeypatch: pytest.MonkeyPatch) -> None:
    from gflow.call.transaction import Call

    monkeypatch.setattr(Call, "settle", lambda self, error, whole=False: None)
    (graph, x), _ = (
        prepared("adam", 2) for _ in range(2)
    )  # as `later_calls` does: guards are read again
    with at_line(0, call_path) as seen:
        graph(x)
    last = (by_line(seen[0] - n) for n in range(5, 125, 30))  # lines after the run
    assert False in [next(interrupts.later_calls("adam", [way])) for way in last]


@pytest.mark.parametrize("kind", ["adam", "gradients", "scaled"])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_compilation_that_fails(
    kind: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x = prepared(kind, 0)
    before = snapshot(graph)

    def fail(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("gflow.call.plans.new_plan.compile_step", fail)
        with pytest.raises(error):
            graph(x)
    assert same(snapshot(graph), before)
    graph(x)
    assert same(snapshot(graph), snapshot(prepared(kind, 1)[0]))


class Failing(Train):
    """A step that can fail, in program order behind the backward."""

    def build(self, x: Tensor) -> Tensor:
        loss = super().build(x)
        return loss + may_fail(x).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_fails(kind: str) -> None:
    graph, x = Failing(kind), torch.randn(8, 6)
    for _ in range(2):
        graph(x)
    before = snapshot(graph)
    _fails.append(1)
    with pytest.raises(ArithmeticError, match="on purpose"):
        graph(x)
    assert same(snapshot(graph), before)
    _fails.clear()
    graph(x)
    assert graph.state_dict()["graph.step"] == 3


class Chained(torch.optim.SGD):
    """The second parameter's update needs the first one's new value, by a step that can fail."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            last = None
            for p in self.param_groups[0]["params"]:
                step = p.grad if last is None else p.grad + may_fail(last).sum()
                p.sub_(step, alpha=0.1)
                last = p


class Linear(flow.nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 2)
        self.add_optimizer(Chained(self.model.parameters(), 0.1))

    def build(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def test_a_step_that_fails_between_updates() -> None:
    graph, x = Linear(), torch.randn(3, 4)
    graph(x)
    before = snapshot(graph)
    _fails.append(1)
    with pytest.raises(ArithmeticError, match="on purpose"):
        graph(x)
    assert same(snapshot(graph), before)


def test_a_step_that_is_not_expected_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be neither undone nor finished is said, and no call goes on from it."""
    for module in ("passes.memory.materialize", "passes.schedule.dependences"):
        monkeypatch.setattr(f"gflow.compiler.{module}.may_fail", lambda o: False)
    graph, x = Linear(), torch.randn(3, 4)
    graph(x)
    saved = dict(graph.state_dict())
    saved["model"] = {k: v.clone() for k, v in saved["model"].items()}
    _fails.append(1)
    with pytest.raises(RuntimeError, match="had been updated: on purpose"):
        graph(x)
    _fails.clear()
    with pytest.raises(flow.GraphError, match=r"test_interrupts.py.*middle of a step.*on purpose"):
        graph(x)
    graph.load_state_dict(saved)
    assert same(dict(graph.state_dict()["model"]), saved["model"])
    graph(x)


def test_a_scheduler_that_fails() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)

    class Bad(torch.optim.lr_scheduler.ExponentialLR):
        bad = False

        def get_lr(self) -> Any:
            if self.bad:
                raise ZeroDivisionError("no rate")
            return super().get_lr()

    schedule = Bad(optimizer, 0.5)

    class Linear(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer, schedule)

        def build(self, x: Tensor) -> Tensor:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    graph, x = Linear(), torch.randn(3, 4)
    graph(x)
    schedule.bad = True
    with pytest.raises(ZeroDivisionError) as error:
        graph(x)
    assert graph.state_dict()["graph.step"] == 2
    assert (schedule.last_epoch, optimizer.param_groups[0]["lr"]) == (1, 0.5)
    if hasattr(error.value, "__notes__"):
        assert "step 2 has taken place" in error.value.__notes__[0]
    schedule.bad = False
    graph(x)
    assert optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize("way", ["compile", "gradients", "dynamo"])
def test_compiled_modules(way: str) -> None:
    """Statistics and random state of a call that is interrupted."""

    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
        model.requires_grad_(way == "gradients")
        fast: Any = flow.compile(model)
        if way == "dynamo":
            fast = torch.compile(model, backend="gflow")
        fast(x)
        return model, fast

    x = torch.randn(8, 3)
    (model, fast), (other, reference) = make(), make()
    for n in itertools.count(1, 11):
        seed = torch.get_rng_state()
        before = {k: v.clone() for k, v in model.state_dict().items()}
        try:
            with interrupts.at_line(n, interrupts.call_path):
                fast(x)
            break
        except Stop:
            pass
        found, drawn = dict(model.state_dict()), torch.get_rng_state()
        if same(found, before):
            assert torch.equal(drawn, seed)
        torch.set_rng_state(seed)
        if not same(found, before):
            reference(x)
            assert same(found, dict(other.state_dict()))
            assert torch.equal(drawn, torch.get_rng_state())
    assert n > 20


def test_modes_of_an_interrupted_trace_with_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in `__enter__` or `__exit__` of a mode leaves it on PyTorch's stack."""

    def interrupted(*_: object) -> None:
        TorchDispatchMode().__enter__()
        torch._C._set_grad_enabled(False)
        raise KeyboardInterrupt

    fast, x = flow.compile(lambda x: x.sin()), torch.randn(3, requires_grad=True)
    with monkeypatch.context() as patch:
        patch.setattr("gflow.functions.differentiable.trace_graph", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fast(x)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.is_grad_enabled()
    torch.testing.assert_close(fast(x), x.sin())
