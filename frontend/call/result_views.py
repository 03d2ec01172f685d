"""Results that are views of an argument, a parameter or another result, as in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gflow.tracing.data.sizes import Dynamic, step_of, view_at
from gflow.tracing.data.values import ResultView, TraceValue


def views_of(
    views: Sequence[ResultView], dynamic: Dynamic | None, leaves: Sequence[object]
) -> Sequence[ResultView]:
    """The results of a call with these leaves that are views. views: those of its trace."""
    if dynamic is None or not views:
        return views
    return [view_at(view, step_of(dynamic, leaves)) for view in views]


class ViewOfArgument(torch.autograd.Function):
    """A result that is a view of another tensor, with the compiled function's gradient. The gradient of a plain view
    may differ: there may be an autograd `Function` or a hook of the author's in between, and elements of the base may
    share memory. PyTorch refuses to update such a result in place; its error has the name of this class."""

    @staticmethod
    def forward(
        ctx: Any, result: torch.Tensor, base: torch.Tensor, view: ResultView
    ) -> torch.Tensor:
        seen = view.of(base)
        assert seen is not None
        return seen

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None, None


def with_views(
    results: Sequence[torch.Tensor],
    views: Sequence[ResultView],
    argument: Callable[[TraceValue], torch.Tensor],
    histories: bool = False,
) -> list[torch.Tensor]:
    """The results of a call, in which those that are views share memory. Each keeps its gradient.

    Args:
        argument: gives the tensor of the call, or of the program, for an input of the trace.
        histories: whether results may have a `grad_fn`; a result without one is the argument itself, or the parameter.
    """
    found = list(results)
    for view in views:
        result = found[view.output]
        base = found[view.base] if view.argument is None else argument(view.argument)
        if view.whole:
            found[view.output] = base if histories or base.is_leaf else base.detach()
            continue
        plain = base.detach() if base.requires_grad else base
        seen = view.of(plain)
        if seen is not None:
            found[view.output] = (
                ViewOfArgument.apply(result, base, view) if result.requires_grad else seen
            )
    return found
