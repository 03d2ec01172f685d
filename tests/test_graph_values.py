"""What goes in and out of a graph: nested values, attributes, captured tensors, updates in place."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import gflow as flow
from gflow import nn


class Call(nn.Graph):
    """A graph of one function, with attributes."""

    def __init__(self, function: Any = None, **attributes: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Named(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Data:
    a: Any
    b: Any = None


@dataclasses.dataclass(frozen=True)
class Inner:
    parts: list[Any]


X = torch.arange(6.0).reshape(2, 3)


def test_structures_come_back_as_they_went_in() -> None:
    def function(n: Named, d: Data, /, *rest: Any, key: Any = None, **more: Any) -> Any:
        assert isinstance(n, Named)
        assert isinstance(d.b, Inner)
        ordered = collections.OrderedDict(z=rest[0] + 1, y=None)
        return Named(n.a * 2, [()]), Data(d.a - d.b.parts[0], Inner([key, {}])), ordered, more["w"]

    out = Call(function)(Named(X, None), Data(X, Inner([X])), X, key=X, w={"v": (X, "text")})
    assert isinstance(out[0], Named)
    assert torch.equal(out[0].a, X * 2)
    assert out[0].b == [()]
    assert isinstance(out[1], Data)
    assert torch.equal(out[1].a, X * 0)
    assert isinstance(out[1].b, Inner)
    assert torch.equal(out[1].b.parts[0], X)
    assert out[1].b.parts[1] == {}
    assert list(out[2]) == ["z", "y"]
    assert torch.equal(out[2]["z"], X + 1)
    assert out[3]["v"][1] == "text"
    assert Call(lambda: {"a": [(), {}, None]})() == {"a": [(), {}, None]}


@dataclasses.dataclass
class OnlyOut:
    deep: Any


def test_dataclasses_in_dataclasses_of_results() -> None:
    out = Call(lambda x: OnlyOut([Data(OnlyOut((x + 1, "kept")))]))(X)
    assert torch.equal(out.deep[0].a.deep[0], X + 1)
    assert out.deep[0].a.deep[1] == "kept"


def test_names_of_inputs_in_a_dataclass() -> None:
    class OfData(nn.Graph):
        def build(self, data: Data) -> Any:
            return data.a

    with pytest.raises(flow.GraphInputError, match=r"input 'data\.b' is an object of type"):
        OfData()(Data(X, object()))


def test_attributes() -> None:
    linear = torch.nn.Linear(3, 3)
    weight, count = torch.nn.Parameter(torch.ones(3)), torch.zeros(3)
    graph = Call(
        layers=[linear, torch.nn.Tanh()], shared=linear, w=weight, count=count, d={"k": (linear,)}
    )

    def function(x: torch.Tensor) -> torch.Tensor:
        graph.count.add_(1)
        y = x
        for layer in graph.layers:
            y = layer(y)
        return graph.shared(y) + graph.w + graph.d["k"][0](x)

    def expected() -> torch.Tensor:
        return (linear(torch.tanh(linear(X))) + graph.w + linear(X)).detach()

    graph.function = function
    torch.testing.assert_close(graph(X), expected())
    with torch.no_grad():
        weight.add_(1)
    torch.testing.assert_close(graph(X), expected())
    graph.w = torch.nn.Parameter(torch.full((3,), 5.0))
    torch.testing.assert_close(graph(X), expected())
    assert torch.equal(count, torch.full((3,), 3.0))
    graph.count = torch.zeros(3)
    graph(X)
    assert torch.equal(graph.count, torch.ones(3))


def test_training_parameters_that_are_attributes() -> None:
    graph = Call(w=torch.nn.Parameter(torch.ones(3)), more=[torch.nn.Parameter(torch.ones(3))])
    graph.add_optimizer(torch.optim.SGD([graph.w, graph.more[0]], 0.1))
    graph.function = lambda x: (x * graph.w * graph.more[0]).sum().backward()
    graph(X)
    for parameter in (graph.w, graph.more[0]):
        torch.testing.assert_close(parameter.detach(), 1 - 0.1 * X.sum(0))


def test_an_attribute_may_be_rebound_in_build() -> None:
    state = torch.zeros(3)
    graph = Call(state=state)

    def function(x: torch.Tensor) -> torch.Tensor:
        graph.state = graph.state + 1
        return x + graph.state

    graph.function = function
    for n in (1, 2, 3):
        assert torch.equal(graph(X), X + n)
    assert graph.state is state
    assert torch.equal(state, torch.full((3,), 3.0))


def test_captured_tensors_are_live() -> None:
    outside = torch.ones(3)

    def function(x: torch.Tensor) -> torch.Tensor:
        outside.mul_(2)
        return x * outside

    graph = Call(function)
    assert torch.equal(graph(X), X * 2)
    outside.fill_(7)
    assert torch.equal(graph(X), X * 14)
    assert torch.equal(outside, torch.full((3,), 14.0))


def both(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    u.add_(1)
    v.mul_(2)
    return u + v


def first(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    u.add_(1)
    return u * 2


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (torch.add, lambda a: (a[0, :4], a[0, 2:6])),
        (both, lambda a: (a, a)),
        (first, lambda a: (a.t(), torch.ones(1))),
        (first, lambda a: (a[:, ::2], torch.ones(1))),
        (first, lambda a: (a[:0], torch.ones(0))),
        (torch.mul, lambda a: (a[:1].expand(3, 8), a[0])),
        (torch.mul, lambda a: (a.as_strided((3, 4), (1, 2)), a[0, :4])),
    ],
    ids=["overlap", "same", "transposed", "stepped", "empty", "expanded", "windows"],
)
def test_aliases_strides_and_empty_inputs(function: Any, make: Callable[[Any], Any]) -> None:
    mine, other = (torch.arange(32.0).reshape(4, 8) for _ in range(2))
    given = make(mine)
    graph = Call(lambda *args: function(*args))
    for _ in range(2):
        torch.testing.assert_close(graph(*given), function(*make(other)))
        torch.testing.assert_close(mine, other)


def test_updates_that_no_program_can_make() -> None:
    def message(function: Any, x: torch.Tensor) -> str:
        with pytest.raises(flow.GraphTraceError) as caught:
            Call(function)(x)
        assert __file__ in str(caught.value)
        return str(caught.value)

    assert "from float32[2, 3] to float32[3, 2]" in message(lambda x: x.t_(), X.clone())
    expanded = torch.zeros(1, 3).expand(2, 3)
    assert "some of its elements are one in memory" in message(lambda x: x.add_(1), expanded)
    assert torch.equal(expanded, torch.zeros(2, 3))


@pytest.mark.parametrize(
    "function",
    [
        torch.cov,
        torch.corrcoef,
        lambda x: torch.cov(x, correction=5),
        lambda x: torch.quantile(x, 0.3),
    ],
)
def test_numbers_that_pytorch_asks_for_in_its_own_code(function: Any) -> None:
    """It makes a tensor of the number of observations, and asks for its value. With as many as are corrected for, the
    result is infinite or NaN, and eager warns."""
    x = torch.randn(3, 5, requires_grad=True)
    graph = Call(lambda x: torch.autograd.grad(function(x).square().sum(), x)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (wanted,) = torch.autograd.grad(function(x).square().sum(), x)
        torch.testing.assert_close(graph(x), wanted, equal_nan=True)
        torch.testing.assert_close(Call(function)(x), function(x), equal_nan=True)


@pytest.mark.parametrize("make", [torch.linspace, torch.logspace])
def test_integers_between_bounds_that_are_tensors(make: Any) -> None:
    """Bounds are rounded first, and refused out of range, as by eager's kernels."""
    graph = Call(lambda x, y: make(x, y, 5, dtype=torch.int64))
    for bounds in ((1.7, 4.0), (0.2, 3.9), (-1.6, 2.2)):
        x, y = map(torch.tensor, bounds)
        assert torch.equal(graph(x, y), make(x, y, 5, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="cannot be converted"):
        graph(torch.tensor(float("nan")), torch.tensor(4.0))


@pytest.mark.parametrize("dims", [-3, -1, 0, (0, -1)], ids=str)
@pytest.mark.parametrize("order", [float("inf"), -1.0, 2.0])
def test_norms_without_elements_over_dimensions_from_the_end(dims: Any, order: float) -> None:
    x = torch.zeros(1, 0, 2)
    for keep in (False, True):
        expected = torch.linalg.vector_norm(x, order, dims, keep)
        found = flow.compile(lambda x: torch.linalg.vector_norm(x, order, dims, keep))(x)  # noqa: B023
        assert (found.shape, found.stride()) == (expected.shape, expected.stride())
    with pytest.raises(RuntimeError, match="does not have an identity"):
        flow.compile(lambda x: torch.linalg.vector_norm(x, -1.0, -2))(x)
