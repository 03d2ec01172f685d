"""State that shares memory from call to call: right where a program can hold it, an error where it cannot."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mean_square import beside_eager

import gflow as flow
from gflow import nn

Tensor = torch.Tensor
State = dict[str, Any]
Update = Callable[[Tensor, Tensor, State], None]


class _By(torch.optim.Optimizer):
    """An optimizer of one function of a parameter, its gradient and its state."""

    def __init__(self, parameters: Any, update: Update, start: Callable[[Tensor], State]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.update = update
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].update(start(p))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, p.grad, self.state[p])


def _trained(update: Update, start: Callable[[Tensor], State] = lambda p: {}) -> None:
    """Four steps beside eager."""
    torch.manual_seed(0)
    mine = torch.nn.Linear(3, 2).double()
    want = copy.deepcopy(mine)
    ours, theirs = (_By(m.parameters(), update, start) for m in (mine, want))
    beside_eager(mine, ours, want, theirs, 4)


def _zeros(*names: str) -> Callable[[Tensor], State]:
    return lambda p: {name: torch.zeros_like(p) for name in names}


def _rotates(p: Tensor, grad: Tensor, state: State) -> None:
    state["last"] = [*state["last"][1:], grad.clone()]
    p.sub_(0.1 * state["last"][0] + 0.2 * state["last"][1] + 0.3 * state["last"][2])


def _swaps(p: Tensor, grad: Tensor, state: State) -> None:
    state["a"], state["b"] = state["b"], state["a"]
    state["a"].add_(grad)
    p.sub_(0.1 * state["a"] + 0.05 * state["b"])


def _hands_on(p: Tensor, grad: Tensor, state: State) -> None:
    state["before"], state["now"] = state["now"], grad.clone()
    p.sub_(0.1 * state["now"] + 0.05 * state["before"])


def _cuts(p: Tensor, grad: Tensor, state: State) -> None:
    both = torch.cat([state["a"] + grad, state["b"] - grad])
    state["a"], state["b"] = both.chunk(2)
    state["a"].mul_(0.9)
    p.sub_(0.1 * (state["a"] - state["b"]))


@pytest.mark.parametrize(
    ("update", "start"),
    [
        (_rotates, lambda p: {"last": [torch.zeros_like(p) for _ in range(3)]}),
        (_swaps, _zeros("a", "b")),
        (_hands_on, _zeros("before", "now")),
        (_cuts, _zeros("a", "b")),
    ],
)
def test_tensors_that_change_places(update: Update, start: Callable[[Tensor], State]) -> None:
    _trained(update, start)


def test_one_tensor_at_two_places() -> None:
    def start(p: Tensor) -> State:
        total = torch.zeros_like(p)
        return {"a": total, "b": [total]}

    def update(p: Tensor, grad: Tensor, state: State) -> None:
        state["a"].add_(grad)
        p.sub_(0.1 * state["b"][0])

    _trained(update, start)


def _keeps_another(p: Tensor, grad: Tensor, state: State) -> None:
    state["sum"].add_(grad)
    p.sub_(0.1 * state["sum"] + 0.1 * state["best"])
    state["best"] = state["sum"]


def _keeps_a_view(p: Tensor, grad: Tensor, state: State) -> None:
    _keeps_another(p, grad, state)
    state["best"] = state["sum"].view(p.shape)


def _keeps_the_parameter(p: Tensor, grad: Tensor, state: State) -> None:
    p.sub_(0.1 * grad + 0.01 * state["best"])
    state["best"] = p.detach()


def _has_one_of_two(p: Tensor, grad: Tensor, state: State) -> None:
    p.sub_(0.1 * grad + 0.1 * state["a"])
    state["b"] = grad.clone()


def _adds_to_the_whole(p: Tensor, grad: Tensor, state: State) -> None:
    state["flat"].add_(grad.flatten())
    p.sub_(0.1 * state["part"])


def _flat(p: Tensor) -> State:
    flat = torch.zeros(p.numel(), dtype=p.dtype)
    return {"flat": flat, "part": flat.view(p.shape)}


def _twice(p: Tensor) -> State:
    both = torch.zeros_like(p)
    return {"a": both, "b": both}


def _makes_a_view(p: Tensor, grad: Tensor, state: State) -> None:
    if not state:
        state.update(_flat(p))
    _adds_to_the_whole(p, grad, state)


def _makes_the_parameter(p: Tensor, grad: Tensor, state: State) -> None:
    state.setdefault("p", p.data)
    p.sub_(0.1 * grad)
    p.sub_(0.1 * state["p"])


@pytest.mark.parametrize(
    ("update", "start"),
    [
        (_keeps_another, _zeros("sum", "best")),
        (_keeps_a_view, _zeros("sum", "best")),
        (_keeps_the_parameter, _zeros("best")),
        (_has_one_of_two, _twice),
        (_adds_to_the_whole, _flat),
        (_makes_a_view, dict),
        (_makes_the_parameter, dict),
    ],
)
def test_state_in_one_memory_is_refused(update: Update, start: Callable[[Any], State]) -> None:
    with pytest.raises(flow.GraphTraceError, match=r"clone\(\)"):
        _trained(update, (lambda p: {}) if start is dict else start)


class _Held(torch.nn.Module):
    def __init__(self, forward: Callable[[Any, Tensor], Tensor], same: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", self.a if same else torch.zeros(4))
        self.own = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self, x)


def _assigns_one(m: Any, x: Tensor) -> Tensor:
    y = m.a + 2 * m.b
    m.a = m.b = x * 2
    return y


def _assigns_parts(m: Any, x: Tensor) -> Tensor:
    both = torch.cat([x, x])
    y = m.a + 2 * m.b
    m.a, m.b = both[:4], both[2:6]
    return y


def _assigns_the_parameter(m: Any, x: Tensor) -> Tensor:
    y = m.a + x * m.weight
    m.a = m.weight.data
    return y


def _assigns_to_one_name(m: Any, x: Tensor) -> Tensor:
    y = m.a + 2 * m.b
    m.a = m.a + x
    return y


class _Calls(nn.Graph):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Tensor) -> Any:
        return self.model(x)


@pytest.mark.parametrize(
    ("forward", "same"),
    [
        (_assigns_one, False),
        (_assigns_parts, False),
        (_assigns_the_parameter, False),
        (_assigns_to_one_name, True),
    ],
)
def test_buffers_that_become_one(forward: Any, same: bool) -> None:
    with pytest.raises(flow.GraphTraceError, match=r"clone\(\)"):
        _Calls(_Held(forward, same))(torch.ones(4))


def test_buffers_that_become_one_in_compiled_modules() -> None:
    mine, want = _Held(_assigns_one), _Held(_assigns_one)
    compiled = flow.compile(mine)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4)
            torch.testing.assert_close(compiled(x), want(x))


def _assigns_both(m: Any, x: Tensor) -> Tensor:
    y = m.a + 2 * m.b
    m.a, m.b = torch.cat([x, 2 * x]).chunk(2)
    return y


def test_buffers_that_get_parts_apart() -> None:
    mine, want = _Held(_assigns_both), _Held(_assigns_both)
    graph = _Calls(mine)
    for _ in range(3):
        x = torch.randn(4)
        torch.testing.assert_close(graph(x), want(x))
    torch.testing.assert_close(dict(mine.state_dict()), dict(want.state_dict()))


def _views(m: Any) -> None:
    m.b = m.a[:2]


def _assigns_the_view(m: Any, x: Tensor) -> Tensor:
    m.b = m.b + x[:2]
    return m.a.sum() + m.b.sum()


def _assigns_the_whole(m: Any, x: Tensor) -> Tensor:
    m.a = m.a + x
    return m.a.sum() + m.b.sum()


def _assigns_unread(m: Any, x: Tensor) -> Tensor:
    m.a.add_(x)
    m.b = x[:2] * 2
    return m.a.sum()


@pytest.mark.parametrize("forward", [_assigns_the_view, _assigns_the_whole, _assigns_unread])
def test_views_that_become_tensors_of_their_own(forward: Any) -> None:
    model = _Held(forward)
    _views(model)
    with pytest.raises(flow.GraphTraceError, match=r"clone\(\)"):
        _Calls(model)(torch.ones(4))


def test_spectral_norm_of_old() -> None:
    """Its attribute `weight` lies in the memory of a parameter until the first call, and is not read."""
    torch.manual_seed(0)
    mine = torch.nn.utils.spectral_norm(torch.nn.Linear(3, 2).double())
    want = copy.deepcopy(mine)
    graph = _Calls(mine)
    for _ in range(3):
        x = torch.randn(4, 3, dtype=torch.float64)
        torch.testing.assert_close(graph(x), want(x).detach())
    torch.testing.assert_close(dict(mine.state_dict()), dict(want.state_dict()))
