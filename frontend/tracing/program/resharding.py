"""Where `build()` says how ranks are to hold a value: `to_global`, and the hooks of `parallelize_module`.

In a trace it is an op of its own, which `gflow.reshard` becomes. The gradient is placed as propagation finds best.
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
    """The op, which PyTorch's registry has from its first use on; `placements` is `tp:S(0) dp:B`.

    side: "enter" where ranks then work on their parts by themselves, "leave" where that ends, "plain" where each has
    the whole as a plain tensor, "" elsewhere.
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
    """A traced tensor placed otherwise.

    mesh: a `DeviceMesh`. placements: PyTorch's, for each of its dimensions.

    Raises:
        GraphTraceError: outside of a trace.
    """
    if has_torch_function((x,)):
        found: torch.Tensor = handle_torch_function(reshard, (x,), x, mesh, placements, side)
        return found
    raise GraphTraceError("reshard() works only in build() of a graph")


def placed_as(x: torch.Tensor, layout: Layout, side: str = "") -> torch.Tensor:
    """A tensor under tracing, placed as a layout says. side: as of the op."""
    told = " ".join(f"{axis}:{text}" for axis, text in zip(layout.axes, layout.placements))
    found: torch.Tensor = _op()(x, told, side)
    return found


def rows_along(x: torch.Tensor, axes: Sequence[str], split: bool) -> torch.Tensor:
    """A tensor under tracing whose first dimension is split over some axes of the mesh, or that is whole along them."""
    found: torch.Tensor = _op()(x, " ".join(f"{a}:{'S(0)' if split else 'B'}" for a in axes), "")
    return found


def handler(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """What `reshard` does while a graph is traced."""
    x, mesh, placements, side = args
    if not is_traced(x):
        x = mode.wrapper_of(x)
    mode.recorder.meshes.append(mesh)
    texts = texts_of(placements, x.dim(), "a tensor in build()")
    return placed_as(x, Layout(mesh, texts), side)
