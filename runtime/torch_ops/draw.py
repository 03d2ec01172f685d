"""A tensor of random numbers from PyTorch's default generator, as one op of PyTorch's dispatcher:

    gflow::draw(how, size, stride, dtype, numbers, tensors) -> a tensor of that size and stride on the CPU

`how` is a key of `HOW`. Methods that draw in place do so in the order of memory, and some draw other numbers where
memory has gaps, so the numbers depend on the strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor

_IN_PLACE = (
    "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_",
)  # fmt: skip
HOW: dict[str, Callable[..., Any]] = {name: getattr(Tensor, name) for name in _IN_PLACE} | {
    "bernoulli_of": lambda out, p: out.bernoulli_(p),
    "normal_of_mean": lambda out, std, mean: torch.normal(mean, std, out=out),
    "normal_of_std": lambda out, mean, std: torch.normal(mean, std, out=out),
    "normal_of_both": lambda out, mean, std: torch.normal(mean, std, out=out),
}
"""By name, a function of the tensor to fill, the numbers, and the tensors."""

torch.library.define(
    "gflow::draw",
    "(str how, SymInt[] size, SymInt[] stride, ScalarType dtype, Scalar[] numbers, Tensor[] tensors) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
draw = torch.ops.gflow.draw.default


@torch.library.impl("gflow::draw", "CompositeExplicitAutograd")
def _draw(
    how: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, numbers: Sequence[float],
    tensors: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    if how not in HOW:
        raise ValueError(f"gflow::draw does not know {how!r}")
    out = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
    HOW[how](out, *numbers, *tensors)
    return out


@torch.library.register_fake("gflow::draw")
def _shape(
    how: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, numbers: Sequence[float],
    tensors: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
