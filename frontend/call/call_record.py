"""What a plan keeps of the call that it was compiled for, so that it can be saved."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from gflow.runtime import calls
from gflow.tracing.data.bound_call import BoundCall


@dataclass(frozen=True)
class CallRecord:
    """The call that a plan was compiled for. inputs: its tensors, as the manifest lists them;
    leaves: which of them each flattened argument is; modes: train or eval of each module; problem:
    why the call cannot be saved."""

    parameters: list[list[Any]]
    modes: tuple[bool, ...] = ()
    structure: Any = None
    inputs: tuple[dict[str, Any], ...] = ()
    leaves: tuple[int | None, ...] = ()
    problem: str = ""


def record_call(call: BoundCall, modes: tuple[bool, ...]) -> CallRecord:
    """Describe a call without keeping its tensors."""
    parameters = calls.parameters_of(call.build)
    tensors: list[torch.Tensor] = []
    try:
        bound = calls.bind(parameters, call.args, call.kwargs)
        defaults = {p.name: p.default for p in inspect.signature(call.build).parameters.values()}
        given = {n: v for n, v in bound.items() if n not in defaults or v is not defaults[n]}
        structure = calls.encode_call(parameters, given, tensors, shared=True)
    except TypeError as error:
        return CallRecord(parameters, modes, problem=str(error))
    index = {id(t): n for n, t in enumerate(tensors)}
    names: dict[int, str] = {}
    for name, leaf in zip(call.names, call.leaves):
        names.setdefault(id(leaf), name)
    inputs = tuple(
        {
            "name": names.get(id(t), f"input.{n}"),
            "shape": list(t.shape),
            "dtype": str(t.dtype).removeprefix("torch."),
            "strides": list(t.stride()),
        }
        for n, t in enumerate(tensors)
    )
    places = tuple(index.get(id(leaf)) for leaf in call.leaves)
    return CallRecord(parameters, modes, structure, inputs, places)
