"""What a plan keeps of the call that it was compiled for, so that it can be saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from gflow.runtime import calls
from gflow.tracing.tracer import input_names


@dataclass(frozen=True)
class CallRecord:
    """The call that a plan was compiled for. inputs: its tensors, as the manifest lists them;
    leaves: which of them each flattened argument is; modes: train or eval of each module; problem:
    why the call cannot be saved."""

    parameters: list[list[str]]
    modes: tuple[bool, ...] = ()
    structure: Any = None
    inputs: tuple[dict[str, Any], ...] = ()
    leaves: tuple[int | None, ...] = ()
    problem: str = ""


def record_call(
    build: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    modes: tuple[bool, ...],
) -> CallRecord:
    """Describe a call without keeping its tensors."""
    parameters = calls.parameters_of(build)
    tensors: list[torch.Tensor] = []
    try:
        bound = calls.bind(parameters, args, kwargs)
        structure = calls.encode_arguments(bound, tensors, shared=True)
    except TypeError as error:
        return CallRecord(parameters, modes, problem=str(error))
    index = {id(t): n for n, t in enumerate(tensors)}
    leaves = tree_flatten((args, dict(kwargs)))[0]
    names: dict[int, str] = {}
    for name, leaf in zip(input_names(build, args, kwargs), leaves):
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
    places = tuple(index.get(id(leaf)) for leaf in leaves)
    return CallRecord(parameters, modes, structure, inputs, places)
