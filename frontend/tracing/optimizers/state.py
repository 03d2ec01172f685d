"""Initial optimizer state, without a training step.

Most optimizers create their state at their first step (zeros, a counter at 0). The step is run on copies of the
parameters, and the first value assigned to each state entry is kept. That it really is the initial state is checked:
for a parameter of every kind, a step from it must give the same parameter and state as the first step without state,
on the same random gradient. All of this happens on the CPU, since each comparison would have to wait for a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch

from gflow.errors import GraphTraceError

from ..data.global_tensors import global_like, is_global, local_of
from ..dispatch.shapes.fills import Fills
from .copies import OnCopies, attributes_stay, copies_outside, told_apart
from .rates import scaled_rates
from .sparse import one_update, run_step
from .step_hooks import HOOKS, without_hooks


class _Assigned(dict[Any, Any]):
    """A dict whose methods all store values by `__setitem__`; those of `dict` bypass it."""

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self, other: Any) -> _Assigned:  # type: ignore[override, misc]
        self.update(other)
        return self


class _Entry(_Assigned):
    """A state dict that records the first value of each key. fills: knows the elements of fake tensors."""

    def __init__(self, items: dict[Any, Any] | None = None, fills: Fills | None = None) -> None:
        super().__init__()
        self.first: dict[Any, Any] = {}
        self._fills = fills
        self.update(items or {})

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self.first:
            self.first[key] = _copy(value, fills=self._fills)
        super().__setitem__(key, value)


class _State(_Assigned, defaultdict[Any, Any]):
    """An optimizer state that consists of `_Entry`s."""

    def __init__(self, fills: Fills | None = None) -> None:
        defaultdict.__init__(self, partial(_Entry, fills=fills))
        self._fills = fills

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, dict) and not isinstance(value, _Entry):
            value = _Entry(value, self._fills)
        super().__setitem__(key, value)


_CPU = torch.device("cpu")
#: of how many elements of parameters on no step computes the state; of fewer, fake tensors take longer
_LARGE = 1 << 22


def _copy(
    value: Any, device: torch.device = _CPU, fresh: bool = True, fills: Fills | None = None
) -> Any:
    """A copy of nested state with its tensors on `device`.

    fresh: whether tensors that are on the device already are copied, too. fills: knows the elements of fake tensors.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, copy=fresh) if fills is None else fills.value_of(value)
    if isinstance(value, (list, tuple)):
        items = [_copy(v, device, fresh, fills) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {k: _copy(v, device, fresh, fills) for k, v in value.items()}
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


def nested(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """An optimizer, and those that it contains in attributes, or in lists and dicts in attributes."""
    found: dict[int, torch.optim.Optimizer] = {}

    def visit(value: Any) -> None:
        if isinstance(value, torch.optim.Optimizer):
            if id(value) not in found:
                found[id(value)] = value
                for key, attribute in vars(value).items():
                    if key not in ("param_groups", "state", "defaults"):
                        visit(attribute)
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)
        elif isinstance(value, dict):
            for item in value.values():
                visit(item)

    visit(optimizer)
    return list(found.values())


def _states(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The state of an optimizer and of those that it contains, each once."""
    return list({id(o.state): o.state for o in nested(optimizer)}.values())


def _deep_copy(value: Any, memo: dict[int, Any]) -> Any:
    """A copy; the object itself if Python cannot copy it (a lock, a process group)."""
    try:
        return copy.deepcopy(value, memo)
    # a class may raise anything: with `__getattr__ = dict.__getitem__`, a KeyError for `__deepcopy__`
    except Exception:
        return value


@contextlib.contextmanager
def _on_copies(
    optimizer: torch.optim.Optimizer, memo: dict[int, Any], taken: Mapping[int, torch.Tensor]
) -> Iterator[None]:
    """While active, an optimizer and those that it contains work on copies of all that they refer to.

    Args:
        memo: copies by the ids of the originals, as for `deepcopy`.
        taken: copies of the parameters of the step.
    """
    optimizers = nested(optimizer)
    saved = [dict(vars(o)) for o in optimizers]
    memo |= {id(o): o for o in optimizers}
    for attributes in saved:
        for name, value in attributes.items():
            if name in HOOKS:
                memo[id(value)] = OrderedDict()
            elif isinstance(value, (FunctionType, MethodType, torch.nn.Module, torch.Generator)):
                memo[id(value)] = value
            elif isinstance(value, torch.Tensor):
                memo.setdefault(id(value), _copy(value))
    for group in (g for o in optimizers for g in o.param_groups):
        tensors = [v for v in group.values() if isinstance(v, torch.Tensor)]
        memo |= {id(v): _copy(v) for v in tensors}
    generators = torch.get_rng_state(), random.getstate()
    copies = [{k: _deep_copy(v, memo) for k, v in attributes.items()} for attributes in saved]
    for group in {
        id(g): g for attributes in copies for g in attributes.get("param_groups", ())
    }.values():
        group["params"] = [p for p in group["params"] if id(p) in taken]
        if group.get("capturable"):  # it selects the device of counters, and is refused on a CPU
            group["capturable"] = False
    try:
        for o, attributes in zip(optimizers, copies, strict=True):
            vars(o).update(attributes)
        yield
    finally:
        for o, attributes in zip(optimizers, saved, strict=True):
            vars(o).clear()
            vars(o).update(attributes)
        torch.set_rng_state(generators[0])
        random.setstate(generators[1])


def _probe(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    initial: list[list[dict[Any, Any]]] | None,
    fills: Fills | None = None,
) -> tuple[list[torch.Tensor], list[list[dict[Any, Any]]], list[list[dict[Any, Any]]]]:
    """Run one step on copies, which may write into the gradients. fills: run it on fake tensors, whose elements this
    knows; the gradients are fake.

    Returns:
        The new parameters; for each of the optimizers' states (see `_states`) the new entries of the parameters, and
        the first values of these.
    """
    own = _copy if fills is None else fills.like
    copies = {id(p): own(local_of(p)).requires_grad_(p.requires_grad) for p in parameters}
    for p, grad in zip(parameters, gradients, strict=True):
        copies[id(p)].grad = grad
    optimizers = nested(optimizer)
    every = {id(p): p for o in optimizers for g in o.param_groups for p in g["params"]}
    others = [p for i, p in every.items() if i not in copies]  # have no gradient
    pairs = [(p, copies[id(p)]) for p in parameters]
    pairs += copies_outside(optimizers, every.values())
    memo: dict[int, Any] = dict(every)  # code gets the parameters themselves
    states = []
    for n, real in enumerate(_states(optimizer)):
        state = _State(fills)
        for key, value in real.items():
            if not isinstance(key, torch.Tensor):
                state[key] = _copy(value)
        for p, entry in zip(parameters, initial[n] if initial else ()):
            if entry or n == 0:
                state[p] = _copy(entry)
        memo[id(real)] = state
        states.append(state)
    with (
        _on_copies(optimizer, memo, copies),
        scaled_rates(optimizer, optimizer.param_groups),
        without_hooks(),
        one_update(type(optimizer).__name__),
        attributes_stay(list(every.values())),
        OnCopies(pairs, later=others),
        fills or contextlib.nullcontext(),
    ):
        run_step(optimizer)
    found = [[s.get(p, _Entry()) for p in parameters] for s in states]
    return (
        [copies[id(p)].detach() for p in parameters],
        [[dict(e) for e in entries] for entries in found],
        [[dict(e.first) for e in entries] for entries in found],
    )


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(local_of(tensor), requires_grad=False, device=_CPU)


def _sample(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> list[int]:
    """The smallest parameter of each group, dtype and number of dimensions: it represents all parameters that an
    optimizer treats alike. Those that it may treat individually represent themselves."""
    own = told_apart(nested(optimizer), parameters)
    groups = {id(p): i for i, g in enumerate(optimizer.param_groups) for p in g["params"]}
    smallest: dict[Any, int] = {}
    for i, p in enumerate(parameters):
        kind = (groups[id(p)], p.dtype, p.device, p.ndim, id(p) if id(p) in own else None)
        if kind not in smallest or p.numel() < parameters[smallest[kind]].numel():
            smallest[kind] = i
    return sorted(smallest.values())


def _blank(value: Any) -> Any:
    """Entries with zeros in place of all tensors."""
    if isinstance(value, list):
        return [_blank(v) for v in value]
    zeros = torch.zeros_like
    return {k: zeros(v) if isinstance(v, torch.Tensor) else v for k, v in value.items()}


def _first_values(
    optimizer: torch.optim.Optimizer, missing: list[torch.Tensor], generator: torch.Generator
) -> list[list[dict[Any, Any]]]:
    """For each of the optimizers' states, the first values of the entries of the parameters."""
    if sum(p.numel() for p in missing) > _LARGE:
        fills = Fills()
        try:
            gradients = [fills.like(local_of(p)) for p in missing]
            return _probe(optimizer, missing, gradients, None, fills)[2]
        # the optimizer's own code may raise anything where it asks a fake tensor for a number
        except Exception:
            pass
    try:
        return _probe(optimizer, missing, [_zeros(p) for p in missing], None)[2]
    except (ArithmeticError, ValueError):
        # Python divides by a norm of the zeros, or takes its logarithm
        gradients = [_zeros(p).normal_(generator=generator) for p in missing]
        return _probe(optimizer, missing, gradients, None)[2]


def prepare_state(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> bool:
    """Give the parameters without state their initial state, in the optimizer and in those that it contains. Returns
    False if the state can only be created from real gradients."""
    states = _states(optimizer)
    missing = [p for p in parameters if not any(state.get(p) for state in states)]
    if not missing:
        return True
    generator = torch.Generator().manual_seed(0)
    first = _first_values(optimizer, missing, generator)
    if not any(map(any, first)):
        return True
    sample = _sample(optimizer, missing)
    some = [missing[i] for i in sample]
    noise = [_zeros(p).normal_(generator=generator) for p in some]
    after, state, _ = _probe(optimizer, some, _copy(noise), None)
    for blank in (False, True):
        candidate = _blank(first) if blank else first
        try:
            initial = [[entries[i] for i in sample] for entries in candidate]
            again, state_again, _ = _probe(optimizer, some, _copy(noise), initial)
        except (KeyError, TypeError, AttributeError):
            continue
        if _equal(after, again) and _equal(state, state_again):
            for real, entries in zip(states, candidate, strict=True):
                for p, entry in zip(missing, entries, strict=True):
                    if entry:
                        real[p] = _whole(optimizer, _copy(entry, p.device, fresh=False), p)
            return True
    return False


def _whole(
    optimizer: torch.optim.Optimizer, entry: dict[Any, Any], parameter: torch.Tensor
) -> dict[Any, Any]:
    """The state of a global parameter: a tensor with the shape of a rank's shard gets the parameter's placements.

    Raises:
        GraphTraceError: a state has another shape, so its placements are unknown.
    """
    if not is_global(parameter):
        return entry
    found = dict(entry)
    for key, value in entry.items():
        if not isinstance(value, torch.Tensor) or not value.dim():
            continue
        if value.shape != local_of(parameter).shape:
            raise GraphTraceError(
                f"{type(optimizer).__name__} keeps state {key!r} of shape {list(value.shape)} for a DTensor "
                f"whose local shape is {list(local_of(parameter).shape)}, so its update is not elementwise; "
                "with global parameters, use an elementwise optimizer (SGD, AdamW, ...)."
            )
        found[key] = global_like(value, parameter)
    return found


def state_to_devices(optimizer: torch.optim.Optimizer) -> None:
    """Move step counters to the GPU of their parameters.

    PyTorch keeps them on the CPU unless `capturable=True`; a compiled step would have to wait for the GPU to return
    each of them.
    """
    for state in _states(optimizer):
        for parameter, entry in state.items():
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
