"""Results of torch.compile that are views of updated arguments, in sizes that vary: PyTorch 2.13's own backends return
other elements of the arguments' memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


def _by_sizes(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.mul_(y)
    half = x.shape[0] // 2
    return x[:half], x[:, x.shape[1] // 2 :].t(), x.narrow(0, half, half).unsqueeze(1), x + 1


def _before_the_update(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    half = x.shape[0] // 2
    left, right = x[:half], x[half:]
    x += y
    return left, x.sum(), right.T


def _of_an_update(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    left, right = x[: x.shape[0] // 2], x[x.shape[0] // 2 :]
    left /= 2
    return left, right.mul_(3).neg_(), x * y


def _without_a_gradient(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.mul_(y)
    return x[: x.shape[0] // 2].detach(), x.view(2, x.shape[0] // 2, -1)[1]


def _beside_transforms(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.mul_(y)
    rows = torch.vmap(lambda row: row.square().add_(1))(x)
    tangents = torch.func.jvp(lambda a: a.square().add_(1), (x.detach(),), (x.detach(),))
    return x[: x.shape[0] // 2], rows, *tangents, x + 1


def _row_major(n: int, m: int) -> Tensor:
    return torch.arange(200.0)[n : n + n * m].view(n, m)


def _with_gaps(n: int, m: int) -> Tensor:
    return torch.arange(400.0).view(20, 20)[2 : n + 2, 3 : m + 3]


def _transposed(n: int, m: int) -> Tensor:
    return torch.arange(200.0)[7 : 7 + n * m].view(m, n).t()


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (_by_sizes, _row_major),
        (_by_sizes, _with_gaps),
        (_before_the_update, _transposed),
        (_of_an_update, _row_major),
        (_of_an_update, _with_gaps),
        (_without_a_gradient, _row_major),
        (_beside_transforms, _row_major),
    ],
)
def test_views_of_updated_arguments(
    function: Callable[..., Any], argument: Callable[[int, int], Tensor], requires_grad: bool
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="gflow")
    for n, m in ((4, 6), (6, 8), (8, 4)):
        ours, theirs = argument(n, m), argument(n, m)
        y, z = (torch.tensor(1.5, requires_grad=requires_grad) for _ in range(2))
        results, expected = compiled(ours, y), function(theirs, z)
        for result, other in zip(results, expected, strict=True):
            assert torch.equal(result, other)
            assert result.requires_grad == other.requires_grad
        for result, other in zip(results[:-1], expected[:-1], strict=True):
            shares = other.untyped_storage()._cdata == theirs.untyped_storage()._cdata
            if shares:
                assert result.stride() == other.stride()
                assert result.storage_offset() == other.storage_offset()
                assert result.untyped_storage()._cdata == ours.untyped_storage()._cdata
        if requires_grad:
            for grads in zip(
                torch.autograd.grad(results[-1].sum() + results[1].sum(), y),
                torch.autograd.grad(expected[-1].sum() + expected[1].sum(), z),
            ):
                torch.testing.assert_close(*grads)
        with torch.no_grad():
            results[0].zero_(), expected[0].zero_()
        assert torch.equal(ours, theirs)


def test_numbers_beside_the_one_element_of_a_mapped_function():
    """PyTorch converts such a number as if it were a tensor."""
    torch._dynamo.reset()
    function = torch.vmap(lambda a: a * (a * 2) * 0.5 + a)
    x = torch.randn(1)
    torch.testing.assert_close(torch.compile(function, backend="gflow")(x), function(x))


def _slices(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (x[:2] * w[0] * x[1], torch.view_as_real(x[2:] * w[1]))


def _scattered(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    out = torch.zeros_like(x)
    out[:2], out[2:] = x[:2] * w[0], x[2:] * w[1]
    return (torch.view_as_real(out),)


def _conjugated(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x, x.conj()[1:], torch.view_as_real(x), x.conj().imag * w.real, x.conj().imag[1:]


@pytest.mark.parametrize("function", [_slices, _scattered, _conjugated])
def test_conjugates_of_values_that_share_memory(function: Callable[..., Any]) -> None:
    """A backward reads slices of a complex value and conjugates of others: they are not the same memory."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: function(x * w, w), backend="gflow")
    generator = torch.Generator().manual_seed(0)
    for n in (4, 5, 7):
        x, w = (
            torch.randn(n, dtype=torch.complex128, generator=generator, requires_grad=True)
            for _ in range(2)
        )
        results, expected = compiled(x, w), function(x * w, w)
        torch.testing.assert_close(results, expected)
        ours, theirs = (
            torch.autograd.grad(sum(t.abs().sum() for t in outs), (x, w))
            for outs in (results, expected)
        )
        torch.testing.assert_close(ours, theirs)
