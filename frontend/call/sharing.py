"""Programs and graphs that share memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gflow.errors import GraphError
from gflow.tracing.context.location import here


class Sharing:
    """The methods of `Graph` for the memory of its programs."""

    def enable_shared(self, mode: bool = True) -> None:
        """Whether other graphs may share this graph's memory (`share_from`); they may, by default."""
        state: Any = self._checked()  # type: ignore[attr-defined]
        state.shareable = bool(mode)

    def share_from(self, shared_graph: Any) -> None:
        """Run in the memory of `shared_graph`: one arena, with the size of the larger one. Graphs over the same
        modules share parameters and buffers anyway.

        Raises:
            GraphError: it is no graph, or called `enable_shared(False)`.
        """
        state: Any = self._checked()  # type: ignore[attr-defined]
        if not isinstance(shared_graph, Sharing):
            raise GraphError(
                f"{here()}: share_from() takes a graph; got {type(shared_graph).__name__}"
            )
        theirs: Any = shared_graph._checked()  # type: ignore[attr-defined]
        if not theirs.shareable:
            raise GraphError(
                f"{here()}: {theirs.name} shares with no other graph, since it calls "
                "enable_shared(False)"
            )
        state.plans.use_arena(theirs.plans.arena)

    @staticmethod
    def with_dynamic_input_shape(
        *, enable_shared: bool = True, size: int = 10
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """A decorator of `__init__`: the graph keeps programs for `size` signatures of its inputs, in
        one arena, or each in its own if not `enable_shared`. Without it, 16 in one arena."""

        def decorate(init: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(init)
            def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
                init(self, *args, **kwargs)
                self.config.set_cache_size(size)
                self._checked().plans.apart = not enable_shared
                self.enable_shared(enable_shared)

            return wrapped

        return decorate
