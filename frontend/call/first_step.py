"""Initial state of optimizers before a graph's first program runs. If the state depends on gradients, a first step is
made op by op.

`Setup` restores optimizers and scaler if the call fails. A first step works on copies (`on_copies`); its results are
written by `FirstStep.commit`, once the program is compiled.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.utils._pytree import keystr, tree_leaves_with_path

from gflow.runtime.composed.micro_batches import Joined
from gflow.tracing.data.bound_call import BoundCall
from gflow.tracing.data.sizes import step_of, with_size
from gflow.tracing.data.trace import finish_call
from gflow.tracing.data.values import OutputRef
from gflow.tracing.optimizers.copies import OnCopies, attributes_stay, copies_outside
from gflow.tracing.optimizers.scaler import eager_steps, prepare
from gflow.tracing.optimizers.state import _equal
from gflow.tracing.program.aliases import check_made
from gflow.tracing.program.interpreter import TailSteps, run_trace
from gflow.tracing.tracer import FirstStepNeeded

from .result_views import views_of, with_views

Optimizer = torch.optim.Optimizer
#: types of attributes that a first step may change, or that may contain parameters
_COPIED = (list, tuple, dict, set, frozenset)


class Setup:
    """A snapshot of optimizers and a scaler: of their dicts, not of tensors' elements."""

    def __init__(self, optimizers: Sequence[Optimizer], scaler: Any) -> None:
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._generator: torch.Tensor | None = None
        seen: set[int] = set()
        for optimizer in optimizers:
            self._add_optimizer(optimizer, seen)
        if scaler is not None:
            self._dicts.append((vars(scaler), dict(vars(scaler))))

    def _add_optimizer(self, optimizer: Optimizer, seen: set[int]) -> None:
        if id(optimizer) in seen:
            return
        seen.add(id(optimizer))
        own = vars(optimizer)
        self._dicts.append((own, dict(own)))
        for inner in _wrapped(optimizer):
            self._add_optimizer(inner, seen)
        groups = optimizer.param_groups
        self._lists.append((groups, list(groups)))
        entries = [e for e in optimizer.state.values() if isinstance(e, dict)]
        dicts: list[Any] = [optimizer.state, optimizer.defaults, *groups, *entries]
        self._dicts += [(d, dict(d)) for d in dicts]

    def draws(self) -> None:
        """Call before PyTorch's generator may be drawn from."""
        if self._generator is None:
            self._generator = torch.default_generator.get_state()

    def undo(self) -> bool:
        """Restore the snapshot. Returns whether anything had changed. It can be repeated."""
        changed = False
        for live, saved in self._dicts:
            if live.keys() != saved.keys() or any(live[k] is not v for k, v in saved.items()):
                changed = True
                live.clear()
                live.update(saved)
        for items, before in self._lists:
            items[:] = before
        if self._generator is not None:
            torch.default_generator.set_state(self._generator)
        return changed


class FirstStep:
    """A step that was made on copies: the results of `build()`, and the values to write.

    Args:
        grads: gradients after the step, by the ids of parameters.
        skipped: whether an optimizer has skipped the step, and has no state, since a gradient is inf or nan.
    """

    def __init__(
        self,
        outputs: Any,
        writes: list[tuple[torch.Tensor, torch.Tensor]],
        grads: dict[int, torch.Tensor],
        skipped: bool = False,
    ) -> None:
        self.outputs, self.writes, self.grads, self.skipped = outputs, writes, grads, skipped
        self.begun = self.done = False

    def keep_gradients(self, kept: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Write gradients to buffers. kept: parameters, each with its buffer."""
        self.writes += [(b, self.grads[id(p)]) for p, b in kept if id(p) in self.grads]

    def commit(self) -> None:
        """Write the results. It can be repeated if it is interrupted."""
        self.begun = True
        with torch.no_grad():
            for target, value in self.writes:
                target.detach().copy_(value)
                increment_version(target)
        self.done = True


def _wrapped(optimizer: Optimizer) -> list[Optimizer]:
    """Optimizers that this one contains, as Lookahead does."""
    return [inner for inner in vars(optimizer).values() if isinstance(inner, Optimizer)]


def _with_wrapped(optimizers: Sequence[Optimizer]) -> list[Optimizer]:
    """These optimizers, and all that they contain, each once."""
    found: dict[int, Optimizer] = {}
    left = [*optimizers]
    while left:
        optimizer = left.pop()
        if id(optimizer) not in found:
            found[id(optimizer)] = optimizer
            left += _wrapped(optimizer)
    return [*found.values()]


def _copy(value: Any, copies: dict[int, Any]) -> Any:
    """A copy of nested state. copies: by the ids of the originals; a tensor at two places is one tensor in the copy.
    Parameters are not copied."""
    if isinstance(value, torch.Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.detach().clone()
        return copies[id(value)]
    if type(value) in (list, tuple):
        return type(value)([_copy(v, copies) for v in value])
    if type(value) in (set, frozenset):
        return type(value)(value)
    if type(value) is dict:
        return {k: _copy(v, copies) for k, v in value.items()}
    return value


class _Copy:
    """One optimizer, working on copies of its state.

    Args:
        shared: copies of groups, states and their tensors, which optimizers may share, by the ids of the originals;
            parameters are not copied.
    """

    def __init__(self, optimizer: Optimizer, shared: dict[int, Any]) -> None:
        self.optimizer = optimizer
        self.saved = dict(vars(optimizer))
        groups, state = optimizer.param_groups, optimizer.state
        if id(groups) not in shared:
            shared[id(groups)] = [
                {k: list(v) if k == "params" else _copy(v, shared) for k, v in group.items()}
                for group in groups
            ]
        if id(state) not in shared:
            shared[id(state)] = defaultdict(
                dict,
                {key: _copy(entry, shared) for key, entry in state.items()},
            )
        self.groups: list[dict[str, Any]] = shared[id(groups)]
        self.state: defaultdict[Any, Any] = shared[id(state)]
        own = {
            k: _copy(v, shared)
            for k, v in self.saved.items()
            if isinstance(v, torch.Tensor) or (k[:1] != "_" and type(v) in _COPIED)
        }
        self.new: dict[str, Any] = {}
        self.swapped = {**own, "param_groups": self.groups, "state": self.state}

    def enter(self) -> None:
        vars(self.optimizer).update(self.swapped)

    def leave(self) -> None:
        """Restore the optimizer; the step's changes of its attributes are kept."""
        if not self.new:
            self.new = dict(vars(self.optimizer))
        vars(self.optimizer).clear()
        vars(self.optimizer).update(self.saved)

    def check(self, known: Mapping[int, str], parameters: Mapping[int, torch.Tensor]) -> None:
        """Check the state that the step has created.

        Args:
            known: parameters, by the addresses of their copies' storages.
            parameters: by their ids.

        Raises:
            GraphTraceError: it shares memory with another tensor.
        """
        own = {k: v for k, v in self.new.items() if k not in ("param_groups", "state")}
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.groups]
        held = [*self.state.values(), *groups, own]
        made = [
            (f"state {keystr(path)}", leaf)
            for part in held
            for path, leaf in tree_leaves_with_path(part)
            if isinstance(leaf, torch.Tensor) and id(leaf) not in parameters
        ]
        check_made(made, known, lambda: type(self.optimizer).__name__)

    def install(self, writes: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Give the optimizer the state of its copy; new values of existing tensors are added to `writes`."""
        optimizer = self.optimizer
        for key, entry in self.state.items():
            if not isinstance(entry, dict):
                _merge(optimizer.state, {key: entry}, writes)
            elif entry or key in optimizer.state:
                _merge(optimizer.state[key], entry, writes)
        for group, new in zip(optimizer.param_groups, self.groups):
            _merge(group, {k: v for k, v in new.items() if k != "params"}, writes)
        left = ("param_groups", "state", "defaults")
        own = {k: v for k, v in self.new.items() if k not in left}
        _merge(vars(optimizer), own, writes)


def _merge(
    live: dict[Any, Any], new: dict[Any, Any], writes: list[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    for key, value in new.items():
        old = live.get(key)
        if old is value:
            continue
        if isinstance(old, torch.Tensor) and isinstance(value, torch.Tensor):
            if old.shape == value.shape and old.dtype == value.dtype:
                writes.append((old, value))
                continue
            live[key] = value
        elif key not in live or type(value) is not type(old) or not _equal(value, old):
            live[key] = value


def on_copies(
    optimizers: Sequence[Optimizer],
    scaler: Any,
    parameters: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    start: dict[int, torch.Tensor],
    steps: Callable[[], list[Any]],
) -> tuple[list[Any], list[tuple[torch.Tensor, torch.Tensor]], dict[int, torch.Tensor]]:
    """Let optimizers make a step on copies of everything that they update.

    Args:
        start: values of parameters that differ from the parameters' own, by id.
        steps: makes the step, and returns the optimizers that were skipped.

    Returns:
        The skipped optimizers, the values to write, and the gradients after the step, by the ids of parameters.
    """
    every_optimizer = _with_wrapped(optimizers)
    every = {id(p): p for o in every_optimizer for g in o.param_groups for p in g["params"]}
    copies = {
        i: start.get(i, p).detach().clone().requires_grad_(p.requires_grad)
        for i, p in every.items()
    }
    for p, grad in zip(parameters, grads):
        copies[id(p)].grad = grad
    outside = copies_outside(every_optimizer, every.values())
    for t, copied in outside:
        if id(t) in start:
            copied.detach().copy_(start[id(t)])
    pairs = [*((p, copies[i]) for i, p in every.items()), *outside]
    shared: dict[int, Any] = dict(every)
    held = [_Copy(o, shared) for o in every_optimizer]
    scale = {
        k: v
        for k, v in (vars(scaler) if scaler is not None else {}).items()
        if isinstance(v, torch.Tensor)
    }
    saved = dict(vars(scaler)) if scaler is not None else {}

    def restore() -> None:
        for one in held:
            one.leave()
        if scaler is not None:
            vars(scaler).update(saved)

    scaled: dict[str, Any] = {k: v.clone() for k, v in scale.items()}
    if "_per_optimizer_states" in saved:
        scaled["_per_optimizer_states"] = copy.copy(saved["_per_optimizer_states"])
    try:
        try:
            for one in held:
                one.enter()
            if scaler is not None:
                vars(scaler).update(scaled)
            with attributes_stay(list(every.values())), OnCopies(pairs):
                skipped = steps()
            if scaler is not None:
                scaled = {k: vars(scaler)[k] for k in scale}
        finally:
            restore()
    finally:
        restore()
    writes = [(p, copies[i]) for i, p in every.items()]
    writes += [(t, new) for t, new in outside if new._version]
    writes += [(scale[k], scaled[k]) for k in scale]
    known = {
        c.untyped_storage().data_ptr(): f"a parameter of shape {list(c.shape)}"
        for c in copies.values()
        if c.numel()
    }
    for one in held:
        one.check(known, every)
    for one in held:
        one.install(writes)
    left = {i: c.grad for i, c in copies.items() if c.grad is not None}
    return skipped, [(t, v.detach()) for t, v in writes], left


def make_first_step(
    needed: FirstStepNeeded,
    parts: Sequence[BoundCall],
    optimizers: Sequence[Optimizer],
    scaler: Any,
    stacked: bool = False,
) -> FirstStep:
    """Run forward and backward op by op, for each micro-batch in `parts`, then the optimizers' own first step, on
    copies of everything that they update."""
    trace, parameters = needed.trace, needed.parameters
    if (dynamic := parts[0].dynamic) is not None:
        trace = with_size(trace, step_of(dynamic, parts[0].leaves))
    returned = sum(isinstance(leaf, OutputRef) for leaf in trace.out_leaves)
    joined: list[Joined] = []
    totals: list[torch.Tensor] = []
    now: dict[int, torch.Tensor] = {}  # inputs that the forward has updated, by index
    writes: list[tuple[torch.Tensor, torch.Tensor]] = []
    for k, part in enumerate(parts):
        inputs = [
            part.leaves[trace.input_leaves[i.value]] if i.tensor is None else now.get(n, i.tensor)
            for n, i in enumerate(trace.inputs)
        ]
        results = run_trace(trace, inputs)
        for out, value in zip(trace.outputs, results):
            if out.alias is None:
                continue
            if trace.inputs[out.alias].tensor is None:
                writes.append((inputs[out.alias], value.clone()))
            else:
                now[out.alias] = value.clone()
        grads = [g / len(parts) for g in results[len(results) - len(parameters) :]]
        totals = [t + g for t, g in zip(totals, grads)] if totals else grads
        joined = joined or [Joined(r, len(parts), stacked) for r in results[:returned]]
        for whole, result in zip(joined, results):
            whole.add(result, k)
    values = [whole.result() for whole in joined]
    if views := views_of(needed.trace.result_views, dynamic, parts[0].leaves):
        leaves, at = parts[0].leaves, needed.trace.input_leaves
        given = {
            i.value: leaves[at[i.value]] if i.tensor is None else i.tensor
            for i in needed.trace.inputs
        }
        values = with_views(values, views, given.__getitem__)
    late: list[torch.Tensor] = []
    if (tail := needed.trace.tail) is not None:
        positions = {i.value: n for n, i in enumerate(needed.trace.inputs)}
        read = tail.operands(positions, inputs, values + results[returned:])
        size = None if dynamic is None else step_of(dynamic, parts[0].leaves)
        late = TailSteps(tail).run(read, size)
    outputs = finish_call(trace, values, late)
    updates = [(t, v) for n, v in now.items() if (t := trace.inputs[n].tensor) is not None]
    active = scaler if prepare(scaler, parameters) else None
    skipped, stepped, left = on_copies(
        optimizers,
        active,
        parameters,
        totals,
        {id(t): v for t, v in updates},
        lambda: eager_steps(active, optimizers, trace.unscaled),
    )
    return FirstStep(outputs, [*writes, *updates, *stepped], left, bool(skipped))
