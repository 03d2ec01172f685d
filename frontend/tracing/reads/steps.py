"""What an optimizer's step reads outside of the optimizer: globals, closure variables, class attributes.

The optimizer itself, and objects that it contains, are replaced by traced ones (`tracing/optimizers`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch

from gflow.errors import GraphTraceError

from .changes import changed
from .reads import Reads


class StepReading:
    """The reads of one step, before and after it runs.

    Args:
        objects: the optimizers, and objects that they contain.
        known: their containers.
        where: the beginning of errors.

    `tensors` are the tensors that the step can reach.

    Raises:
        GraphTraceError: the step reads an iterator, which returns another value at each step, or an object that Python
            cannot inspect.
    """

    def __init__(self, objects: Iterable[Any], known: Iterable[Any], where: str) -> None:
        objects = list(objects)
        self.where = where
        self._known = [*objects, *known]
        self._roots = [root for o in objects for root in _roots(o)]
        self._roots += [
            (f"group{n}.params[{k}]", p)
            for o in objects
            if isinstance(o, torch.optim.Optimizer)
            for n, group in enumerate(o.param_groups)
            for k, p in enumerate(group["params"])
        ]
        self._before = Reads(known=self._known).walk(self._roots)
        self.tensors = self._before.tensors
        for path, _ in self._before.iterators:
            raise GraphTraceError(
                f"{where}: step() can take values from {path}, an iterator: a graph runs step() once, while it "
                "is traced. Keep a counter in the state, or the values in a list, and index it by the counter."
            )
        for path, what in self._before.opaque:
            raise GraphTraceError(
                f"{where}: step() can change or read {path}, {what}: a graph runs step() once, while it is traced. "
                "Use it outside of the optimizer, after each call of the graph."
            )

    def after(self) -> Reads:
        """What the step depends on.

        Raises:
            GraphTraceError: the step has changed some of it.
        """
        for path, what in changed(self._before.found).items():
            raise GraphTraceError(
                f"{self.where}: step() changes {path} ({what}), which does not belong to the optimizer. A "
                "graph runs step() once, while it is traced, so the change would not be repeated. Keep the "
                "value in the optimizer: in an attribute, a parameter group or the state."
            )
        return Reads(known=self._known).walk(self._roots)


def tensors_outside(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """The tensors that the code of steps can reach outside of their optimizers."""
    optimizers = list(optimizers)
    held = [[o.param_groups, o.state, o.defaults] for o in optimizers]
    roots = [root for o in optimizers for root in _roots(o)]
    roots += [
        (name, value)
        for o in optimizers
        for name, value in vars(o).items()
        if isinstance(value, torch.nn.Module)
    ]
    return (
        Reads(known=[*optimizers, *(part for parts in held for part in parts)]).walk(roots).tensors
    )


def _roots(obj: Any) -> Iterator[tuple[str, Any]]:
    kind = type(obj)
    if isinstance(obj, torch.optim.Optimizer):
        yield f"{kind.__name__}.step", kind.step
    yield kind.__name__, kind
    for name, value in list(vars(obj).items()):
        if isinstance(value, (FunctionType, MethodType, functools.partial)):
            yield f"{kind.__name__}.{name}", value
