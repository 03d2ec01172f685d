"""Calls at the edge of what an op takes: numbers alone, literals of old kinds, tensors without elements."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import gflow as flow
from gflow import nn

aten = torch.ops.aten
X = torch.arange(9.0).reshape(3, 3)


class Call(nn.Graph):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, *args: Any) -> Any:
        return self.function(*args)


def _updated_number(x: torch.Tensor) -> Any:
    number = aten.add(4, 3.5)
    number.add_(1)
    return number * x, number


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numbers alone": lambda x: (aten.add(4, 3.5), aten.div(1024, 100, rounding_mode="floor")),
    "numbers alone, then a tensor": lambda x: aten.mul(2, 3) + x,
    "numbers alone, updated": _updated_number,
    "torch.Tensor of a list": lambda x: torch.Tensor([1.0, 2.0, 3.0]) + x,
    "torch.Tensor of a size": lambda x: torch.Tensor(3).fill_(2) + x,
    "torch.LongTensor": lambda x: x + torch.LongTensor([294]).to(x.device),
    "torch.BoolTensor": lambda x: torch.BoolTensor([True, False, True]) & (x > 4),
    "Tensor.new": lambda x: x.new([1.0, 2.0, 3.0]) * x.new(3, 3).zero_() + x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tensors_from_numbers(name: str) -> None:
    function = FUNCTIONS[name]
    torch.testing.assert_close(Call(function)(X), function(X))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_nothing(training: bool) -> None:
    eager = torch.nn.BatchNorm1d(4).train(training)
    compiled = copy.deepcopy(eager)
    results = []
    for module in (eager, flow.compile(compiled)):
        x = torch.randn(0, 4, 3, requires_grad=True)
        y = module(x)
        gradients = torch.autograd.grad(y.sum(), [x, *module.parameters()])
        results.append([y, *gradients, *module.buffers()])
    for got, wanted in zip(*map(tree_leaves, results)):
        assert torch.equal(got, wanted)


def test_complex_results_that_are_arguments() -> None:
    """Nothing computes them, and the gradients of a sum are its gradient."""
    x = torch.complex(X, X + 1)
    y = x.t()[:1]
    assert torch.equal(Call(lambda x, y: (x, y))(x, y)[1], y)
    results = []
    for run in (torch.add, flow.compile(torch.add)):
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        total = run(a, b, alpha=2)
        results.append([total, *torch.autograd.grad(total, [a, b], torch.ones_like(total))])
    torch.testing.assert_close(*results)
    kept = torch.zeros(3, 3, dtype=torch.complex64)
    Call(lambda x: kept.copy_(x))(x)
    assert torch.equal(kept, x)


def test_as_strided_scatter_counts_from_its_tensor() -> None:
    """Also where the tensor lies somewhere in the arena."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        into = x * 8 + 10
        return torch.as_strided_scatter(into, y * 2 - 4, (6, 2), (8, 3), 1) * into.sum()

    x, y = torch.randn(6, 8), torch.randn(6, 2)
    torch.testing.assert_close(Call(function)(x, y), function(x, y))


@pytest.mark.parametrize(
    "function",
    [torch.view_as_complex, lambda x: x.view(torch.float64), lambda x: x.view(torch.int16)],
)
def test_memory_read_as_something_else(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What is dense in eager mode may be a view of a transposed argument in a program."""
    x = torch.randn(2, 6).t()
    got = Call(lambda x: function(x.contiguous()))(x)
    assert torch.equal(got, function(x.contiguous()))


LINEAR_ALGEBRA: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "det": torch.det,
    "linalg.det": lambda a: torch.linalg.det(A=a),
    "logdet": lambda a: (a @ a.mT).logdet(),
    "slogdet": lambda a: torch.linalg.slogdet(a)[1],
    "solve": lambda a: torch.linalg.solve(a, a[..., :2].clone()),
    "solve from the right": lambda a: torch.linalg.solve(a, a, left=False),
    "solve_ex": lambda a: torch.linalg.solve_ex(a, torch.ones_like(a))[0],
    "inv": torch.linalg.inv,
    "cholesky": lambda a: torch.linalg.cholesky(a @ a.mT),
    "matrix_power": lambda a: torch.linalg.matrix_power(a, -2),
    "pinv": torch.linalg.pinv,
    "matrix_exp": torch.linalg.matrix_exp,
}


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_matrices_of_any_strides(name: str) -> None:
    """PyTorch's backward of a factorization goes by the strides of the matrix: those that it has in eager."""

    def function(a: torch.Tensor) -> Any:
        out = LINEAR_ALGEBRA[name](a)
        return out, *torch.autograd.grad(
            (out * torch.arange(1.0, out.numel() + 1).reshape(out.shape)).sum(), a
        )

    torch.manual_seed(0)
    base = (
        torch.eye(3, dtype=torch.float64)
        + 0.2 * torch.randn(2, 3, 6, dtype=torch.float64)[..., ::2]
    )
    for a in (
        base[0].contiguous(),
        base[0].t().contiguous().t(),
        base[1],
        base.contiguous().mT,
        base,
    ):
        want = function(a.detach().requires_grad_())
        for got, right in zip(Call(function)(a.detach().requires_grad_()), want):
            torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_transposed_convolutions_of_which_padding_leaves_nothing(groups: int, bias: bool) -> None:
    """PyTorch's kernels give an empty tensor (or refuse it, by which kernel it is); its shape rule refuses it."""
    x, weight = torch.ones(2, 2, 3), torch.ones(2, 1, 1)
    b = torch.ones(groups) if bias else None

    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        row = x[:, :, :1]
        y = torch.conv_transpose1d(row, weight, b, 3, padding=1, output_padding=1, groups=groups)
        return y, *torch.autograd.grad(y.sum() + x.sum(), (x, weight))

    given = [t.clone().requires_grad_() for t in (x, weight)]
    y, dx, dw = flow.nn.Graph.trace(function)(*given)
    assert y.shape == (2, groups, 0)
    assert torch.equal(dx, torch.ones_like(x))
    assert torch.equal(dw, torch.zeros_like(weight))
    with pytest.raises(RuntimeError, match="too small"):
        flow.nn.Graph.trace(lambda x: torch.conv_transpose1d(x, weight, padding=3))(x)


def test_a_double_that_gives_the_sign_of_a_half() -> None:
    """LLVM turns this into a conversion of a double to a half, which x86 leaves to a library."""

    class Signs(flow.nn.Graph):
        def build(self, x: torch.Tensor) -> torch.Tensor:
            return torch.asin(torch.var_mean(x, [-1], correction=2)[1])

    x = torch.linspace(-0.5, 0.5, 35).half().reshape(5, 7)
    torch.testing.assert_close(Signs()(x), torch.asin(torch.var_mean(x, [-1], correction=2)[1]))


def test_weight_norm_of_a_transposed_weight() -> None:
    """PyTorch's kernel of the backward takes row-major tensors only; its op copies before."""

    def step(v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight = torch._weight_norm(v.t(), g, 0)
        return weight, *torch.autograd.grad(weight.cumsum(0).sum(), (v, g))

    v, g = torch.rand(3, 4).requires_grad_(), torch.rand(4, 1).requires_grad_()
    torch.testing.assert_close(flow.nn.Graph.trace(step)(v, g), step(v, g))


def test_rows_added_to_none() -> None:
    """Eager checks no index there."""

    def add(x: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, index, rows) * 2

    given = torch.zeros(0, 2), torch.tensor([0, 3]), torch.ones(2, 2)
    assert flow.nn.Graph.trace(add)(*given).shape == add(*given).shape == (0, 2)
