"""Calls that PyTorch's dispatcher takes apart under `torch.compile`, or that the tracer's checks look into there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gflow as flow

X, ONE = torch.linspace(-2, 3, 15).reshape(3, 5), torch.linspace(1, -1, 4)
LABELS = torch.tensor([[0, -1, 2, 3, 1], [4, 2, -1, 0, 0], [-1, 0, 0, 0, 0]])


def losses(x: Tensor, one: Tensor) -> list[Tensor]:
    found = []
    for reduction in ("none", "mean", "sum"):
        found += [
            F.multilabel_margin_loss(x, LABELS, reduction=reduction),
            F.multilabel_margin_loss(one, torch.tensor([2, 0, -1, 1]), reduction=reduction),
            F.multilabel_margin_loss(one[0], torch.tensor(-1), reduction=reduction),
            F.multi_margin_loss(x, LABELS[2].abs()[:3], p=2, reduction=reduction),
            F.multi_margin_loss(one, torch.tensor(1), weight=one.detach(), reduction=reduction),
        ]
    return found


def numbers(x: Tensor, one: Tensor) -> list[Tensor]:
    return [
        torch.addcmul(x, one[:1], x, value=3.5),
        torch.rsub(x, one[0], alpha=2),
        F.hardshrink(x, 0.3),
        F.softshrink(x, 0.3),
        torch.clamp(x, torch.tensor(0), 2.5),
    ]


@pytest.mark.parametrize("frontend", ["graph", "backend"])
def test_beside_eager(frontend: str) -> None:
    torch._dynamo.reset()

    def both(x: Tensor, one: Tensor) -> list[Tensor]:
        return [*losses(x, one), *numbers(x, one)]

    def with_gradients(function: Any) -> list[Tensor]:
        x, one = (t.clone().requires_grad_() for t in (X, ONE))
        results = function(x, one)
        grads = torch.autograd.grad([r.sum() for r in results], (x, one))
        return [*(r.detach() for r in results), *grads]

    wanted = with_gradients(both)
    if frontend == "backend":
        found = with_gradients(torch.compile(both, backend="gflow", fullgraph=True))
    else:
        found = with_gradients(flow.compile(both, fullgraph=True))
    torch.testing.assert_close(found, wanted)
