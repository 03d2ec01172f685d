"""`multi_margin_loss` and `multilabel_margin_loss` as PyTorch's kernels compute them, in graphs of TorchDynamo.

While AOTAutograd runs, PyTorch's Python dispatcher decomposes both above autograd. The decomposition of
`multilabel_margin_loss` also counts the labels after a -1, and both return one element instead of a 0-d tensor for a
single sample (PyTorch 2.13: `aot_eager` and Inductor give these results).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import _reduction
from torch.nn import functional as F

aten = torch.ops.aten
Tensor = torch.Tensor


def with_margin_losses(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph that calls the kernels instead; the same graph if it has no such loss.

    ```
    %l = F.multilabel_margin_loss(%x, %t)      →      %l = multilabel_margin_loss(%x, %t)    # of this file
    ```
    """
    if not any(
        node.target in _KERNELS for node in module.graph.nodes if not isinstance(node.target, str)
    ):
        return module
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, copies := dict[torch.fx.Node, torch.fx.Node]()))
    for node in copies.values():
        if not isinstance(node.target, str):
            node.target = _KERNELS.get(node.target, node.target)
    return torch.fx.GraphModule(module, graph)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`torch.nn.functional.multi_margin_loss`, with its arguments."""
    return _loss(input, target, (p, margin, weight), target.dim(), size_average, reduce, reduction)


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`torch.nn.functional.multilabel_margin_loss`, with its arguments."""
    return _loss(input, target, (), input.dim() - 1, size_average, reduce, reduction)


def _loss(
    input: Tensor,
    target: Tensor,
    more: tuple[Any, ...],
    dims: int,
    size_average: bool | None,
    reduce: bool | None,
    reduction: str,
) -> Tensor:
    """Compute a loss by its kernel.

    Args:
        more: p, margin and weight of `multi_margin_loss`; empty for `multilabel_margin_loss`.
        dims: the number of dimensions for samples; less than 1 for a single sample.
    """
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    number = _reduction.get_enum(reduction)
    single = dims < 1 and not number
    if single:
        if more:
            input, target = torch.atleast_2d(input), target.unsqueeze(0)
        else:
            input, target = torch.atleast_2d(input), torch.atleast_2d(target)
    loss: Tensor = _Loss.apply(input, target, more, number)
    return loss[0] if single else loss


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, input: Tensor, target: Tensor, more: tuple[Any, ...], reduction: int
    ) -> Tensor:
        ctx.more, ctx.reduction = more, reduction
        with (
            torch._C._AutoDispatchBelowAutograd()
        ):  # the decomposition is registered above autograd
            if more:
                ctx.save_for_backward(input, target)
                return aten.multi_margin_loss(input, target, *more, reduction)
            loss, is_target = aten.multilabel_margin_loss_forward(input, target, reduction)
        ctx.save_for_backward(input, target, is_target)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        input, target, *rest = ctx.saved_tensors
        if rest:
            found = aten.multilabel_margin_loss_backward(
                gradient, input, target, ctx.reduction, rest[0]
            )
        else:
            found = aten.multi_margin_loss_backward(
                gradient, input, target, *ctx.more, ctx.reduction
            )
        return found, None, None, None


_KERNELS: dict[Any, Any] = {
    F.multi_margin_loss: multi_margin_loss,
    F.multilabel_margin_loss: multilabel_margin_loss,
}
