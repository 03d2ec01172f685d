"""`graph.grad()`: gradients that can be read after a step, for parameters that were named before."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from gflow.errors import GraphError

Which = Sequence["str | torch.Tensor"] | bool


def keeps(
    wanted: Which, roots: Mapping[str, torch.nn.Module], where: str
) -> Callable[[torch.Tensor], bool]:
    """Whether a parameter's gradient is kept after a step.

    Raises:
        GraphError: a requested name belongs to no parameter.
    """
    if isinstance(wanted, bool):
        return lambda parameter: bool(wanted)
    ids = {id(find_parameter(w, roots, where)) for w in wanted}
    return lambda parameter: id(parameter) in ids


def find_parameter(
    which: str | torch.Tensor, roots: Mapping[str, torch.nn.Module], where: str
) -> torch.Tensor:
    """A parameter by its name in the graph (`model.head.weight`); a parameter itself.

    Raises:
        GraphError: there is no parameter of that name.
    """
    if isinstance(which, torch.Tensor):
        return which
    known: dict[str, torch.Tensor] = {}
    for root, module in roots.items():
        known |= module.named_parameters(root, remove_duplicate=False)
    if which not in known:
        close = difflib.get_close_matches(str(which), known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise GraphError(f"{where}: the graph has no parameter {which!r}{hint}")
    return known[which]


def read_gradient(
    which: str | torch.Tensor,
    roots: Mapping[str, torch.nn.Module],
    plans: Iterable[Any],
    trained: Iterable[torch.optim.Optimizer],
    wanted: Which,
    where: str,
) -> torch.Tensor | None:
    """A copy of a parameter's gradient in the latest step.

    Raises:
        GraphError: it is not kept, or belongs to no optimizer of the graph.
    """
    parameter = find_parameter(which, roots, where)
    name = which if isinstance(which, str) else "the parameter"
    if not any(p is parameter for o in trained for g in o.param_groups for p in g["params"]):
        raise GraphError(f"{where}: {name} has no gradient: no optimizer of the graph trains it.")
    if not keeps(wanted, roots, where)(parameter):
        given = repr(which) if isinstance(which, str) else "parameter"
        raise GraphError(
            f"{where}: the gradient of {name} is not kept after a step, which saves its memory. Call "
            f"graph.config.keep_gradients({given}) before the graph, or keep_gradients() for all."
        )
    plans = list(plans)
    if not plans:
        raise GraphError(f"{where}: there are no gradients before the graph's first step.")
    for plan in plans:
        for kept, buffer in plan.trace.kept:
            if kept is parameter and parameter.requires_grad:
                return buffer.clone()
    return None
