"""What a case of the zoo is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

Module = torch.nn.Module
Tensor = torch.Tensor
Program = Callable[..., tuple[Tensor, Any]]


def square_loss(model: Module, *inputs: Any) -> tuple[Tensor, Any]:
    """A loss that every floating-point output takes part in."""
    out = model(*inputs)
    parts = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.is_floating_point()]
    return sum((t.square().mean() for t in parts), start=parts[0].new_zeros(())), out


def class_loss(model: Module, x: Tensor, y: Tensor) -> tuple[Tensor, Any]:
    """Cross-entropy of logits."""
    logits = model(x)
    return torch.nn.functional.cross_entropy(logits, y), logits


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-3)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


@dataclass(frozen=True)
class Case:
    """A model with inputs and a loss.

    make: the model. inputs: fresh random inputs. program: (model, *inputs) to (loss, outputs).
    dtypes: what it runs in. infer: it runs without gradients too. slow: not among the quick tests.
    """

    name: str
    make: Callable[[], Module]
    inputs: Callable[[], tuple[Any, ...]]
    program: Program = square_loss
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)
    infer: bool = True
    slow: bool = False


class Function(Module):
    """A function of a parameter vector and the inputs, as a module."""

    def __init__(self, function: Callable[..., Any], *shape: int) -> None:
        super().__init__()
        self.function = function
        self.w = torch.nn.Parameter(torch.randn(*shape) if shape else torch.randn(4))

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.w, *inputs)
