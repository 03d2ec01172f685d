"""What a plan keeps of the call for which it was compiled, so that it can be saved."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch

from gflow.dialects.extents import N
from gflow.dialects.records import record
from gflow.dialects.types import row_major_strides
from gflow.runtime import calls
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.sizes import size_of, step_of


@record
class CallRecord:
    """The call for which a plan was compiled.

    Args:
        inputs: its tensors, as the manifest lists them (dynamic sizes are None, except if two are dynamic).
        size: the value of the dynamic dimension in that call; 0 if there is none.
        leaves: for each flattened argument, the index of its input.
        modes: train or eval mode of each module.
        problem: why the call cannot be saved.
    """

    parameters: list[list[Any]]
    modes: tuple[bool, ...] = ()
    structure: Any = None
    inputs: tuple[dict[str, Any], ...] = ()
    leaves: tuple[int | None, ...] = ()
    problem: str = ""
    size: N = 0

    def at(self, size: int) -> CallRecord:
        """The record of a call with this size, without dynamic dimensions."""
        inputs = []
        for given in self.inputs:
            shape = tuple(size if s is None else s for s in given["shape"])
            dense = None in given["shape"]
            strides = list(row_major_strides(shape)) if dense else given["strides"]
            inputs.append({**given, "shape": list(shape), "strides": strides})
        return replace(self, inputs=tuple(inputs), size=0)


def record_call(call: BoundCall, modes: tuple[bool, ...]) -> CallRecord:
    """Describe a call without keeping its tensors."""
    parameters = calls.parameters_of(call.build)
    tensors: list[torch.Tensor] = []
    try:
        live = {i: calls.LiveNumber.make(call.leaves[i], call.names[i]) for i in call.numbers}
        named = call.with_leaves([live.get(i, x) for i, x in enumerate(call.leaves)])
        bound = calls.bind(parameters, named.args, named.kwargs)
        defaults = {p.name: p.default for p in inspect.signature(call.build).parameters.values()}
        given = {n: v for n, v in bound.items() if n not in defaults or v is not defaults[n]}
        structure = calls.encode_call(parameters, given, tensors, shared=True)
    except TypeError as error:
        return CallRecord(parameters, modes, problem=str(error))
    index = {id(t): n for n, t in enumerate(tensors)}
    names: dict[int, str] = {}
    for name, leaf in zip(call.names, call.leaves):
        names.setdefault(id(leaf), name)
    dynamic = call.dynamic
    size: N = 0
    if dynamic is not None and dynamic.second is not None:
        size, dynamic = step_of(dynamic, call.leaves), None
    elif dynamic is not None:
        size = size_of(dynamic, call.leaves)
    varying = (
        {}
        if dynamic is None
        else {id(leaf): [*dynamic.which(i)] for i, leaf in enumerate(call.leaves)}
    )
    inputs = []
    for n, t in enumerate(tensors):
        dims = varying.get(id(t), ())
        inputs.append(
            {
                "name": names.get(id(t), f"input.{n}"),
                "shape": [None if d in dims else s for d, s in enumerate(t.shape)],
                "dtype": str(t.dtype).removeprefix("torch."),
                "strides": None if dims else list(t.stride()),
            }
        )
    places = tuple(index.get(id(leaf)) for leaf in call.leaves)
    return CallRecord(parameters, modes, structure, tuple(inputs), places, size=size)
