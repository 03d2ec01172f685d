"""A function as a gflow graph for the device at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.setting import Setting

Function = Callable[..., Any]


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a function's result."""
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in tensors_of(item)] if value is not None else []


def gradients(
    function: Function, inputs: Sequence[Tensor], weights: Sequence[Tensor]
) -> list[Tensor]:
    """The function's results, then the gradients of their sum, weighted, by the inputs that are floats."""
    xs = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    results = tensors_of(function(*xs))
    floats = [r for r in results if r.is_floating_point() and r.requires_grad]
    if not floats:
        return results
    loss = sum(
        ((r * w).sum() for r, w in zip(floats, weights)), torch.zeros((), device=xs[0].device)
    )
    wanted = [x for x in xs if x.is_floating_point()]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [*(r.detach() for r in results), *(g for g in found if g is not None)]


def graph_of(
    setting: Setting, function: Callable[..., list[Tensor]], *, libraries: bool = True
) -> Any:
    """`function` of tensors as a graph. libraries: they may take part in races."""
    import gflow

    class Function(gflow.nn.Graph):
        def build(self, *inputs: Tensor) -> list[Tensor]:
            return function(*inputs)

    return for_setting(setting, Function(), libraries=libraries)


def for_setting(setting: Setting, graph: Any, *, libraries: bool = True) -> Any:
    """The graph for the device: kernels' configurations are timed on a GPU; where an interpreter stands
    in for one, the graph is compiled for one all the same."""
    if setting.where.type == "cuda":
        graph.config.enable_autotune(libraries=libraries)
    else:
        from gflow.compiler import CompileOptions

        target = setting.target or "cuda:90"
        graph.config.compile_options = CompileOptions(target=target)
    return graph
