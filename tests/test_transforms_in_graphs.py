"""Transforms of `torch.func` in `build()` and in functions of `gflow.compile`, beside eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

import gflow
from gflow import nn
from gflow.errors import GraphTraceError

F = torch.nn.functional
weight = torch.arange(9.0).view(3, 3) / 9
layer = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 1))


def _set(row: Tensor) -> Tensor:
    row = row.clone()
    row[0] = 5.0
    row.mul_(2).add_(row.sum())
    return row


def _causal(x: Tensor) -> Tensor:
    """A mask of positions, as libraries make them."""
    places = torch.arange(4)
    mask = vmap(vmap(lambda q, k: (q >= k) & (k > q - 2), (None, 0)), (0, None))(places, places)
    return torch.where(mask, x @ x.mT, 0.0)


def _gradients(x: Tensor) -> Any:
    """Gradients of a model for each row."""
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(given: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(layer, given, (row[None],)).square().sum()

    return vmap(grad(loss), (None, 0))(parameters, x)


fixed = torch.nn.BatchNorm1d(3).eval().requires_grad_(False)
batch = torch.nn.BatchNorm1d(3, affine=False, track_running_stats=False)


def _steps(x: Tensor) -> Tensor:
    """Steps of an inner optimization, through which the outer gradient goes."""
    w = weight
    for _ in range(2):
        w = w - 0.1 * grad(lambda v: (x @ v).tanh().square().mean())(w)
    return x @ w


class _Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return given * 3 * x**2


CASES: dict[str, Callable[[Tensor], Any]] = {
    "matrix and vectors": lambda x: vmap(lambda r: weight @ r)(x),
    "two arguments": lambda x: vmap(torch.dot, (0, 1))(x, x.mT),
    "nested": lambda x: vmap(lambda r: vmap(lambda a: a * a + r.sum())(r), out_dims=1)(x),
    "in place": lambda x: vmap(_set)(x),
    "rows by index": lambda x: vmap(lambda r, i: r[i] + r[:2].sum())(x, torch.tensor([0, 1, 2, 1])),
    "mask": _causal,
    "where": lambda x: vmap(lambda r: torch.where(r > 0, r, -r).softmax(0))(x),
    "layers": lambda x: vmap(lambda r: F.layer_norm(F.linear(r, weight), (3,)))(x),
    "table": lambda x: vmap(lambda i: F.embedding(i, x))(torch.tensor([0, 2, 1])),
    "norms": lambda x: (
        vmap(lambda r: fixed(r[None]))(x),
        grad(lambda y: (batch(y.exp()).tanh() * fixed(y)).sum())(x),
    ),
    "convolution": lambda x: vmap(lambda r: F.conv1d(r[None, None], weight[:1, None]))(x),
    "attention": lambda x: vmap(lambda r: F.scaled_dot_product_attention(r, r, r))(x.view(2, 2, 3)),
    "chunks": lambda x: vmap(lambda r: r.cumsum(0), chunk_size=2)(x),
    "grad": lambda x: grad(lambda y: y.tanh().sum())(x),
    "grad of a model": _gradients,
    "value and grad": lambda x: grad_and_value(lambda y: layer(y).sum())(x),
    "grad of grad": lambda x: grad(lambda y: grad(lambda z: (z**3).sum())(y).sum())(x),
    "jvp": lambda x: jvp(lambda y: (y @ weight).sin(), (x,), (x * 2,)),
    "vjp": lambda x: vjp(lambda y: y.exp() @ weight, x)[1](torch.ones(4, 3)),
    "vjp of two": lambda x: vjp(lambda y, z: (y * z, y.sum()), x, x * 2)[1]((x, x.sum())),
    "vjp of results": lambda x: (lambda y, f: f(y * 2)[0] + y)(*vjp(lambda y: y.sin(), x)),
    "linear in weights": lambda x: jvp(lambda w: (x @ w).tanh(), (weight,), (weight * 2,)),
    "vmap of weights": lambda x: vmap(lambda w: x @ w)(weight),
    "jacobians": lambda x: (jacrev(torch.tanh)(x[0]), jacfwd(lambda y: weight @ y.exp())(x[0])),
    "hessian": lambda x: hessian(lambda y: (weight @ y).tanh().sum())(x[0]),
    "autograd function": lambda x: vmap(grad(lambda r: _Cube.apply(r).sum()))(x),
    "if in grad": lambda x: grad(lambda y: (y * 2 if y.sum() > 0 else y.exp()).sum())(x),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_beside_eager(name: str) -> None:
    torch.manual_seed(0)
    graph, compiled = nn.Graph.trace(CASES[name]), gflow.compile(CASES[name])
    for k in range(3):
        x = torch.randn(4, 3) if k else torch.rand(4, 3)
        expected = CASES[name](x)
        torch.testing.assert_close(graph(x), expected)
        torch.testing.assert_close(compiled(x), expected)


def _train_beside_eager(outputs: int, loss_of: Callable[[torch.nn.Module, Tensor], Tensor]) -> None:
    """Three steps of a linear layer in a graph and in eager mode: equal losses and parameters."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, outputs)
    eager = copy.deepcopy(model)

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x)
        loss.backward()
        return loss

    graph = nn.Graph.trace(step)
    graph.add_optimizer(gflow.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(4, 3)
        optimizer.zero_grad()
        expected = loss_of(eager, x)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(graph(x), expected.detach())
    torch.testing.assert_close(model.state_dict(), eager.state_dict())


@pytest.mark.parametrize("name", ["steps", "layers", "hessian", "in place"])
def test_training(name: str) -> None:
    """Gradients go through the transforms to parameters."""
    function = _steps if name == "steps" else CASES[name]
    _train_beside_eager(3, lambda model, x: function(model(x)).square().mean())


def test_training_of_a_start() -> None:
    """Gradients by the parameters through a step of an inner optimization (MAML), and by batched ones."""

    def loss_of(model: torch.nn.Module, x: Tensor) -> Tensor:
        def inner(given: dict[str, Tensor], row: Tensor) -> Tensor:
            return functional_call(model, given, (row,)).square().mean()

        def adapted(row: Tensor) -> Tensor:
            given = dict(model.named_parameters())
            slopes = grad(inner)(given, row)
            return inner({k: p - 0.1 * slopes[k] for k, p in given.items()}, row)

        rows = vmap(lambda w: w.tanh().sum())(model.weight)
        return vmap(adapted)(x).sum() + rows.square().sum()

    _train_beside_eager(2, loss_of)


def test_an_argument_is_updated() -> None:
    x = torch.randn(4, 3)
    given, expected = x.clone(), x.clone()
    found = nn.Graph.trace(lambda y: vmap(lambda r: r.mul_(2))(y))(given)
    vmap(lambda r: r.mul_(2))(expected)
    torch.testing.assert_close(given, expected)
    torch.testing.assert_close(found, expected)


def test_random_rows() -> None:
    graph = nn.Graph.trace(
        lambda x: (
            vmap(lambda r: F.dropout(r + 1), randomness="different")(x),
            vmap(lambda r: r + torch.rand(3), randomness="same")(x),
        )
    )
    dropped, same = graph(torch.zeros(64, 3))
    assert 0.3 < (dropped == 0).float().mean() < 0.7
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(dropped[0], dropped[1:].mean(0))
    assert torch.equal(same[0], same[1])


@pytest.mark.parametrize("name", ["running statistics", "number", "in place", "functionalize"])
def test_what_is_refused(name: str) -> None:
    """Each as in eager, or by name; nothing is computed without its effect."""
    norm = torch.nn.BatchNorm1d(3)
    functions: dict[str, Callable[[Tensor], Any]] = {
        "running statistics": grad(lambda x: norm(x).square().sum()),
        "number": vmap(lambda r: r * r.sum().item()),
        "in place": vmap(lambda r: r.long().mul_(1.5)),
        "functionalize": torch.func.functionalize(lambda x: x.clone().mul_(2)),
    }
    with pytest.raises((GraphTraceError, RuntimeError)):
        nn.Graph.trace(functions[name])(torch.randn(4, 3))
