"""Activations, losses and their gradients far from zero: small results are exact relative to themselves, as eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gflow as flow

Function = Callable[[Tensor], Tensor]


def _sign(x: Tensor) -> Tensor:
    return 1.0 - 2.0 * (torch.arange(x.numel()) % 2).to(x.dtype)


FUNCTIONS: dict[str, Function] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "logsigmoid": F.logsigmoid,
    "softplus": F.softplus,
    "softplus beta": lambda x: F.softplus(x, 3.0, 10.0),
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5),
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "expm1": lambda x: torch.expm1(x / 4),
    "log1p of exp": lambda x: torch.log1p(torch.exp(x / 2)),
    "erfc": lambda x: torch.erfc(x / 8),
    "softmax": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: torch.log_softmax(x, 0),
    "logsumexp": lambda x: torch.logsumexp(torch.stack([x, -x, x / 2]), 0),
    "logaddexp": lambda x: torch.logaddexp(x, -x),
    "glu": lambda x: F.glu(torch.stack([x, x]), 0),
    "soft margin": lambda x: F.soft_margin_loss(x, _sign(x), reduction="none"),
    "multilabel": lambda x: F.multilabel_soft_margin_loss(
        x[:, None], (_sign(x) > 0).to(x.dtype)[:, None], reduction="none"
    ),
    "bce with logits": lambda x: F.binary_cross_entropy_with_logits(
        x, (_sign(x) > 0).to(x.dtype), reduction="none"
    ),
    "bce weighted": lambda x: F.binary_cross_entropy_with_logits(
        x, torch.full_like(x, 0.25), pos_weight=torch.full_like(x, 3.0), reduction="none"
    ),
    "poisson": lambda x: F.poisson_nll_loss(x / 4, torch.ones_like(x), reduction="none"),
    "cross entropy": lambda x: F.cross_entropy(
        torch.stack([x, -x], 1), (_sign(x) > 0).long(), reduction="none"
    ),
    "asinh": torch.asinh,
    "atan": torch.atan,
    "rsqrt": lambda x: torch.rsqrt(x * x + 1e-3),
}


class _Graph(flow.nn.Graph):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def build(self, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        y = self.function(x)
        (dx,) = torch.autograd.grad(y, x, dy.to(y.dtype).expand_as(y))
        return y, dx


def _eager(function: Function, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_(True)
    y = function(x)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return y.detach(), dx


@pytest.mark.parametrize("name", FUNCTIONS)
def test_relative_errors(name: str) -> None:
    function = FUNCTIONS[name]
    x = torch.cat([torch.linspace(-40, 40, 321), torch.tensor([1e-6, -1e-6, 1e-20, -1e-3])])
    ones = torch.ones(1)
    ours = _Graph(function)(x.clone().requires_grad_(True), ones)
    for mine, eager, exact in zip(ours, _eager(function, x), _eager(function, x.double())):
        least = torch.finfo(torch.float32).tiny  # below it, numbers have fewer digits
        size = exact.abs().clamp(min=least)
        error, theirs = ((v.detach().double() - exact).abs() / size for v in (mine, eager))
        # where eager loses digits itself, as 1 - tanh² does, so may we, at these elements
        allowed = 16 * torch.finfo(torch.float32).eps + 4 * theirs
        near = F.max_pool1d(allowed.reshape(1, 1, -1), 9, 1, 4).reshape(allowed.shape)
        worst = int((error / near).argmax())
        assert (error <= near).all(), (
            f"{x.repeat(exact.numel() // x.numel())[worst]}: {mine.flatten()[worst]}, "
            f"eager {eager.flatten()[worst]}, exactly {exact.flatten()[worst]}"
        )
