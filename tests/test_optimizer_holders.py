"""What an optimizer may keep its Python state in; tensors that are exchanged, or come to share memory."""

from __future__ import annotations

import array
import collections
import contextvars
import copy
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn, optim

import gflow as flow


class Counting:
    def __init__(self) -> None:
        self.n = 0


class Words(dict[str, int]):
    __getattr__ = dict.__getitem__


class Rows(list[int]):
    def bump(self) -> None:
        self[0] += 1


class Holding(optim.Optimizer):
    """The rate is `count(held)`."""

    def __init__(self, params: Any, held: Any, count: Callable[[Any], float]) -> None:
        super().__init__(params, {})
        self.held, self.count = held, count

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        rate = self.count(self.held)
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=rate)


class Step(flow.nn.Graph):
    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def trained(
    make: Callable[[nn.Module], Any],
    graph: bool,
    change: Callable[[int, nn.Module, Any], None] = lambda *_: None,
    model: Callable[[], nn.Module] = lambda: nn.Linear(3, 2),
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = model().double()
    optimizer = make(net)
    step = Step(net, optimizer) if graph else None
    for n in range(4):
        change(n, net, optimizer)
        x = torch.linspace(-1, 1 + n, 12, dtype=torch.float64).view(4, 3)
        if step is not None:
            step(x)
        else:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


def _items(held: Any) -> float:
    held["k"] += 1
    return 0.1 / held["k"]


def _first(held: Any) -> float:
    held[0] += 1
    return 0.1 / held[0]


def _attribute(held: Any) -> float:
    held.n += 1
    return 0.1 / held.n


def _all(held: Any) -> float:
    schedule = held[-1]
    schedule.step()
    items = sum(_items(h) for h in held[:5])
    return (
        items + _first(held[5]) + sum(map(_attribute, held[6:8])) + float(schedule.get_last_lr()[0])
    )


def _holders() -> list[Any]:
    inner = optim.SGD([torch.zeros(1)], lr=0.1)
    return [
        collections.UserDict(k=0), collections.ChainMap({"k": 0}), collections.OrderedDict(k=0),
        collections.Counter(k=0), collections.defaultdict(int), collections.UserList([0]),
        types.SimpleNamespace(n=0), Counting(), optim.lr_scheduler.CosineAnnealingLR(inner, 3),
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Detected call")
def test_objects_that_hold_state() -> None:
    def make(net: nn.Module) -> Any:
        return Holding(net.parameters(), _holders(), _all)

    torch.testing.assert_close(trained(make, True), trained(make, False))


def _local(held: Any) -> float:
    held.n = getattr(held, "n", 0) + 1
    return 0.1 / held.n


def _variable(held: Any) -> float:
    held.set(held.get() + 1)
    return 0.1 / held.get()


def _added(held: Any) -> float:
    held.update(["k"])
    return 0.1 / held["k"]


def _moved(held: Any) -> float:
    held.move_to_end(next(iter(held)))
    return 0.1 * next(iter(held.values()))


def _bumped(held: Any) -> float:
    held.bump()
    return 0.1 / held[0]


def _scaled(held: Any) -> float:
    held *= 0.9
    return float(held[0])


@pytest.mark.parametrize(
    ("held", "count"),
    [
        (array.array("d", [0]), _first), (memoryview(bytearray(1)), _first), (numpy.ones(1), _scaled),
        (threading.local(), _local), (contextvars.ContextVar("n", default=0), _variable),
        (collections.Counter(), _added), (collections.OrderedDict(a=1, b=2), _moved),
        (Rows([0]), _bumped), (Words(k=0), _items),
    ],
    ids=lambda v: type(v).__name__ if not callable(v) else "",
)  # fmt: skip
def test_what_a_graph_cannot_follow_is_an_error(held: Any, count: Callable[[Any], float]) -> None:
    with pytest.raises(flow.GraphTraceError, match=r"step\(\)"):
        trained(lambda net: Holding(net.parameters(), held, count), True)


def test_the_class_of_an_optimizer_stays() -> None:
    """`type(self)` in a step is its class; what a step sets there is an error."""
    rates = {Holding: 0.2}

    class Typed(Holding):
        def step(self, closure: Any = None) -> None:
            assert type(self) is Typed
            super().step()

    class Counted(Holding):
        n = 0

        def step(self, closure: Any = None) -> None:
            type(self).n += 1
            super().step()

    before = {*vars(Typed)}
    found = [
        trained(lambda net: Typed(net.parameters(), None, lambda _: rates[Typed.__base__]), graph)  # type: ignore[index]
        for graph in (True, False)
    ]
    torch.testing.assert_close(*found)
    assert {*vars(Typed)} == before
    with pytest.raises(flow.GraphTraceError, match=r"Counted\.n \(1 to 2\)"):
        trained(lambda net: Counted(net.parameters(), None, lambda _: 0.1 / Counted.n), True)


def _exchanged(n: int, net: nn.Module, optimizer: Any) -> None:
    """Of the rates, which are one tensor with the default, one becomes another."""
    if n == 1:
        optimizer.param_groups[1]["lr"] = torch.tensor(0.5)
    if n == 3:
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"]


def test_tensors_that_were_one_and_are_not_any_more() -> None:
    def make(net: nn.Module) -> Any:
        groups = [{"params": [p]} for p in net.parameters()]
        return optim.SGD(groups, lr=torch.tensor(0.1))

    torch.testing.assert_close(trained(make, True, _exchanged), trained(make, False, _exchanged))


def test_state_that_becomes_one_tensor() -> None:
    def joined(n: int, net: nn.Module, optimizer: Any) -> None:
        for state in optimizer.state.values() if n == 2 else ():
            state["momentum_buffer"] = state["square_avg"]

    def make(net: nn.Module) -> Any:
        return optim.RMSprop(net.parameters(), lr=0.01, momentum=0.9)

    torch.testing.assert_close(trained(make, True, joined), trained(make, False, joined))


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("p", torch.arange(4.0))
        self.register_buffer("q", torch.arange(4.0) * 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.p.add_(1)
        self.q.mul_(2)
        return self.p * 100 + self.q + x


@pytest.mark.parametrize("way", ["data", "set_"])
def test_buffers_that_come_to_lie_in_one_memory(way: str) -> None:
    found = []
    for compiled in (False, True):
        net: Any = Buffers()
        call = flow.compile(net) if compiled else net
        results = []
        for n in range(4):
            if n == 2 and way == "set_":
                net.q.set_(net.p)
            elif n == 2 and way == "data":
                net.q.data = net.p.data
            with torch.no_grad():
                results.append(call(torch.ones(4)).clone())
        found.append([*results, copy.deepcopy(net.state_dict())])
    torch.testing.assert_close(*found)


class Wrapping(optim.Optimizer):
    """Its groups and state are another optimizer's, and it keeps a tensor of each parameter itself, by its id."""

    param_groups = property(lambda self: self.inner.param_groups)  # type: ignore[assignment]
    state = property(lambda self: self.inner.state)  # type: ignore[assignment]

    def __init__(self, params: Any) -> None:
        self._optimizer_step_pre_hooks = collections.OrderedDict()
        self._optimizer_step_post_hooks = collections.OrderedDict()
        self.inner = optim.Adam(params, lr=0.01)
        self.defaults, self.means = self.inner.defaults, dict[int, torch.Tensor]()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        for p in self.param_groups[0]["params"]:
            mean = self.means.setdefault(id(p), torch.zeros_like(p))
            p.sub_(mean.lerp_(p.grad, 0.1), alpha=0.01)


def test_groups_of_another_optimizer() -> None:
    model = nn.Linear(4, 3).double()
    other = copy.deepcopy(model)
    reference = Wrapping(other.parameters())
    graph = Step(model, Wrapping(model.parameters()))
    for _ in range(3):
        x = torch.randn(2, 4).double()
        graph(x)
        other.zero_grad()
        other(x).square().mean().backward()
        reference.step()
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()))
