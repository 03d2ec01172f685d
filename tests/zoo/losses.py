"""The losses of torch.nn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .case import Case, Tensor


def _class(**options: Any) -> Callable[..., Any]:
    def program(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        out = model(x)
        words = dict(options)
        if "weight" in words:
            words["weight"] = torch.linspace(0.5, 2.0, 5, dtype=x.dtype)
        return F.cross_entropy(out, y, **words).mean(), out

    return program


def _on(loss: Callable[..., Tensor]) -> Callable[..., Any]:
    """A loss of two model outputs (and the labels, where it has a third argument)."""

    def program(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        a, b = model(x), model(x.flip(0))
        return loss(a, b, y).mean(), a

    return program


def _sign(y: Tensor) -> Tensor:
    return torch.where(y > 2, 1, -1)


_PAIRS: dict[str, Callable[..., Tensor]] = {
    "mse": lambda a, b, y: F.mse_loss(a, b),
    "mse none": lambda a, b, y: F.mse_loss(a, b.detach(), reduction="none"),
    "l1": lambda a, b, y: F.l1_loss(a, b, reduction="sum"),
    "huber": lambda a, b, y: F.huber_loss(a, b, delta=0.3),
    "smooth l1": lambda a, b, y: F.smooth_l1_loss(a, b, beta=0.5),
    "bce": lambda a, b, y: F.binary_cross_entropy(a.sigmoid(), b.sigmoid().detach()),
    "bce logits": lambda a, b, y: F.binary_cross_entropy_with_logits(
        a, b.sigmoid().detach(), pos_weight=torch.full((5,), 2.0, dtype=a.dtype)
    ),
    "kl": lambda a, b, y: F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean"),
    "kl log target": lambda a, b, y: F.kl_div(
        a.log_softmax(-1), b.log_softmax(-1), log_target=True
    ),
    "cosine": lambda a, b, y: 1 - F.cosine_similarity(a, b),
    "cosine embedding": lambda a, b, y: F.cosine_embedding_loss(a, b, _sign(y), margin=0.2),
    "triplet": lambda a, b, y: F.triplet_margin_loss(a, b, a.roll(1, 0), margin=1.0),
    "triplet distance": lambda a, b, y: F.triplet_margin_with_distance_loss(a, b, a.roll(1, 0)),
    "margin ranking": lambda a, b, y: F.margin_ranking_loss(a[:, 0], b[:, 0], _sign(y), margin=0.3),
    "hinge embedding": lambda a, b, y: F.hinge_embedding_loss(a[:, 0], _sign(y)),
    "multi margin": lambda a, b, y: F.multi_margin_loss(a, y),
    "multilabel soft margin": lambda a, b, y: F.multilabel_soft_margin_loss(
        a, F.one_hot(y, 5).to(a.dtype)
    ),
    "soft margin": lambda a, b, y: F.soft_margin_loss(a[:, 0], _sign(y).to(a.dtype)),
    "poisson": lambda a, b, y: F.poisson_nll_loss(a, b.exp().detach()),
    "gaussian": lambda a, b, y: F.gaussian_nll_loss(a, b, a.square() + 0.1),
    "nll": lambda a, b, y: F.nll_loss(a.log_softmax(1), y, ignore_index=2),
    "focal": lambda a, b, y: (
        (1 - torch.exp(-F.cross_entropy(a, y, reduction="none"))) ** 2
        * F.cross_entropy(a, y, reduction="none")
    ),
    "dice": lambda a, b, y: (
        1 - (2 * (a.sigmoid() * b.sigmoid()).sum(1) + 1) / (a.sigmoid() + b.sigmoid()).sum(1).add(1)
    ),
    "contrastive": lambda a, b, y: F.cross_entropy(
        F.normalize(a) @ F.normalize(b).T / 0.1, torch.arange(4)
    ),
}

_CLASSES: dict[str, dict[str, Any]] = {
    "smoothed": {"label_smoothing": 0.1},
    "weighted": {"weight": True},
    "ignored": {"ignore_index": 2},
    "all three": {"label_smoothing": 0.2, "weight": True, "ignore_index": 1},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
}

_QUICK = ("bce logits", "kl", "cosine embedding", "triplet", "huber", "contrastive")


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))


def _batch() -> tuple[Any, ...]:
    return torch.randn(4, 6), torch.tensor([0, 4, 2, 3])[torch.randperm(4)]


def _probabilities() -> tuple[Any, ...]:
    return torch.randn(4, 6), torch.rand(4, 5).softmax(-1)


CASES: list[Case] = [
    *[Case(f"cross_entropy {name}", _model, _batch, _class(**options), slow=name in ("sum", "none"))
      for name, options in _CLASSES.items()],
    Case("cross_entropy probabilities", _model, _probabilities, _class(label_smoothing=0.1)),
    *[Case(f"loss {name}", _model, _batch, _on(loss), slow=name not in _QUICK)
      for name, loss in _PAIRS.items()],
]  # fmt: skip
