"""Results that lie in the memory of an argument, a parameter or another result, as they do in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gflow.tracing.data.sizes import Dynamic, size_of, view_at
from gflow.tracing.data.values import ResultView, TraceValue


def views_of(
    views: Sequence[ResultView], dynamic: Dynamic | None, leaves: Sequence[object]
) -> Sequence[ResultView]:
    """The results of a call with these leaves that are views. views: of its trace."""
    if dynamic is None or not views:
        return views
    return [view_at(view, size_of(dynamic, leaves)) for view in views]


def with_views(
    results: Sequence[torch.Tensor],
    views: Sequence[ResultView],
    argument: Callable[[TraceValue], torch.Tensor],
) -> list[torch.Tensor]:
    """The results of a call, with those that are views as such.

    argument: the tensor that the call got, or the program holds, for an input of the trace.
    """
    found = list(results)
    for view in views:
        base = found[view.base] if view.argument is None else argument(view.argument)
        seen = view.of(base)
        if seen is not None:
            found[view.output] = seen
    return found
