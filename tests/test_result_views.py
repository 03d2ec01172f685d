"""Results that lie in the memory of arguments, parameters, buffers or each other: what the caller writes there is seen
where eager shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gflow as flow
from gflow import nn

Tensor = torch.Tensor


class _Calls(nn.Graph):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, *args: Any) -> Any:
        return self.function(*args)


def _grows(x: Tensor) -> Any:
    y = x[1:]
    x.mul_(2)
    return y, x, x.t()[::2]


def _new(x: Tensor) -> Any:
    y = x.contiguous() * 2
    return y[:2], y, y[::3], y


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda x: (x, x),
    "views": lambda x: (x.t(), x[1:, ::2], x.unsqueeze(0).expand(3, *x.shape), x.diagonal()),
    "chunks": lambda x: x.chunk(2, 1),
    "other dtype": lambda x: (x.view(torch.int32), x),
    "updated": _grows,
    "new": _new,
    "copies": lambda x: (x.clone(), x + 0, x.contiguous()),
}
INPUTS: dict[str, Callable[[], Tensor]] = {
    "dense": lambda: torch.arange(24.0).view(4, 6),
    "transposed": lambda: torch.arange(24.0).view(6, 4).t(),
    "gaps": lambda: torch.arange(60.0)[7:55].view(4, 12)[:, ::2],
}


def _flat(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _compare(compiled: Any, function: Any, make: Callable[[], Tensor], grad: bool = False) -> None:
    count = len(_flat(function(make())))
    for written in range(-1, count):  # the argument, then each result
        mine, want = make(), make()
        for x in (mine, want):
            x.requires_grad_(grad)
        found, wanted = _flat(compiled(mine)), _flat(function(want))
        for x, results in ((mine, found), (want, wanted)):
            target = x if written < 0 else results[written]
            target.detach()[0].fill_(7)
        torch.testing.assert_close(mine.detach(), want.detach())
        for a, b in zip(found, wanted):
            torch.testing.assert_close(a.detach(), b.detach())
        same = [[a is b for b in (x, *r)] for x, r in ((mine, found), (want, wanted)) for a in r]
        assert same[:count] == same[count:]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_graphs(name: str, kind: str) -> None:
    _compare(_Calls(FUNCTIONS[name]), FUNCTIONS[name], INPUTS[kind])


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("updated",)])
def test_compiled_functions(name: str, grad: bool) -> None:
    _compare(flow.compile(FUNCTIONS[name]), FUNCTIONS[name], INPUTS["dense"], grad)


def test_gradients_go_through_views_of_arguments() -> None:
    def function(x: Tensor) -> Any:
        return x[1:].t(), (x * x).sum(), x

    mine, want = (INPUTS["dense"]().requires_grad_() for _ in range(2))
    for x, call in ((mine, flow.compile(function)), (want, function)):
        view, loss, same = call(x)
        (view.sum() * 3 + loss + same.square().mean()).backward()
    torch.testing.assert_close(mine.grad, want.grad)


class _Reversed(torch.autograd.Function):
    """The gradient turned round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def _hooked(x: Tensor) -> Tensor:
    y = x[1:]
    y.register_hook(lambda gradient: gradient * 3)
    return y


DIFFERENTIATED: dict[str, Callable[[Tensor], Any]] = {
    "views": FUNCTIONS["views"],
    "cut off": lambda x: (x.detach()[1], x.detach(), x[1], (x * x).sum()),
    "of a result": lambda x: (y := x * 2, y[1], y.detach()[0]),
    "turned round": _Reversed.apply,
    "hooked": _hooked,
}
OVERLAPPING: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.arange(9.0).as_strided((4, 6), (1, 1)),
    "expanded": lambda: torch.arange(6.0).expand(4, 6),
}


@pytest.mark.parametrize("kind", ["dense", *OVERLAPPING])
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_of_views_are_those_of_the_function(name: str, kind: str) -> None:
    function = DIFFERENTIATED[name]
    seen = []
    for call in (flow.compile(function), function):
        given = {**INPUTS, **OVERLAPPING}[kind]().requires_grad_()
        results = _flat(call(given if kind == "rows" else given.view(given.shape)))
        loss = sum(
            (r * torch.arange(float(r.numel())).view(r.shape)).sum()
            for r in results
            if r.requires_grad
        )
        assert isinstance(loss, Tensor)
        (gradient,) = torch.autograd.grad(loss, given)
        seen.append(([r.requires_grad for r in results], gradient))
    assert seen[0][0] == seen[1][0]
    torch.testing.assert_close(seen[0][1], seen[1][1])


def test_sizes_that_vary() -> None:
    def function(x: Tensor) -> Any:
        y = x + 1
        return x[1:], x, y, y[:, 1:]

    graph = _Calls(function)
    for rows in (4, 7):
        x = torch.zeros(rows, 3)
        found = graph(flow.dynamic_dim(x, 0, min=2, max=9))
        for part in found:
            part.add_(1)
        wanted = torch.full((rows, 3), 1.0)
        wanted[1:] += 1
        torch.testing.assert_close(x, wanted)
        assert found[2][:, 1:].eq(3).all()
        assert found[2][:, 0].eq(2).all()


class _Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        self.total.add_(x)
        return self.total, self.total[:2], self.weight


def test_buffers_and_parameters() -> None:
    mine, want = _Counts(), _Counts()
    graph = _Calls(mine)
    for _ in range(3):
        x = torch.randn(4)
        found, wanted = graph(x), want(x)
        torch.testing.assert_close([*found], [w.detach() for w in wanted])
        assert found[0] is mine.total
        assert found[2] is mine.weight
        for parts in (found, wanted):
            parts[1].mul_(2)
            parts[2].detach().add_(1)
    torch.testing.assert_close(dict(mine.state_dict()), dict(want.state_dict()))


def test_the_first_step_of_a_graph() -> None:
    model = torch.nn.Linear(3, 1)

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(torch.optim.Rprop(model.parameters()))

        def build(self, x: Tensor) -> Any:
            self.model(x).sum().backward()
            return x[1:], self.model.bias

    graph, x = Train(), torch.zeros(2, 3)
    for _ in range(3):
        rows, bias = graph(x)
        rows.add_(1)
        assert bias.data_ptr() == model.bias.data_ptr()
    assert x[1].eq(3).all()
    assert x[0].eq(0).all()


def test_a_parameter_is_itself() -> None:
    """Also after it got other memory, or another type: a leaf has no history that a result could not have."""
    layer = torch.nn.Linear(3, 3)
    graph = _Calls(lambda x: (layer.weight, layer.weight[0], x, x * layer.weight))
    x = torch.ones(3, 3, requires_grad=True)
    later = x * 1
    for given in (x, later):
        weight, row, same, product = graph(given)
        assert weight is layer.weight
        assert (same is given) == given.is_leaf
        assert not any(t.grad_fn for t in (weight, row, same, product))
    layer.weight.data = torch.zeros(3, 3)
    assert not weight.any()
