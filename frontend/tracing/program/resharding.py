"""Shardings that `build()` requests: by `to_global`, and by the hooks of `parallelize_module`.

A request is recorded as a separate op, which becomes `gflow.reshard`. Propagation chooses the sharding of the
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from gflow.errors import GraphTraceError

from ..data.global_tensors import Layout, texts_of
from .modules import is_traced


@cache
def _op() -> Any:
    """The op, registered with PyTorch at its first use; `placements` is `tp:S(0) dp:B`.

    Args:
        side: "enter" if ranks then work on their shards independently, "leave" where that ends, "plain" if each has a
            replicated plain tensor, "" otherwise.
    """

    @torch.library.custom_op(
        "gflow::reshard", mutates_args=(), schema="(Tensor x, str placements, str side) -> Tensor"
    )
    def op(x: torch.Tensor, placements: str, side: str) -> torch.Tensor:
        return x.clone()

    @op.register_fake
    def fake(x: torch.Tensor, placements: str, side: str) -> torch.Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    def backward(context: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return gradient, None, None

    op.register_autograd(backward)
    return torch.ops.gflow.reshard


def reshard(x: torch.Tensor, mesh: Any, placements: Any, side: str = "") -> torch.Tensor:
    """A traced tensor with other placements.

    Args:
        mesh: a `DeviceMesh`.
        placements: PyTorch's, for each of its dimensions.

    Raises:
        GraphTraceError: it is called outside of a trace.
    """
    if has_torch_function((x,)):
        found: torch.Tensor = handle_torch_function(reshard, (x,), x, mesh, placements, side)
        return found
    raise GraphTraceError("reshard() works only in build() of a graph")


def placed_as(x: torch.Tensor, layout: Layout, side: str = "") -> torch.Tensor:
    """A traced tensor with the sharding of a layout. side: as for the op."""
    told = " ".join(f"{axis}:{text}" for axis, text in zip(layout.axes, layout.placements))
    found: torch.Tensor = _op()(x, told, side)
    return found


def rows_along(x: torch.Tensor, axes: Sequence[str], split: bool) -> torch.Tensor:
    """A traced tensor whose first dimension is sharded over some axes of the mesh, or that is replicated along
    them."""
    found: torch.Tensor = _op()(x, " ".join(f"{a}:{'S(0)' if split else 'B'}" for a in axes), "")
    return found


def handler(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """The implementation of `reshard` while a graph is traced."""
    x, mesh, placements, side = args
    if not is_traced(x):
        x = mode.wrapper_of(x)
    mode.recorder.meshes.append(mesh)
    texts = texts_of(placements, x.dim(), "a tensor in build()")
    return placed_as(x, Layout(mesh, texts), side)
