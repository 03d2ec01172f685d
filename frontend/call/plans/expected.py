"""Compares a call with those that a graph's programs accept, for errors."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import torch

from gflow.tracing.data.bound_call import BoundCall

Described = dict[str, str]

_KINDS = {float: "a float", int: "an int"}


def describe_call(call: BoundCall) -> Described:
    """Every input of a call by its name, as text; without those that have their defaults."""
    try:
        parameters = inspect.signature(call.build).parameters
    except (TypeError, ValueError):
        parameters = MappingProxyType({})
    defaults = {p.name: repr(p.default) for p in parameters.values() if p.default is not p.empty}
    found = {
        name: f"{_KINDS[type(leaf)]} that varies" if i in call.numbers else _describe(leaf)
        for i, (name, leaf) in enumerate(zip(call.names, call.leaves))
    }
    return {name: text for name, text in found.items() if defaults.get(name) != text}


def _describe(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    text = (
        f"a tensor of shape {list(leaf.shape)} and dtype {str(leaf.dtype).removeprefix('torch.')}"
    )
    if not leaf.is_contiguous():
        text += f" with strides {list(leaf.stride())}"
    if leaf.device.type != "cpu":
        text += f" on {leaf.device}"
    if leaf.requires_grad:
        text += " that requires grad"
    return text


def difference(given: Described, known: Iterable[Described]) -> str:
    """The difference of a call to the most similar known one; "" if its inputs are equal."""
    found = sorted((_differences(given, other) for other in known), key=len)
    return "; ".join(found[0]) if found else ""


def _differences(given: Described, known: Described) -> list[str]:
    out = []
    for name, text in given.items():
        if name not in known:
            out.append(f"input {name!r} is {text}, and the graph has no such input")
        elif known[name] != text:
            out.append(f"input {name!r} is {text}, the graph takes {known[name]}")
    out += [
        f"input {name!r} is missing, the graph takes {text}"
        for name, text in known.items()
        if name not in given
    ]
    return out


def full_message(here: str, name: str, size: int, unlike: str) -> str:
    """The error for a call that needs a program when the cache is strict and full."""
    why = unlike or (
        "the train or eval mode of a module, grad mode, autocast, or a hyperparameter that is part of "
        "the program is another"
    )
    return (
        f"{here}: {name} has as many programs as set_cache_size({size}, strict=True) allows, and this "
        f"call needs another: {why}."
    )
