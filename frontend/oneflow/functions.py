"""OneFlow's functions without an equivalent in PyTorch, written with PyTorch's: `flow.cast`, `flow.gather_nd`, …

They work in a graph and in eager mode, with gradients, on every device. `refused.py` has the names that gflow lacks.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

gelu, mish, silu = functional.gelu, functional.mish, functional.silu
softplus, softsign = functional.softplus, functional.softsign
adaptive_avg_pool2d = functional.adaptive_avg_pool2d
adaptive_avg_pool3d = functional.adaptive_avg_pool3d


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` with another dtype."""
    return x.to(dtype)


def expand(x: torch.Tensor, *sizes: Any) -> torch.Tensor:
    """`x.expand(*sizes)`."""
    return x.expand(*sizes)


def repeat(x: torch.Tensor, *sizes: Any) -> torch.Tensor:
    """`x.repeat(*sizes)`."""
    return x.repeat(*sizes)


def new_ones(
    x: torch.Tensor,
    size: Any = None,
    dtype: torch.dtype | None = None,
    device: Any = None,
    placement: Any = None,
    sbp: Any = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Ones of a size (that of `x` by default), with the dtype and device of `x` where none are given.

    Raises:
        NotImplementedError: `placement` or `sbp` is given; `flow.to_global()` makes a global tensor.
    """
    if placement is not None or sbp is not None:
        raise NotImplementedError(
            "new_ones() takes no placement and sbp; write flow.to_global(flow.new_ones(x), placement, sbp)"
        )
    shape = x.shape if size is None else size
    return x.new_ones(shape, dtype=dtype, device=device, requires_grad=requires_grad)


def gather_nd(input: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """`out[i, …] = input[index[i, …]]`: the last dimension of `index` (integers) holds the first coordinates of
    `input`. Shape: `index.shape[:-1] + input.shape[index.shape[-1]:]`."""
    return input[tuple(index.long().unbind(-1))]


def scatter_nd(index: torch.Tensor, update: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Zeros of a shape, with `update` added where `index` says (as `gather_nd` reads it)."""
    zeros = torch.zeros(tuple(shape), dtype=update.dtype, device=update.device)
    return zeros.index_put(index.long().unbind(-1), update, accumulate=True)


def tensor_scatter_nd_update(
    tensor: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    """A copy of `tensor` with `updates` where `indices` says (as `gather_nd` reads it)."""
    return tensor.index_put(indices.long().unbind(-1), updates)


def batch_gather(input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows of each batch: `out[b, k, …] = input[b, indices[b, k], …]`. `indices` is of integers, and its dimensions
    but the last are those of the batch."""
    dim = indices.ndim - 1
    index = indices.long().reshape(*indices.shape, *[1] * (input.ndim - indices.ndim))
    return input.gather(dim, index.expand(*indices.shape, *input.shape[indices.ndim :]))


def broadcast_like(
    x: torch.Tensor, like_tensor: torch.Tensor, broadcast_axes: Sequence[int] | None = None
) -> torch.Tensor:
    """`x` broadcast to the shape of `like_tensor`.

    broadcast_axes: the dimensions that `x` lacks, or has with size 1."""
    if broadcast_axes is not None and x.ndim < like_tensor.ndim:
        for axis in sorted(a % like_tensor.ndim for a in broadcast_axes):
            x = x.unsqueeze(axis)
    return x.expand_as(like_tensor)


def in_top_k(targets: torch.Tensor, predictions: torch.Tensor, k: int) -> torch.Tensor:
    """For each row of `predictions` (rows × classes), whether the target class is among the `k` largest: bools."""
    own = predictions.gather(1, targets.long()[:, None])
    return ((predictions > own).sum(1) < k) & own[:, 0].isfinite()


def slice(input: torch.Tensor, slice_tup_list: Sequence[Sequence[int | None]]) -> torch.Tensor:
    """`input[start:stop:step, …]` for (start, stop, step) of each of the first dimensions; None is as in Python."""
    return input[_slices(slice_tup_list)]


def slice_update(
    input: torch.Tensor, update: torch.Tensor, slice_tup_list: Sequence[Sequence[int | None]]
) -> torch.Tensor:
    """Write `update` into `slice(input, slice_tup_list)`; returns `input`."""
    input[_slices(slice_tup_list)] = update
    return input


def _slices(triples: Sequence[Sequence[int | None]]) -> Any:
    return tuple(builtins.slice(*t) for t in triples)


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """`x * sigmoid(1.702 * x)`."""
    return x * torch.sigmoid(1.702 * x)


def square_relu(x: torch.Tensor) -> torch.Tensor:
    """`relu(x) ** 2`."""
    return torch.relu(x).square()


def lerp_(input: torch.Tensor, end: torch.Tensor, weight: Any) -> torch.Tensor:
    """`input.lerp_(end, weight)`."""
    return input.lerp_(end, weight)


class QuickGELU(torch.nn.Module):
    """`quick_gelu` as a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x * sigmoid(1.702 * x)`, of the shape of `x`."""
        return quick_gelu(x)


class SquareReLU(torch.nn.Module):
    """`square_relu` as a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`relu(x) ** 2`, of the shape of `x`."""
        return square_relu(x)


class RMSLayerNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` with OneFlow's name and arguments: hidden_size, eps."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__(hidden_size, eps)
