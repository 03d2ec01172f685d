"""Initial optimizer state, without a training step.

Most optimizers create their state at their first step (zeros, a counter at 0). The step is
run on copies of the parameters, and the first value assigned to each state entry is kept.
That it really is the initial state is checked, not assumed: for a parameter of every kind, a
step from it must give the same parameter and state as the first step from nothing, on the same
random gradient. All of it happens on the CPU: a GPU would have to be waited for at each comparison.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from ..errors import GraphTraceError
from .sparse import run_step


class _Entry(dict[Any, Any]):
    """A state dict that remembers the first value of each key."""

    def __init__(self, items: dict[Any, Any] | None = None) -> None:
        super().__init__()
        self.first: dict[Any, Any] = {}
        for key, value in (items or {}).items():
            self[key] = value

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self.first:
            self.first[key] = _copy(value)
        super().__setitem__(key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value


class _State(defaultdict[Any, Any]):
    """An optimizer state made of such entries."""

    def __init__(self) -> None:
        super().__init__(_Entry)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, dict) and not isinstance(value, _Entry):
            value = _Entry(value)
        super().__setitem__(key, value)


_CPU = torch.device("cpu")


def _copy(value: Any, device: torch.device = _CPU) -> Any:
    """A copy of nested state with its tensors on `device`."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, (list, tuple)):
        return type(value)([_copy(v, device) for v in value])
    if isinstance(value, dict):
        return {k: _copy(v, device) for k, v in value.items()}
    return value


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return bool(torch.equal(a, b)) or (
            a.is_floating_point() and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
        )
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _probe(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    initial: list[dict[Any, Any]] | None,
) -> tuple[list[torch.Tensor], list[dict[Any, Any]], list[dict[Any, Any]]]:
    """One real step on copies: new parameters, new state, first values of the state."""
    copies = {id(p): _copy(p).requires_grad_(p.requires_grad) for p in parameters}
    for p, grad in zip(parameters, gradients, strict=True):
        copies[id(p)].grad = grad.clone()
    state = _State()
    for p, entry in zip(parameters, initial or [], strict=initial is not None):
        state[copies[id(p)]] = _copy(entry)
    groups = [
        {
            k: _copy(v) if k != "params" else [copies[id(p)] for p in v if id(p) in copies]
            for k, v in g.items()
        }
        for g in optimizer.param_groups
    ]
    for group in groups:  # `capturable` says where counters are; the CPU refuses it
        if group.get("capturable"):
            group["capturable"] = False
    saved = dict(vars(optimizer))
    rng = torch.get_rng_state()
    vars(optimizer).update(param_groups=groups, state=state)
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        if hooks in saved:
            vars(optimizer)[hooks] = type(saved[hooks])()
    try:
        run_step(optimizer)
    except TypeError as error:
        if "closure" in str(error):
            raise GraphTraceError(
                f"{type(optimizer).__name__}.step() needs a closure, so it runs the model "
                "several times; a graph holds one update per call. Use an optimizer whose "
                "step() takes no closure."
            ) from error
        raise
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(saved)
        torch.set_rng_state(rng)
    entries = [state[copies[id(p)]] for p in parameters]
    return (
        [copies[id(p)].detach() for p in parameters],
        [dict(e) for e in entries],
        [dict(e.first) for e in entries],
    )


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor, requires_grad=False, device=_CPU)


def _sample(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> list[int]:
    """The smallest parameter of each group, dtype and number of dimensions: one stands for
    all that an optimizer treats alike."""
    groups = {id(p): i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    smallest: dict[Any, int] = {}
    for i, p in enumerate(parameters):
        kind = (groups[id(p)], p.dtype, p.device, p.ndim)
        if kind not in smallest or p.numel() < parameters[smallest[kind]].numel():
            smallest[kind] = i
    return sorted(smallest.values())


def prepare_state(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> bool:
    """Give the parameters that have none their initial state. False when the state can only
    be made from real gradients."""
    missing = [p for p in parameters if not optimizer.state.get(p)]
    if not missing:
        return True
    _, _, first = _probe(optimizer, missing, [_zeros(p) for p in missing], None)
    if not any(first):
        return True
    blank = [
        {k: torch.zeros_like(v) if isinstance(v, torch.Tensor) else v for k, v in entry.items()}
        for entry in first
    ]
    sample = _sample(optimizer, missing)
    some = [missing[i] for i in sample]
    generator = torch.Generator().manual_seed(0)
    noise = [_zeros(p).normal_(generator=generator) for p in some]
    after, state, _ = _probe(optimizer, some, noise, None)
    for candidate in (first, blank):
        try:
            initial = [candidate[i] for i in sample]
            again, state_again, _ = _probe(optimizer, some, noise, initial)
        except (KeyError, TypeError, AttributeError):
            continue
        if _equal(after, again) and _equal(state, state_again):
            for p, entry in zip(missing, candidate, strict=True):
                if entry:
                    optimizer.state[p] = _copy(entry, p.device)
            return True
    return False


def state_to_devices(optimizer: torch.optim.Optimizer) -> None:
    """Bring step counters to the GPU that their parameters are on.

    PyTorch keeps them on the CPU unless it is told that a step is captured (`capturable=True`); a compiled
    step would have to wait for the GPU to bring each back.
    """
    for parameter, entry in optimizer.state.items():
        if not isinstance(parameter, torch.Tensor) or parameter.device.type != "cuda":
            continue
        for key, value in _small(entry):
            entry[key] = value.to(parameter.device)


def _small(entry: Any) -> list[tuple[Any, torch.Tensor]]:
    items = entry.items() if isinstance(entry, dict) else ()
    return [
        (key, value)
        for key, value in items
        if isinstance(value, torch.Tensor) and value.ndim == 0 and value.device.type == "cpu"
    ]
