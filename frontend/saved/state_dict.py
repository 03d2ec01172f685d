"""`graph.state_dict()`: all that a training run goes on from.

    {"model": {"0.weight": …, …},            a module's state dict, by the attribute's name
     "graph.optimizer.0": {…},               an optimizer's, in the order of add_optimizer()
     "graph.lr_scheduler.0": {…}, "graph.grad_scaler": {…},
     "graph.rng": tensor,                    PyTorch's generator; None where nothing has drawn from it
     "graph.step": 12}                       how often the graph was called

No attribute's name holds a dot, so the graph's own entries never meet a module's.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from gflow.dialects.records import record
from gflow.errors import GraphError

_MOST_LISTED = 8


@record
class Parts:
    """The parts of a graph's state."""

    modules: Mapping[str, torch.nn.Module]
    others: Mapping[str, Any]  # optimizers, schedulers and the scaler, by their keys


def parts_of(state: Any, roots: Mapping[str, torch.nn.Module]) -> Parts:
    """A graph's parts, by their keys in its state dict."""
    others = {f"graph.optimizer.{i}": o for i, o in enumerate(state.optimizers)}
    others |= {f"graph.lr_scheduler.{i}": s for i, s in enumerate(state.schedulers)}
    if state.scaler is not None:
        others["graph.grad_scaler"] = state.scaler
    return Parts(roots, others)


def state_dict(state: Any, roots: Mapping[str, torch.nn.Module]) -> OrderedDict[str, Any]:
    """The graph's state. Its tensors are the live ones, as in `Module.state_dict()`: a later step changes them;
    `gflow.save` or `copy.deepcopy` preserves them."""
    parts = parts_of(state, roots)
    found: OrderedDict[str, Any] = OrderedDict()
    for name, module in parts.modules.items():
        found[name] = module.state_dict()
    for name, part in parts.others.items():
        found[name] = part.state_dict()
    found["graph.rng"] = state.seeds.state()
    found["graph.step"] = state.call.steps
    return found


def load_state_dict(
    state: Any,
    roots: Mapping[str, torch.nn.Module],
    given: Mapping[str, Any],
    strict: bool,
    here: str,
) -> None:
    """Load a state. Everything is checked before anything changes.

    Raises:
        GraphError: keys are missing or unexpected (only if `strict`), or shapes differ.
    """
    if not isinstance(given, Mapping):
        raise GraphError(
            f"{here}: load_state_dict() takes what state_dict() gave, got {type(given).__name__}"
        )
    parts = parts_of(state, roots)
    _check(state.name, parts, given, strict, here)
    for name, module in parts.modules.items():
        if name in given:
            module.load_state_dict(given[name], strict=strict)
    for name, part in parts.others.items():
        if name in given:
            # otherwise an optimizer would update the given tensors themselves
            part.load_state_dict(copy.deepcopy(given[name]))
    if given.get("graph.rng") is not None:
        state.seeds.load(given["graph.rng"])
    state.call.steps = int(given.get("graph.step", state.call.steps))


def _check(name: str, parts: Parts, given: Mapping[str, Any], strict: bool, here: str) -> None:
    missing: list[str] = []
    unexpected = [
        key
        for key in given
        if key not in {*parts.modules, *parts.others, "graph.rng", "graph.step"}
    ]
    wrong: list[str] = []
    for key in (*parts.modules, *parts.others, "graph.rng", "graph.step"):
        if key not in given:
            missing.append(key)
        elif key in parts.modules:
            _check_module(key, parts.modules[key], given[key], missing, unexpected, wrong)
        elif isinstance(parts.others.get(key), torch.optim.Optimizer):
            wrong += _check_optimizer(key, parts.others[key], given[key])
    problems = []
    if strict and missing:
        problems.append(f"missing {_listed(missing)}")
    if strict and unexpected:
        problems.append(f"unexpected {_listed(unexpected)}")
    problems += wrong[:_MOST_LISTED]
    if problems:
        advice = "; strict=False loads what fits" if strict and not wrong else ""
        raise GraphError(
            f"{here}: the state dict does not fit {name}: {'; '.join(problems)}{advice}."
        )


def _check_module(
    key: str,
    module: torch.nn.Module,
    given: Any,
    missing: list[str],
    unexpected: list[str],
    wrong: list[str],
) -> None:
    if not isinstance(given, Mapping):
        wrong.append(f"{key} is a {type(given).__name__}, where a module's state dict was expected")
        return
    own = module.state_dict()
    if not any(m._load_state_dict_pre_hooks for m in module.modules()):  # these may rename
        missing += [f"{key}.{k}" for k in own if k not in given]
        unexpected += [f"{key}.{k}" for k in given if k not in own]
    for name, tensor in own.items():
        other = given.get(name)
        if not (isinstance(tensor, torch.Tensor) and isinstance(other, torch.Tensor)):
            continue
        if tensor.shape != other.shape and not isinstance(
            tensor, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)
        ):
            wrong.append(
                f"{key}.{name} has shape {list(other.shape)}, the graph's has {list(tensor.shape)}"
            )


def _check_optimizer(key: str, optimizer: torch.optim.Optimizer, given: Any) -> list[str]:
    try:
        sizes = [len(group["params"]) for group in given["param_groups"]]
    except (TypeError, KeyError):
        return [f"{key} is not an optimizer's state dict"]
    own = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != own:
        return [f"{key} has parameter groups of {sizes} parameters, the graph's has {own}"]
    return []


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
