"""OneFlow's `GraphModule` and `GraphTensor`: the name of a module or tensor in a graph, and its type.

In `build()` all modules of the graph have names. Elsewhere, modules and tensors have names if they were reached
through a graph's attribute (`graph.model.fc.weight`); a module in two graphs has the last such name.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch

from gflow.errors import GraphAttributeError, GraphError

from ..context.location import here
from ..context.ranks import world_size

#: id of a module or tensor → the object, and its path in a graph
_paths: dict[int, tuple[weakref.ref[Any], str]] = {}
#: id of a module → its path, in the graph whose `build()` runs
_building: ContextVar[Mapping[int, str] | None] = ContextVar("building", default=None)


@contextlib.contextmanager
def named_by(names: Mapping[int, str]) -> Iterator[None]:
    """Within, while `build()` runs, modules have these paths, by their ids."""
    token = _building.set(names)
    try:
        yield
    finally:
        _building.reset(token)


def reached(held: Any, path: str) -> None:
    """Record that a module or tensor was reached through a graph's attribute. path: `graph.model.fc`."""
    key = id(held)
    _paths[key] = (weakref.ref(held, lambda _: _paths.pop(key, None)), path.partition(".")[2])


class GraphBlock:
    """Names of a module or tensor in a graph."""

    def _held(self) -> Any:
        raise NotImplementedError

    @property
    def type(self) -> str:
        """MODULE, PARAMETER or BUFFER."""
        return "MODULE"

    @property
    def name(self) -> str:
        """The last component of its path in a graph: `weight` of `model.fc.weight`."""
        return self._path().rpartition(".")[2]

    @property
    def name_prefix(self) -> str:
        """The path before the name, with a trailing dot: `model.fc.` of `model.fc.weight`; "" if the path has one
        component."""
        before = self._path().rpartition(".")[0]
        return f"{before}." if before else ""

    @property
    def scope(self) -> Any:
        """Not supported.

        Raises:
            GraphAttributeError: always; the message names alternatives.
        """
        raise GraphAttributeError(
            f"{here()}: graphs have no scopes; graph.debug(2) prints each op with its module, device and sharding, and "
            "graph.ir() has them as locations"
        )

    prev_scope = scope

    def scope_context(self) -> Any:
        """Not supported.

        Raises:
            GraphAttributeError: always, as for `scope`.
        """
        return self.scope

    def _path(self) -> str:
        held = self._held()
        if path := (_building.get() or {}).get(id(held)):
            return path
        known = _paths.get(id(held))
        if known is None or known[0]() is not held:
            raise GraphAttributeError(
                f"{here()}: outside of build() the name in a graph is known only after access through the graph's "
                "attribute: graph.model.to(GraphModule).name, graph.model.fc.weight.to(GraphTensor).name"
            )
        return known[1]


class GraphTensor(GraphBlock):
    """A graph's view of a parameter or buffer: `tensor.to(GraphTensor)`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        self._stage: tuple[int | None, Any] = (None, None)

    def _held(self) -> Any:
        return self._tensor()

    @staticmethod  # if the class itself is an argument, PyTorch would warn of a bound method as deprecated
    def __torch_function__(
        func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """`tensor.to(GraphTensor)`."""
        is_to = getattr(func, "__name__", "") == "to" and len(args) == 2 and not kwargs
        if not is_to or args[1] is not GraphTensor:
            return NotImplemented
        return _blocks_of(args[0])

    @property
    def type(self) -> str:
        """PARAMETER or BUFFER."""
        return "PARAMETER" if isinstance(self._held(), torch.nn.Parameter) else "BUFFER"

    @property
    def stage_id(self) -> int | None:
        """The pipeline stage that `set_stage` gave, or None."""
        return self._stage[0]

    @property
    def stage_placement(self) -> Any:
        """The placement that `set_stage` gave, or None."""
        return self._stage[1]

    def set_stage(self, stage_id: int | None = None, placement: Any = None) -> None:
        """Put the tensor into a pipeline stage. In one process this has no effect.

        Raises:
            GraphError: there are several ranks, on which graphs do not place stages of tensors yet.
        """
        if stage_id is not None and (ranks := world_size()) > 1:
            raise GraphError(
                f"{here()}: a tensor has a pipeline stage in a group of {ranks} ranks, and graphs do not place stages "
                "on processes yet; leave set_stage() out"
            )
        self._stage = (stage_id, placement)

    def __repr__(self) -> str:
        held = self._held()
        return f"GraphTensor({self.type}, size={tuple(held.shape)}, dtype={held.dtype})"


#: id of a tensor → the tensor, and its block
_tensors: dict[int, tuple[weakref.ref[torch.Tensor], GraphTensor]] = {}


def _blocks_of(tensor: torch.Tensor) -> GraphTensor:
    found = _tensors.get(id(tensor))
    if found is None or found[0]() is not tensor:
        key = id(tensor)
        found = (weakref.ref(tensor, lambda _: _tensors.pop(key, None)), GraphTensor(tensor))
        _tensors[key] = found
    return found[1]
