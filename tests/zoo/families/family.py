"""One architecture of a library, and what is common to all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

#: parameters of the largest model that is made of a configuration
LARGEST = 40_000_000
#: the same where a library offers no other sizes
_LARGEST_OFFERED = 150_000_000
#: classes of modules of dropout, whose probability is `p`, beside PyTorch's
_DROPS = ("StochasticDepth", "DropBlock")


@dataclass(frozen=True)
class Family:
    """One architecture. make: gives a model, without dropout, and what to call it with."""

    name: str
    make: Callable[[], tuple[torch.nn.Module, dict[str, Any]]]


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """The model in inference mode, with all probabilities of dropout set to 0: `p` of dropout's modules, and attributes
    with "drop" in their names, which are passed to functions."""
    for part in model.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd) or type(part).__name__ in _DROPS:
            part.p = 0.0
        for name, value in vars(part).items():
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)
    return model.eval()


def fed(
    model: torch.nn.Module, candidates: Iterable[dict[str, Any]]
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model with the first of the inputs that it takes, in inference and in training.

    Raises:
        ValueError: it takes none of them.
    """
    problem: Exception | None = None
    for inputs in candidates:
        try:
            with torch.no_grad():
                for mode in (True, False):
                    model.train(mode)(**inputs)
        except Exception as error:  # a model may refuse inputs by any
            problem = problem or error
        else:
            return model, inputs
    raise ValueError(f"no inputs found: {problem}")


def smallest(sizes: dict[str, int]) -> str:
    """The model with the fewest parameters. sizes: how many each has.

    Raises:
        ValueError: it is larger than `_LARGEST_OFFERED`.
    """
    name = min(sizes, key=sizes.__getitem__)
    if sizes[name] > _LARGEST_OFFERED:
        raise ValueError(f"no small model: {sizes[name] / 1e6:.0f} million parameters")
    return name
