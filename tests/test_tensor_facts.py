"""What a program depends on besides values: methods and functions of PyTorch's that someone replaces after the first
call, attributes of arguments, what Python asks of a tensor, the precision of decimals."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gflow as flow
from gflow.errors import GraphTraceError

X = torch.tensor([-1.0, 2.0, 3.0])
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
COMPILED: list[Compile] = [flow.nn.Graph.trace, flow.compile]


def _times_7(*args: Any, **_: Any) -> Tensor:
    return next(a for a in args if type(a) is Tensor) * 7


#: what holds it, its name, what runs it, its argument
REPLACED: dict[str, tuple[Any, str, Callable[[], Callable[..., Any]], Tensor]] = {
    "forward": (nn.ReLU, "forward", nn.ReLU, X),
    "forward of a base": (
        nn.modules.batchnorm._BatchNorm, "forward", lambda: nn.BatchNorm1d(3).eval(), torch.ones(2, 3),
    ),
    "inherited forward": (nn.BatchNorm1d, "forward", lambda: nn.BatchNorm1d(3).eval(), torch.ones(2, 3)),
    "a call": (nn.ReLU, "__call__", nn.ReLU, X),
    "all calls": (nn.Module, "__call__", nn.ReLU, X),
    "what calls": (nn.Module, "_call_impl", nn.ReLU, X),
    "a helper": (nn.Conv1d, "_conv_forward", lambda: nn.Conv1d(1, 1, 1), torch.ones(1, 1, 3)),
    "nested": (nn.ReLU, "forward", lambda: nn.Sequential(nn.Sequential(nn.ReLU())), X),
    "a method of tensors": (Tensor, "relu", lambda: lambda x: x.relu(), X),
    "an operator": (Tensor, "__add__", lambda: lambda x: x + 1, X),
    "a function of a module": (F, "relu", nn.ReLU, X),
    "a function of that": (torch, "relu", nn.ReLU, X),
    "by its full name": (F, "relu", lambda: lambda x: torch.nn.functional.relu(x), X),
}  # fmt: skip


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("name", REPLACED)
def test_what_is_replaced_after_the_first_call(
    name: str, compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, attribute, make, x = REPLACED[name]
    run = make()
    ours = compiled(lambda x: run(x))
    before = ours(x)
    monkeypatch.setattr(holder, attribute, _times_7, raising=False)
    assert torch.equal(ours(x), run(x))
    monkeypatch.undo()
    assert torch.equal(ours(x), before)


@pytest.mark.parametrize("compiled", COMPILED)
def test_a_batch_norm_that_was_replaced_before(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.modules.batchnorm._BatchNorm, "forward", _times_7)
    model = nn.BatchNorm1d(3)
    assert torch.equal(compiled(lambda x: model(x))(torch.ones(2, 3)), torch.full((2, 3), 7.0))


_ONE, _THREE = decimal.Decimal(1), decimal.Decimal(3)


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * float(decimal.Decimal(1) / decimal.Decimal(3)),
        lambda x: x * float(_ONE / _THREE),
    ],
)
def test_the_precision_of_decimals(compiled: Compile, function: Callable[..., Any]) -> None:
    ours = compiled(function)
    ours(X.double())
    with decimal.localcontext() as context:
        context.prec = 2
        assert torch.equal(ours(X.double()), function(X.double()))


def _with(**attributes: Any) -> Tensor:
    tensor = X.clone()
    vars(tensor).update(attributes)
    return tensor


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize(
    ("function", "first", "second"),
    [
        (lambda x: x * getattr(x, "scale", 1.0), X, _with(scale=5.0)),
        (lambda x: x * (2 if hasattr(x, "scale") else 3), X, _with(scale=5.0)),
        (lambda x: x * x.scale, _with(scale=2.0), _with(scale=5.0)),
        (lambda x: x * x.held["scale"], _with(held={"scale": 2.0}), _with(held={"scale": 5.0})),
    ],
)
def test_attributes_of_arguments(
    compiled: Compile, function: Callable[..., Any], first: Tensor, second: Tensor
) -> None:
    ours = compiled(function)
    for x in (first, second, first):
        assert torch.equal(ours(x), function(x))


@pytest.mark.parametrize("compiled", COMPILED)
def test_attributes_of_one_argument_that_change(compiled: Compile) -> None:
    x = _with(scale=2.0, held={"scale": 2.0}, other=1)
    ours = compiled(lambda x: x * x.scale + x.held["scale"])
    ours(x)
    x.other = 2  # type: ignore[attr-defined]
    ours(x)
    if isinstance(ours, flow.nn.Graph):
        assert len(ours.explain_recompiles()) == 1  # nothing reads it
    x.scale = 3.0  # type: ignore[attr-defined]
    assert torch.equal(ours(x), x * 3 + 2)
    x.held["scale"] = 4.0  # type: ignore[attr-defined]
    assert torch.equal(ours(x), x * 3 + 4)


def _leaf() -> Tensor:
    return X.clone().requires_grad_()


def _retained() -> Tensor:
    x = _leaf() * 1
    x.retain_grad()
    return x


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize(
    ("question", "first", "second"),
    [
        (lambda x: x.is_leaf, _leaf, lambda: _leaf() * 1),
        (lambda x: x.is_leaf, lambda: _leaf() * 1, _leaf),
        (lambda x: x.retains_grad, lambda: _leaf() * 1, _retained),
        (lambda x: x._is_view(), X.clone, lambda: X.clone()[:]),
        (lambda x: x.is_shared(), X.clone, lambda: X.clone().share_memory_()),
        (lambda x: x.output_nr, lambda: _leaf().view(3, 1).unbind()[0], lambda: _leaf().view(3, 1).unbind()[2]),
    ],
)  # fmt: skip
def test_what_is_asked_of_an_argument(
    compiled: Compile, question: Callable[[Tensor], Any], first: Any, second: Any
) -> None:
    def function(x: Tensor) -> Tensor:
        return x * (2 + int(question(x)))

    ours = compiled(function)
    for x in (first(), second(), first()):
        assert torch.equal(ours(x).detach(), function(x).detach())


def test_a_history_of_an_argument_is_an_error() -> None:
    graph = flow.nn.Graph.trace(lambda x: x * (2 if x.grad_fn is None else 3))
    assert torch.equal(graph(_leaf()).detach(), X * 2)
    with pytest.raises(GraphTraceError, match="grad_fn of a tensor from outside"):
        graph(_leaf() * 1)
