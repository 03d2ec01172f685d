"""Methods of OneFlow's graphs that have another name in gflow."""

from __future__ import annotations

from typing import Any

from gflow.errors import GraphError
from gflow.tracing.context.location import here


class OneFlowMethods:
    """Methods of `Graph`."""

    def build_graph(self, *args: Any, **kwargs: Any) -> Any:
        """Compile the program for these arguments without running it, as `_compile` does.

        Returns:
            Twice what a call returns, with tensors of zeros: OneFlow gives lazy and eager results.

        Raises:
            GraphError: the graph has a program for these arguments already.
        """
        state: Any = self._checked()  # type: ignore[attr-defined]
        before = state.latest
        result = self._compile(*args, **kwargs)  # type: ignore[attr-defined]
        if state.latest is before:
            raise GraphError(f"{here()}: {state.name} is compiled for these arguments already")
        return result, result

    def finish_compile_and_init_runtime(self) -> None:
        """Does nothing: `build_graph` has compiled the program.

        Raises:
            GraphError: the graph has no program.
        """
        state: Any = self._checked()  # type: ignore[attr-defined]
        if state.latest is None:
            raise GraphError(
                f"{here()}: finish_compile_and_init_runtime() follows build_graph(inputs); {state.name} has no program"
            )

    @property
    def _graph_proto(self) -> str:
        return self.ir("traced")  # type: ignore[attr-defined,no-any-return]

    @property
    def _full_graph_proto(self) -> str:
        return self.ir("traced")  # type: ignore[attr-defined,no-any-return]

    @property
    def _compiled_graph_proto(self) -> str:
        return self.ir()  # type: ignore[attr-defined,no-any-return]
