"""A plan: one compiled trace with the real tensors and numbers it reads and updates."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.utils._pytree import tree_unflatten

from gflow.errors import GraphTraceError
from gflow.execution.collector import collector_paused
from gflow.execution.dynamic_dim import size_of
from gflow.execution.executor import Compiled
from gflow.guards.state import StateGuard
from gflow.runtime.interrupts import held
from gflow.runtime.micro_batches import Joined
from gflow.tracing.context.watch import current
from gflow.tracing.data.sizes import Dynamic, with_size
from gflow.tracing.data.trace import Trace
from gflow.tracing.data.values import OutputRef
from gflow.tracing.optimizers.scaler import eager_steps, prepare
from gflow.tracing.program.interpreter import run_trace
from gflow.tracing.program.modules import Reached, collect_modules
from gflow.tracing.tracer import trace_graph

from .call_record import CallRecord
from .first_step import FirstStep, Setup, on_copies
from .layout_guard import LayoutGuard, metadata
from .memory_check import MemoryCheck
from .micro_batches import compile_step, split_arguments
from .python_state import PythonState
from .signature import check_call, check_tensors

#: roles of tensors that eager code may have saved for a backward of its own
_SEEN = ("parameter", "buffer", "input", "constant")


class Plan:
    """Runs one compiled trace. `first` is a first step that was made on copies, since an optimizer makes its
    state from gradients; it stands for the first call."""

    def __init__(
        self,
        trace: Trace,
        compiled: Compiled,
        first: FirstStep | None = None,
    ) -> None:
        self.trace, self.compiled, self.first = trace, compiled, first
        self.dynamic: Dynamic | None = None
        self.used = 0
        self.size_at = next((k for k, i in enumerate(trace.inputs) if i.role == "size"), -1)
        self.call: dict[str, str] = {}
        self.record: CallRecord | None = None
        self.guard: StateGuard | None = None
        self.arguments: list[Any] = [i.tensor for i in trace.inputs]
        self.input_slots = [
            (position, leaf)
            for position, entry in enumerate(trace.inputs)
            if (leaf := trace.input_leaves.get(entry.value)) is not None
        ]
        self._take_places()
        self.positions = {entry.value: i for i, entry in enumerate(trace.inputs)}
        self.python = PythonState(trace)
        self.writes = bool(self.python.writes or self.python.written)
        self.updated = [
            o.alias
            for o in trace.outputs
            if o.alias is not None and trace.inputs[o.alias].role in _SEEN
        ]
        spec = trace.out_spec
        self.single = len(trace.out_leaves) == 1 and spec is not None and spec.is_leaf()

    def _take_places(self) -> None:
        """Remember the real tensors and where they are."""
        self.fixed = [
            t
            for t, i in zip(self.arguments, self.trace.inputs)
            if t is not None and i.role != "scalar"
        ]
        self.places = list(map(torch.Tensor.data_ptr, self.fixed))
        self.layouts = LayoutGuard(self.fixed)
        self.memory: MemoryCheck | None = None

    def refresh(self) -> bool:
        """Bring changed hyperparameters into the arguments. False: trace anew."""
        python, trace = self.python, self.trace
        if not python.bound() and not self._rebind():
            return False
        if not python.take_numbers() or not python.values_hold():
            return False
        if not python.tensors_same() and not self._rebind():
            return False
        if trace.views and not all(view.holds() for view in trace.views):
            return False
        if not self.layouts.holds():
            return False
        places = list(map(torch.Tensor.data_ptr, self.fixed))
        if places != self.places:
            self.places, self.memory = places, None
        return True

    def _rebind(self) -> bool:
        """Take the dicts and tensors that `load_state_dict` put into the optimizers."""
        if not self.python.locate() or not self.python.fits():
            return False
        for slot in self.python.slots:
            position, tensor = self.positions[slot.value], slot.read()
            if tensor is self.arguments[position]:
                continue
            if not isinstance(tensor, torch.Tensor) or metadata(tensor) != metadata(
                self.arguments[position]
            ):
                return False
            self.arguments[position] = tensor
        self.python.bind()
        self._take_places()
        return True

    def run(self, leaves: Sequence[Any], state: Any) -> Any:
        arguments = self.arguments.copy()
        for position, leaf in self.input_slots:
            arguments[position] = leaves[leaf]
        if self.dynamic is not None:
            arguments[self.size_at].fill_(size_of(self.dynamic, leaves))
        updated = [arguments[i] for i in self.updated]
        memory = self.memory
        if memory is None:
            memory = self.memory = MemoryCheck(self.trace, self.arguments, self.input_slots)
        if memory.needed:
            memory.apply(arguments)
        seeds = state.seeds if self.compiled.takes_rng else None
        run: Any = self.compiled.run
        run.done = False
        try:
            if seeds is not None:
                arguments.append(seeds.draw())
            results = run(arguments)
            self._ran(updated, seeds)
        except BaseException:
            if run.done:
                self._ran(updated, seeds)
            elif seeds is not None:
                seeds.undo()
            raise
        return self.results(results)

    def _ran(self, updated: list[torch.Tensor], seeds: Any) -> None:
        """What follows a run. Given up in the middle, it can be done again."""
        if updated:
            increment_version(updated)
        if seeds is not None:
            seeds.keep()
        if self.writes:
            self.python.write()

    def results(self, results: Sequence[torch.Tensor]) -> Any:
        if self.single:
            leaf = self.trace.out_leaves[0]
            return results[leaf.index] if isinstance(leaf, OutputRef) else leaf
        return unflatten(self.trace, results)


def unflatten(trace: Trace, results: Sequence[torch.Tensor]) -> Any:
    """What `build()` returned, with tensors for the outputs."""
    assert trace.out_spec is not None
    leaves = [results[x.index] if isinstance(x, OutputRef) else x for x in trace.out_leaves]
    return tree_unflatten(leaves, trace.out_spec)


class StepSkipped(Exception):
    """A first step ran, but an optimizer's part was skipped for gradients that are inf or nan."""

    def __init__(self, first: FirstStep) -> None:
        super().__init__("skipped")
        self.first = first


@collector_paused()
def compile_plan(
    name: str,
    build: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    modules: Mapping[str, torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    options: Any,
    scaler: Any = None,
    kept: Callable[[torch.Tensor], bool] = lambda parameter: False,
    micro_batches: int = 1,
    sparse: Collection[int] = (),
    dynamic: Dynamic | None = None,
    reached: Reached | None = None,
    setup: Setup | None = None,
) -> Plan:
    """Trace and compile one signature. setup: what undoes the changes that it makes to optimizers.
    kept: whether a parameter's gradient is kept after a step.
    micro_batches: how many parts of the arguments make one step, where there is an optimizer.
    sparse: the optimizers, by number, that update only looked-up rows of embeddings.
    dynamic: dimensions of the arguments that vary from call to call.
    reached: what `build()` reaches besides `modules`."""
    check_call(build, args, kwargs)
    slots = collect_modules(modules).slots
    check_tensors(build, args, kwargs, [(s.name, s.tensor) for s in slots])
    first: FirstStep | None = None
    stepped = 0.0
    parts = [(args, kwargs)]
    if dynamic is not None and optimizers and micro_batches > 1:
        raise GraphTraceError(
            f"{name}: an input is marked with dynamic_dim(), and set_gradient_accumulation_steps() splits "
            "inputs into parts of equal size; use one of the two."
        )
    if dynamic is not None and any(
        i in sparse or isinstance(o, torch.optim.SparseAdam) for i, o in enumerate(optimizers)
    ):
        raise GraphTraceError(
            f"{name}: an input is marked with dynamic_dim(), and an optimizer is sparse: it works on as many "
            "rows of an embedding as a call looks up, which must be a fixed number. Use a dense optimizer, "
            "or leave the dimension static."
        )
    if optimizers and micro_batches > 1:
        parts = split_arguments(build, args, kwargs, micro_batches)

    def first_step(trace: Trace, parameters: list[torch.Tensor]) -> None:
        nonlocal stepped, first
        if setup is not None:
            setup.draws()
        current().phase("first step")
        before = time.perf_counter()
        if dynamic is not None:
            leaves = torch.utils._pytree.tree_flatten((args, kwargs))[0]
            trace = with_size(trace, size_of(dynamic, leaves))
        first = _first_step(trace, parameters, parts, optimizers, scaler)
        stepped = time.perf_counter() - before
        current().phase("trace")

    start = time.perf_counter()
    with held():  # what is exchanged while `build()` runs is put back; the recorder delivers
        trace = trace_graph(
            name,
            build,
            *parts[0],
            modules,
            optimizers,
            first_step,
            scaler,
            kept,
            len(parts),
            sparse,
            dynamic,
            reached,
        )
    traced = time.perf_counter() - start - stepped
    compiled = compile_step(trace, options)
    timings = {"trace": traced}
    if first is not None:
        grads = first.grads
        first.writes += [(b, grads[id(p)]) for p, b in trace.kept if id(p) in grads]
        timings["first step"] = stepped
    compiled = replace(compiled, timings={**timings, **compiled.timings})
    plan = Plan(trace, compiled, first)
    plan.dynamic = dynamic
    return plan


def _first_step(
    trace: Trace,
    parameters: list[torch.Tensor],
    parts: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    optimizers: Sequence[torch.optim.Optimizer],
    scaler: Any,
) -> FirstStep:
    """Forward and backward op by op, for each micro-batch in `parts`, then the optimizers' own
    first step, on copies of what they update.

    Raises:
        StepSkipped: an optimizer has made no step, so no state, since a gradient is inf or nan.
    """
    returned = sum(isinstance(leaf, OutputRef) for leaf in trace.out_leaves)
    joined: list[Joined] = []
    totals: list[torch.Tensor] = []
    now: dict[int, torch.Tensor] = {}  # inputs that the forward has updated, by number
    writes: list[tuple[torch.Tensor, torch.Tensor]] = []
    for k, part in enumerate(parts):
        leaves = torch.utils._pytree.tree_flatten(part)[0]
        inputs = [
            leaves[trace.input_leaves[i.value]] if i.tensor is None else now.get(n, i.tensor)
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
        joined = joined or [Joined(r, len(parts)) for r in results[:returned]]
        for whole, result in zip(joined, results):
            whole.add(result, k)
    outputs = unflatten(trace, [whole.result() for whole in joined])
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
    first = FirstStep(outputs, [*writes, *updates, *stepped], left)
    if skipped:
        raise StepSkipped(first)
    return first
