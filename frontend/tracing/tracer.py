"""`trace_graph`: from `build()` and example arguments to a `Trace`."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import GeneratorType
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from gflow.errors import GraphError, GraphTraceError

from .context.collector import collector_paused
from .context.location import Locator, here, user_line
from .context.ranks import world_group, world_size
from .context.threads import here_only
from .context.user_warnings import warnings_at_user_lines
from .context.watched_calls import asked_by_build, globals_of, watched_calls
from .data.global_tensors import common_mesh
from .data.guards import Leaf
from .data.places import NumberSource, OptimizerTrace, Place
from .data.pytrees import learn, opened
from .data.trace import Trace
from .data.updates import check_update, kind
from .data.values import OutputRef, ResultView, TraceInput, TraceOutput, TraceValue, View, values_in
from .dispatch.dynamo_stub import light_dynamo
from .dispatch.library import traceable_library
from .dispatch.numbers import number_of, wrap
from .dispatch.pruning import prune
from .dispatch.recorder import Recorder, describe
from .dispatch.rewrites import Rewrites, StandIn, functional, unwrap
from .optimizers.gradients import divide_micro_batches, gradient_buffer
from .optimizers.optimizer import NewState, trace_step
from .optimizers.pipeline_stages import divide_stages
from .optimizers.scaler import LossScale, prepare
from .optimizers.sparse import SparseStep, run_step
from .optimizers.state import prepare_state, state_to_devices
from .program.aliases import check_ends, result_views, told
from .program.data_parallel import DataParallel, is_data_parallel
from .program.module_config import is_checkpointed
from .program.module_stages import stages_of
from .program.modules import Slot, is_traced, kept_real
from .program.parallel_modules import reshardings
from .program.sharded_modules import check as check_sharded
from .program.sharded_modules import gathered_once, sharded_modules, unhooked
from .program.shared import Shared, base_of, conflicts, storage_of, view_in
from .request import TraceRequest


@dataclass(frozen=True)
class FirstStepNeeded:
    """An optimizer can make its state only from real gradients, so a trace waits for a step made op by op.

    trace: up to the optimizers; its last outputs are the gradients of `parameters`.
    """

    trace: Trace
    parameters: list[torch.Tensor]


def trace_graph(request: TraceRequest) -> Trace:
    """Trace one call. Nothing is computed and no argument, parameter or buffer is changed; optimizers get their
    initial state.

    Raises:
        GraphTraceError: `build()` or an optimizer does what a static graph cannot hold.
        NewState: an optimizer can make its state only from real gradients (`begin_trace` is for these).
    """
    found = begin_trace(request).finish()
    if isinstance(found, FirstStepNeeded):
        raise NewState("optimizer state")
    return found


def begin_trace(request: TraceRequest) -> Tracing:
    """Trace `build()`, forward and backward; `finish()` goes on with the optimizers."""
    with _machinery():
        storages: Collection[int] = ()
        while True:
            tracing = Tracing(request, storages)
            try:
                tracing.run_build()
                return tracing
            except Shared as found:
                storages = found.storages


@contextlib.contextmanager
def _machinery() -> Iterator[None]:
    with collector_paused(), light_dynamo():
        yield


@contextlib.contextmanager
def _located(locator: Locator) -> Iterator[None]:
    """Errors of PyTorch and of the user's code keep their type and text; a note at the end of
    the traceback names the user's line and the module."""
    try:
        yield
    except GraphError:
        raise
    except Exception as error:
        where = locator.module_of(error)
        dynamo = sys.modules.get("torch._dynamo.exc")
        if dynamo is not None and isinstance(error, dynamo.TorchDynamoException):
            # It marks functions that it failed on, and would skip them in eager calls of the same control flow.
            sys.modules["torch._dynamo"].reset()
            raise GraphTraceError(
                f"{user_line(error)}build() calls what PyTorch compiles by itself (control flow such as cond, scan "
                f"and while_loop, or a compiled function), which a graph cannot record{where}. Use torch.where for a "
                "choice and a Python loop of fixed length, or call the function through gflow.compile, which "
                "compiles what lies around it."
            ) from error
        note = f"{user_line(error)}raised in build() while the graph was traced{where}"
        if hasattr(error, "add_note"):
            error.add_note(note)
        elif error.args and isinstance(error.args[0], str):  # Python 3.10
            error.args = (f"{error.args[0]}\n{note}", *error.args[1:])
        raise


class Tracing:
    """One trace under way.

    Args:
        storages: whose tensors are views of each other.
    """

    def __init__(self, request: TraceRequest, storages: Collection[int] = ()) -> None:
        self.request, self.storages = request, storages
        self.name, self.optimizers = request.name, request.optimizers
        self.micro_batches, self.build = request.micro_batches, request.call.build
        self.table = request.table.with_modules(request.reached.modules)
        self.locator = Locator(self.table.names, OUTSIDE)
        if (code := getattr(self.build, "__code__", None)) is not None:
            self.locator.home = (code.co_filename, code.co_firstlineno)
        self.recorder = Recorder(FakeTensorMode(allow_non_fake_inputs=True), self.locator)
        self.rewrites = Rewrites(self.recorder, bool(self.optimizers))
        self.rewrites.view_of = self._view if storages else None
        self.rewrites.active = self._recording
        self.views: dict[int, int] = {}  # inputs that are views, and those that they are views of
        self.rebound: dict[int, torch.Tensor] = {}
        self.leaves: list[StandIn] = []
        self._buffers: dict[int, tuple[torch.Tensor, int]] = {}
        self._kept: dict[int, torch.Tensor] = {}  # what these are of
        self.input_leaves: dict[TraceValue, int] = {}
        self.parameter_names = {id(s.tensor): s.name for s in self.table.slots}
        self.trace = Trace(self.name)
        self.outputs: list[TraceOutput] = []
        self.parallel = DataParallel()
        self.sharded = sharded_modules(self.table.modules)
        self.waited = False  # for a first step, which has been made
        self._first: Trace | None = None
        self._steps: list[OptimizerTrace] = []
        if (dynamic := request.call.dynamic) is not None:
            # only here: it loads all of PyTorch's symbolic shapes
            from .dispatch.size_env import SizeEnv

            where = partial(_describe_here, self.locator)
            self.recorder.add_size(SizeEnv(dynamic.sizes, where))

    def run_build(self) -> None:
        """Record `build()`: forward and backward.

        Raises:
            Shared: to be traced anew, with the memory that it names.
            GraphTraceError: it does what a static graph cannot hold.
        """
        training = bool(self.optimizers)
        for found in self.sharded:
            check_sharded(found, self.table.names[id(found.module)], here(), training)
        self.recorder.divided_over = self.parallel.divide(self.sharded, training)
        leaves = self._inputs()
        for slot in self.table.slots:
            if not _is_unusable(slot.tensor):
                self._stand_in(slot)
        owner = getattr(self.build, "__self__", None)
        target = getattr(owner, "_target", None)  # the function that a graph of gflow's own runs
        with (
            kept_real(self.table, self.request.reached, owner, self._rebound),
            torch.set_grad_enabled(training or torch.is_grad_enabled()),
        ):
            self._optimizer_parameters()
            self._loss_scale()
            with (
                self._active(),
                self.locator.module_calls(is_checkpointed, self._instead),
                reshardings(
                    self.table,
                    partial(_describe_here, self.locator),
                    bool(self.recorder.meshes),
                ),
                unhooked(self.sharded),
                watched_calls(
                    asked_by_build(self.name), globals_of([owner, target, *self.table.modules])
                ),
                traceable_library(self.rewrites.lift, self.recorder.seed),
            ):
                args, kwargs = tree_unflatten(leaves, self.request.call.structure)
                with warnings_at_user_lines(), _located(self.locator):
                    result = self.build(*args, **kwargs)
                self.recorder.check_seed(self.locator.here())
        whole = tree_unflatten(leaves, self.request.call.structure)
        self.trace.rearranged = _rearranged((args, kwargs), whole)
        self._check_memory()
        self._check_parted()
        self._check_ends(self.rebound, self.name)
        self._check_begins()
        trace = self.trace
        trace.out_leaves, trace.out_spec = flatten_result(result)
        self.outputs = self._results(trace)

    def finish(self) -> Trace | FirstStepNeeded:
        """Record the optimizers' updates.

        Returns:
            The whole trace; or what a first step is made of, after which this is to be called again.
        """
        with _machinery():
            if not self.waited:
                if self.micro_batches == 1:
                    self._reduce_gradients()
                self.partial = self._partial_reduced()
                if self.optimizers and not any(map(self._with_grad, self.optimizers)):
                    self._warn_of_no_gradients()
                self.trace.histories = self._histories()
                self.trace.ungraded = [*self.rewrites.ungraded.values()]
                if self.optimizers and self.trace.histories:
                    self._warn_of_histories(self.trace.histories)
                if not all([prepare_state(o, self._with_grad(o)) for o in self.optimizers]):  # noqa: C419
                    return self._wait()
            for optimizer in self.optimizers:
                state_to_devices(optimizer)
            if self.micro_batches > 1 and self._first is None:
                self.recorder.forget_numbers()  # the second program computes its own
                self._first = self._one_micro_batch()
                self._reduce_gradients()
            try:
                self._trace_steps()
            except NewState:
                return self._wait()
            return self._whole()

    def _wait(self) -> FirstStepNeeded:
        for index, optimizer in enumerate(self.optimizers):
            if self.request.is_sparse(index):
                raise GraphTraceError(
                    f"{type(optimizer).__name__} is a sparse optimizer, and a first step that makes state "
                    "from gradients is needed, which is dense. Use optimizers whose state starts with "
                    "zeros in graphs with sparse ones."
                )
        if self.recorder.meshes or self.sharded:
            raise GraphTraceError(
                f"{self.name}: an optimizer makes its state from gradients at its first step, which a graph of global "
                "tensors (DTensor) cannot do op by op. Make a step without the graph first, or use an optimizer whose "
                "state starts with zeros (SGD, AdamW, ...)."
            )
        self.waited = True
        return FirstStepNeeded(
            self.partial, [p for o in self.optimizers for p in self._with_grad(o)]
        )

    def _whole(self) -> Trace:
        trace, first = self.trace, self._first
        kept = self._keep_gradients(trace)
        updates = self._updates() + kept
        self._check_state(updates)
        self._finish(trace, self.outputs + updates)
        trace.guards, trace.numbers = self.recorder.guards, self.recorder.numbers
        trace.steps = self._steps
        trace.views = [View.of(*pair) for pair in self.rewrites.bases.values()]
        trace.groups, trace.reduced = self.parallel.axes, self.parallel.reduced
        trace.buckets = self.parallel.buckets
        trace.copied = {
            i.value: self.parallel.copied[id(i.tensor)]
            for i in self.recorder.inputs
            if i.tensor is not None and id(i.tensor) in self.parallel.copied
        } | self.recorder.divided
        trace.divided = {*self.recorder.divided}
        trace.kept_whole = gathered_once(self.sharded)
        if first is not None:
            self._divide(trace, first, updates)
            for part in trace.parts or ():
                part.groups, part.reduced = trace.groups, trace.reduced
                part.buckets, part.copied = trace.buckets, trace.copied
                part.divided, part.kept_whole = trace.divided, trace.kept_whole
        self.parallel.use()
        prune(trace)
        self._divide_stages(trace)
        return trace

    def _divide_stages(self, trace: Trace) -> None:
        """Of modules in pipeline stages: what each rank does.

        Raises:
            GraphTraceError: the step is of a kind that stages cannot share.
        """
        stages = stages_of(self.table, world_size())
        if stages is None:
            return
        problem = (
            ("dynamic_dim()" if trace.size is not None else "")
            or ("fully_shard() and a data-parallel module" if trace.copied else "")
            or ("global tensors (DTensor)" if trace.mesh is not None else "")
            or ("keep_gradients()" if trace.kept else "")
            or ("parameters or buffers that share memory" if trace.views else "")
        )
        if problem:
            raise GraphTraceError(
                f"{self.name}: modules are in pipeline stages (set_stage), which do not go with {problem}. Leave one "
                "of the two out."
            )
        if trace.parts is None:
            raise GraphTraceError(
                f"{self.name}: modules are in pipeline stages (set_stage), and the graph has no micro-batches that the "
                "stages could work on at the same time: train it, with an optimizer and "
                "config.set_gradient_accumulation_steps(n) for n of 2 or more."
            )
        trace.schedule = self.request.schedule
        trace.stages = divide_stages(trace, stages.of, stages.ranks, world_group())

    @contextlib.contextmanager
    def _active(self) -> Iterator[None]:
        log = logging.getLogger("torch._subclasses.fake_tensor")
        silence = here_only(lambda record: True, lambda record: False)
        log.addFilter(silence)
        try:
            # with sizes that vary, ops that PyTorch takes apart in C++ for fixed sizes only are taken
            # apart by its Python rules
            taken_apart = (
                enable_python_dispatcher()
                if self.request.call.dynamic
                else contextlib.nullcontext()
            )
            with self.recorder, self.rewrites, taken_apart:
                torch._enable_functionalization(reapply_views=True)
                self.recorder.active = True
                try:
                    yield
                finally:
                    self.recorder.active = False
                    torch._disable_functionalization()
        finally:
            log.removeFilter(silence)

    def _recording(self) -> contextlib.AbstractContextManager[None]:
        """As `_active`, also inside of it."""
        return contextlib.nullcontext() if self.recorder.active else self._active()

    # inputs

    def _inputs(self) -> list[Any]:
        call = self.request.call
        traced: list[Any] = []
        seen: dict[int, StandIn] = {}
        for position, (leaf, name) in enumerate(zip(call.leaves, call.names, strict=True)):
            if not isinstance(leaf, torch.Tensor):
                traced.append(self._number(position, name) if position in call.numbers else leaf)
                continue
            known = seen.get(id(leaf))
            if known is None:
                index = len(self.recorder.inputs)
                dims = call.dynamic.dims.get(position, ()) if call.dynamic else ()
                fake = self.recorder.add_input(leaf, "input", name, False, dims)
                wrapper = functional(fake, leaf)
                known = seen[id(leaf)] = self.rewrites.stand_in(leaf, wrapper, index)
                self.leaves.append(known)
                self.rewrites.given.append(known)
                self.input_leaves[self.recorder.inputs[index].value] = position
                if isinstance(leaf, torch.nn.Parameter):
                    self.rewrites.stand_ins[id(leaf)] = known
            traced.append(known.wrapper)
        return traced

    def _number(self, position: int, name: str) -> Any:
        """A float of the call as a traced number."""
        values, recorder = self.request.call.values, self.recorder
        tensor = torch.scalar_tensor(values[position], dtype=torch.float64)
        leaf = Leaf(len(recorder.numbers))
        node = recorder.add_number(values[position], tensor, name, leaf)
        place = Place(None, "call", None, values)
        source = NumberSource(place, position, (), node.value, tensor, values[position], name)
        recorder.numbers.append(source)
        return wrap(node)

    def _stand_in(self, slot: Slot) -> torch.Tensor:
        known = self.rewrites.stand_ins.get(id(slot.tensor))
        if known is None:
            index = len(self.recorder.inputs)
            fake = self.recorder.add_input(slot.tensor, slot.role, slot.name)
            wrapper = self._view(slot.tensor, index)
            if wrapper is None:
                wrapper = functional(fake, slot.tensor)
            wrapper = self.rewrites.register(slot.tensor, wrapper, index).wrapper
            if self.optimizers:
                _take_hooks(slot, wrapper)
            return wrapper
        entry = self.recorder.inputs[known.index]
        if entry.tensor is None:
            entry.role, entry.name, entry.tensor = slot.role, slot.name, slot.tensor
        return known.wrapper

    def _view(self, tensor: torch.Tensor, index: int) -> torch.Tensor | None:
        """Input `index` as a view of the tensor that it shares memory with, if it does."""
        with torch._C.DisableTorchFunction():
            if not self.storages or storage_of(tensor) not in self.storages:
                return None
            slots = {id(s.tensor): s for s in self.table.slots}
            base = base_of(tensor, [s.tensor for s in slots.values()])
            first = next((s.tensor for s in slots.values() if _same_place(s.tensor, base)), base)
        if first is tensor:
            return None
        wrapper = self._stand_in(slots[id(first)])
        self.rewrites.bases[id(tensor)] = (tensor, first)
        self.views[index] = self.rewrites.stand_ins[id(first)].index
        with self._recording():
            return view_in(wrapper, first, tensor)

    def _check_global(self, trace: Trace) -> None:
        """
        Raises:
            GraphTraceError: a trace of global tensors has what its ranks cannot share.
        """
        if trace.mesh is None:
            return
        what = None
        if self.micro_batches > 1:
            what = "set_gradient_accumulation_steps() would split inputs of which ranks hold parts"
        elif trace.size is not None or self.recorder.sizes is not None:
            what = "a dimension marked with dynamic_dim() cannot be shared evenly for every size"
        elif any(map(self.request.is_sparse, range(len(self.optimizers)))):
            what = "a sparse optimizer works on rows that ranks hold parts of"
        elif trace.groups or trace.reduced:
            what = "a data-parallel module works on each rank's own batch"
        elif self.storages:
            what = "parameters or buffers share memory in part, which ranks hold parts of"
        if what is not None:
            raise GraphTraceError(
                f"{self.name}: the graph has global tensors (DTensor), and {what}. Leave one of the two out."
            )

    def _check_begins(self) -> None:
        """
        Raises:
            GraphTraceError: the program counts from where an input's memory begins, and runs for parts of it.
        """
        found = next((i for i in self.recorder.inputs if i.from_start), None)
        if found is not None and self.micro_batches > 1:
            raise GraphTraceError(
                f"build() calls as_strided with a storage_offset on input {found.name!r}, of which each micro-batch "
                "is a part that begins elsewhere. Leave storage_offset out, or call .clone() first."
            )

    def _check_parted(self) -> None:
        """
        Raises:
            GraphTraceError: `build()` has assigned a tensor in the place of one that shares memory with another: from
                here on they are two in eager.
        """
        inputs, shared = self.recorder.inputs, {*self.views, *self.views.values()}
        for index in shared.intersection(self.rebound):
            entry = inputs[index]
            # an attribute that was never read (as `weight` of spectral_norm) tells no program anything
            if entry.role == "constant" and id(entry.tensor) not in self.rewrites.met:
                continue
            pairs = [p for p in self.views.items() if index in p]
            (other,) = {*pairs[0]} - {index}
            raise GraphTraceError(
                f"{self.name}: build() gives {told(entry)} a new tensor, which a program writes into the old one, and "
                f"that shares memory with {told(inputs[other])}. Make them two tensors (.clone()) before the call."
            )

    def _check_ends(self, assigned: Collection[int], where: str) -> None:
        if assigned:
            ends = {
                s.index: self.rebound.get(s.index, s.wrapper)
                for s in self.rewrites.stand_ins.values()
                if s.index not in self.views
            }
            check_ends(ends, assigned, self.recorder.inputs, where)

    def _check_state(self, updates: Sequence[TraceOutput]) -> None:
        """
        Raises:
            GraphTraceError: an optimizer's state lies in the memory of what is updated, or is updated and lies in other
                memory.
        """
        inputs = self.recorder.inputs
        state = {
            storage_of(i.tensor)
            for i in inputs
            if i.role == "optimizer_state" and i.tensor is not None
        }
        entries = {
            n: i
            for n, i in enumerate(inputs)
            if i.tensor is not None and n not in self.views and storage_of(i.tensor) in state
        }
        written = {o.alias for o in updates if o.alias is not None}
        used = {v for op in self.recorder.ops for v in values_in((op.args, op.kwargs))}
        for a, b in conflicts(entries, written, used):
            raise GraphTraceError(
                f"{self.name}: {told(entries[a])} is updated, and it shares memory with {told(entries[b])}. Make one "
                "of them a copy (.clone())."
            )

    def _check_memory(self) -> None:
        """No tensor that is updated lies in the memory of another.

        Raises:
            Shared: one does; it is to be traced as a view.
            GraphTraceError: one does, and it cannot be.
        """
        stand_ins = self.rewrites.stand_ins
        written = {
            s.index
            for s in stand_ins.values()
            if s.index in self.rebound
            or self.recorder.value_of(self._current(s.wrapper))
            is not (s.begin or self.recorder.inputs[s.index].value)
        }
        written |= {stand_ins[id(p)].index for p in self._trained()}
        used = {v for op in self.recorder.ops for v in values_in((op.args, op.kwargs))}
        entries = {i: e for i, e in enumerate(self.recorder.inputs) if i not in self.views}
        written = {self.views.get(i, i) for i in written}
        found = conflicts(entries, written, used)
        tensors = [(entries[a].tensor, entries[b].tensor) for a, b in found]
        storages = {storage_of(a) for a, _ in tensors if a is not None}
        if storages - {*self.storages}:
            raise Shared({*self.storages, *storages})
        for a, b in found:
            raise GraphTraceError(
                f"{self.name}: {entries[a].role} {entries[a].name!r} is updated, and it shares a part of "
                f"its memory with {entries[b].role} {entries[b].name!r}. Make one of them a copy "
                "(.clone()), or a view of all of the other."
            )

    def _optimizer_parameters(self) -> None:
        for i, optimizer in enumerate(self.optimizers):
            for g, group in enumerate(optimizer.param_groups):
                for k, tensor in enumerate(group["params"]):
                    if id(tensor) not in self.rewrites.stand_ins:
                        name = f"optimizer.{i}.group{g}.param{k}"
                        slot = Slot({}, "", tensor, name, "parameter")
                        self.parameter_names[id(tensor)] = name
                        self._stand_in(slot)

    def _rebound(self, name: str, old: torch.Tensor, new: torch.Tensor) -> None:
        """A buffer or tensor attribute `old` was rebound to the traced `new`."""
        if not torch._is_functional_tensor(new):
            return
        if new.shape != old.shape or new.dtype != old.dtype:
            text = (
                f"gives {name} a tensor of another shape or dtype, {kind(new)} after {kind(old)}, and a program "
                "updates tensors that stay as they are. Make it as large as it gets at first, and write into a "
                "part of it; or pass it as an argument and return the new one"
            )
            self.request.reached.refused.append((name, text))
            return
        with self._active():
            if id(old) not in self.rewrites.met:
                self.rewrites.wrapper_of(old)
                self.rewrites.met.discard(id(old))
        self.rebound[self.rewrites.stand_ins[id(old)].index] = new

    # optimizers

    def _warn_of_no_gradients(self) -> None:
        """A training graph that trains nothing."""
        file, line = self.locator.home
        own = [self._called(p) for o in self.optimizers for p in _parameters(o)]
        others = [
            self.parameter_names.get(id(s.real), "a tensor of no module")
            for s in self.rewrites.stand_ins.values()
            if s.wrapper.requires_grad and s.wrapper.is_leaf and s.wrapper.grad is not None
        ]
        text = (
            f"{self.name} has an optimizer, but none of its parameters has a gradient after build(): a call "
            "updates nothing. "
        )
        if others:
            text += (
                f"backward() gave gradients to {_some(others)}; the optimizer has {_some(own)}, which the loss "
                "does not depend on. Make the optimizer from the parameters of the modules that build() calls."
            )
        else:
            text += "Call backward() on the loss in build()."
        warnings.warn_explicit(text, UserWarning, file, line)

    def _called(self, parameter: torch.Tensor) -> str:
        """A parameter of an optimizer, as a message names it."""
        name = self.parameter_names[id(parameter)]
        foreign = name.startswith("optimizer.")
        return (
            f"{name} of shape {list(parameter.shape)} (of no module of the graph)"
            if foreign
            else name
        )

    def _histories(self) -> list[TraceInput]:
        """Arguments and kept tensors that `build()` has given the history of a gradient."""
        return [
            self.recorder.inputs[s.index]
            for s in (*self.leaves, *self.rewrites.stand_ins.values())
            if s.wrapper.requires_grad and not s.real.requires_grad
        ]

    def _warn_of_histories(self, inputs: Sequence[TraceInput]) -> None:
        """Kept tensors that eager's next step would differentiate through the last one."""
        kept = [f"{i.role} {i.name!r}" for i in inputs if i.tensor is not None]
        if not kept:
            return
        file, line = self.locator.home
        text = (
            f"{self.name} updates {', '.join(kept[:4])} with values that have a gradient. In a graph their history "
            "ends with the call; in eager, the next backward() would go on through it, or raise. Write "
            ".detach() or torch.no_grad() around the update."
        )
        warnings.warn_explicit(text, UserWarning, file, line)

    def _with_grad(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """The parameters that the optimizer will update."""
        return [
            p
            for group in optimizer.param_groups
            for p in group["params"]
            if self.rewrites.wrapper_of(p).grad is not None
        ]

    def _loss_scale(self) -> None:
        self.scaling: LossScale | None = None
        parameters = [p for o in self.optimizers for g in o.param_groups for p in g["params"]]
        if self.optimizers and prepare(self.request.scaler, parameters):
            self.scaling = LossScale(self.request.scaler, self)
            self.rewrites.seed = self.scaling.seed
        if self.optimizers:
            self.rewrites.read_gradient = self._read_gradient

    def _instead(self, module: torch.nn.Module) -> torch.nn.Module | None:
        """What is called in the place of a module that works with other ranks by hooks."""
        if not is_data_parallel(module):
            return None
        return self.parallel.enter(module, here(), bool(self.optimizers))

    def value_of(self, wrapper: torch.Tensor) -> TraceValue:
        """The value of a traced tensor."""
        return self.recorder.value_of(unwrap(wrapper))

    def detached(self, wrapper: torch.Tensor) -> torch.Tensor:
        """A traced tensor without a history."""
        return functional(unwrap(wrapper), wrapper)

    def _reduce_gradients(self, in_build: bool = False) -> None:
        """Average what data-parallel modules leave in gradients."""
        if self.parallel.waiting:
            every = [p for o in self.optimizers for p in _parameters(o)]
            unique = list({id(p): p for p in every}.values())
            self.parallel.reduce(self, unique, in_build=in_build)

    def _read_gradient(self, wrapper: torch.Tensor) -> None:
        """`build()` reads a gradient: from here on, gradients are averaged over ranks, and not scaled."""
        if self.micro_batches == 1:
            self._reduce_gradients(in_build=True)
            if self.scaling is None:
                return
        if self.scaling is not None and self.scaling.found:
            return
        parameters = [p for o in self.optimizers for p in _parameters(o)]
        if not any(self.rewrites.wrapper_of(p) is wrapper for p in parameters):
            return
        if self.micro_batches > 1:
            raise GraphTraceError(
                f"{describe(self.locator.here())}: build() reads a gradient (.grad, or "
                "clip_grad_norm_), but with set_gradient_accumulation_steps() it runs for one "
                "micro-batch and gradients are complete after the last. To clip, give the "
                "optimizer's parameter groups the key clip_grad_max_norm; to read gradients after "
                "a step, use config.keep_gradients() and graph.grad()."
            )
        assert self.scaling is not None
        for i, optimizer in enumerate(self.optimizers):
            self.scaling.unscale(i, self._with_grad(optimizer), in_build=True)

    def _trace_steps(self) -> None:
        """The steps that are not traced yet.

        Raises:
            NewState: one makes state that only a step from real gradients can make.
        """
        scaling = self.scaling
        for i, optimizer in [*enumerate(self.optimizers)][len(self._steps) :]:
            if scaling is not None and i not in scaling.found:
                scaling.unscale(i, self._with_grad(optimizer))
            before = None if scaling is None else scaling.before()
            self._steps.append(self._sparse_or_dense(i, optimizer))
            if scaling is not None and before is not None:
                scaling.skip(i, before, self._steps[-1])
        if scaling is not None:
            scaling.update()
            self._steps.append(scaling.result)

    def _sparse_or_dense(self, index: int, optimizer: torch.optim.Optimizer) -> OptimizerTrace:
        name = f"optimizer.{index}"
        if not self.request.is_sparse(index):
            return self._optimizer(index, optimizer)
        if self.micro_batches > 1:
            raise GraphTraceError(
                f"{name} ({type(optimizer).__name__}): a sparse optimizer updates the rows that "
                "build() looks up, of which each micro-batch has its own; leave "
                "set_gradient_accumulation_steps() out, or use an optimizer that is not sparse."
            )
        step = SparseStep(self, name, optimizer, self._with_grad(optimizer))
        found = self._optimizer(index, optimizer)
        step.keep_rows()
        return found

    def _partial_reduced(self) -> Trace:
        """As `_partial`; with micro-batches, each of its gradients is averaged over ranks, there alone."""
        if self.micro_batches == 1 or not self.parallel.waiting:
            return self._partial()
        wrappers = [
            self.rewrites.wrapper_of(p) for o in self.optimizers for p in self._with_grad(o)
        ]
        before, count = [w.grad for w in wrappers], len(self.recorder.ops)
        self._reduce_gradients()
        found = self._partial()
        del self.recorder.ops[count:]
        for wrapper, gradient in zip(wrappers, before):
            wrapper.grad = gradient
        self.parallel.forget()
        return found

    def _partial(self) -> Trace:
        """The trace up to the optimizers; its last outputs are the gradients."""
        grads: list[TraceOutput] = []
        for optimizer in self.optimizers:
            for p in self._with_grad(optimizer):
                grad: Any = self.rewrites.wrapper_of(p).grad
                value = self.recorder.value_of(self._current(grad))
                grads.append(TraceOutput(value, None, f"grad.{len(grads)}"))
        trace = self.trace
        partial = Trace(trace.name, out_spec=trace.out_spec, out_leaves=trace.out_leaves)
        partial.unscaled = list(self.scaling.found) if self.scaling else []
        partial.result_views = trace.result_views
        self._finish(partial, self.outputs + self._updates() + grads)
        return partial

    def _trained(self) -> list[torch.Tensor]:
        """The parameters that a step updates, each once."""
        found = {id(p): p for o in self.optimizers for p in self._with_grad(o)}
        return list(found.values())

    def _one_micro_batch(self) -> Trace:
        """What each micro-batch runs: it adds its gradients to the buffers, which the optimizers
        find as gradients."""
        outputs = self.outputs + self._updates()
        found = []
        self.locator.optimizer = True
        for parameter in self._trained():
            fake, index = self._buffer(parameter)
            total, wrapper = functional(fake, fake), self.rewrites.wrapper_of(parameter)
            grad: Any = wrapper.grad
            with self._active(), torch.no_grad():
                new = total + grad * (1 / self.micro_batches)
            value = self.recorder.value_of(self._current(new))
            outputs.append(TraceOutput(value, index, self.recorder.inputs[index].name))
            found.append((wrapper, functional(fake, fake)))
        self.locator.optimizer = False
        first = Trace(self.name)
        self._finish(first, outputs)
        for wrapper, gradient in found:
            wrapper.grad = gradient
        return first

    def _buffer(self, parameter: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The argument for a parameter's gradient buffer, and its number."""
        known = self._buffers.get(id(parameter))
        if known is None:
            name = f"grad.{self.parameter_names[id(parameter)]}"
            index = len(self.recorder.inputs)
            buffer = gradient_buffer(parameter, whole=bool(self.sharded))
            fake = self.recorder.add_input(buffer, "gradient", name)
            known = self._buffers[id(parameter)] = (fake, index)
            self._kept[id(parameter)] = buffer
        return known

    def _keep_gradients(self, trace: Trace) -> list[TraceOutput]:
        """The gradients that can be read after the step, as the optimizers left them."""
        outputs = []
        for parameter in filter(self.request.kept, self._trained()):
            grad: Any = self.rewrites.wrapper_of(parameter).grad
            value = self.recorder.value_of(self._current(grad))
            _, index = self._buffer(parameter)
            entry = self.recorder.inputs[index]
            trace.kept.append((parameter, self._kept[id(parameter)]))
            if value is not entry.value:
                outputs.append(TraceOutput(value, index, entry.name))
        return outputs

    def _divide(self, trace: Trace, first: Trace, updates: list[TraceOutput]) -> None:
        trace.micro_batches, trace.stacked = self.micro_batches, self.request.stacked
        trace.parts = divide_micro_batches(trace, first, updates)
        ops, outputs = ([x for part in trace.parts for x in getattr(part, a)] for a in _PARTS)
        trace.ops, trace.outputs = ops, [replace(o) for o in outputs]
        for part in trace.parts:
            prune(part, keep_inputs=part is first)
        if any(i.role == "input" for i in trace.parts[1].inputs):
            raise GraphTraceError(
                f"{trace.name}: with gradient accumulation, an update cannot read the graph's inputs."
            )

    def _optimizer(self, index: int, optimizer: torch.optim.Optimizer) -> OptimizerTrace:
        self.locator.optimizer = self.rewrites.in_optimizer = True
        prefix = f"optimizer.{index}"
        try:
            with self.locator.at_home(optimizer):
                found = trace_step(
                    self.recorder,
                    self.rewrites,
                    optimizer,
                    prefix,
                    self.parameter_names,
                    self._active,
                    run_step,
                )
        except NewState as error:
            if not self.waited:
                raise
            raise GraphTraceError(
                f"{prefix} ({type(optimizer).__name__}): step() creates state ({error}) at every call; "
                "create it once, when it is missing."
            ) from error
        finally:
            self.locator.optimizer = self.rewrites.in_optimizer = False
        self.rebound.update(found.replaced)
        wrappers = {s.index: s.wrapper for s in self.rewrites.stand_ins.values()}
        assigned = [n for n, new in found.replaced.items() if new is not wrappers[n]]
        self._check_ends(assigned, f"{prefix} ({type(optimizer).__name__})")
        return found

    # outputs

    def _results(self, trace: Trace) -> list[TraceOutput]:
        outputs: list[TraceOutput] = []
        wrappers: list[torch.Tensor] = []
        for i, leaf in enumerate(trace.out_leaves):
            if isinstance(leaf, torch.Tensor):
                wrapper = leaf
                if not torch._is_functional_tensor(leaf):
                    wrapper = self.rewrites.wrapper_of(leaf)
                wrappers.append(wrapper)
                value = self.recorder.value_of(self._current(wrapper))
                trace.out_leaves[i] = OutputRef(len(outputs))
                outputs.append(TraceOutput(value, None, f"output.{len(outputs)}"))
            elif self.request.call.dynamic is not None and _has_size(leaf):
                raise GraphTraceError(
                    f"{self.name}: build() returns a number that follows from a size that is dynamic: {leaf}. Return "
                    "tensors, and read their shapes after the call."
                )
            elif number_of(leaf) is not None:
                raise GraphTraceError(
                    f"{self.name}: build() returns a Python number that follows from an argument or a size that "
                    "varies. Return a tensor, or compute the number outside."
                )
            elif _holds_tensors(leaf):
                code = getattr(self.build, "__code__", None)
                where = f"{code.co_filename}:{code.co_firstlineno}: " if code else ""
                raise GraphTraceError(
                    f"{where}build() returns an object of type {type(leaf).__qualname__} "
                    "with traced tensors inside. Return tensors, numbers, None, and lists, tuples, "
                    "named tuples, dataclasses, plain objects and dicts of them."
                )
        if self.micro_batches == 1 and not self.recorder.meshes:
            trace.result_views = self._result_views(wrappers)
        return outputs

    def _result_views(self, wrappers: Sequence[torch.Tensor]) -> list[ResultView]:
        stand_ins = (*self.leaves, *self.rewrites.stand_ins.values())
        known = {
            s.wrapper.untyped_storage()._cdata: (s.wrapper, self.recorder.inputs[s.index].value)
            for s in stand_ins
            if s.index not in self.views and s.index not in self.rebound and s.begin is None
        }
        return result_views(wrappers, known, self.rewrites.concrete)

    def _current(self, wrapper: torch.Tensor) -> torch.Tensor:
        """The fake tensor that `wrapper` holds now; pending writes through views become ops."""
        with self.recorder.fake_mode, self.recorder:
            return unwrap(wrapper)

    def _updates(self) -> list[TraceOutput]:
        updates = []
        stand_ins = {s.index: s for s in (*self.leaves, *self.rewrites.stand_ins.values())}
        for stand_in in stand_ins.values():
            if stand_in.index in self.views:
                continue
            wrapper = self.rebound.get(stand_in.index, stand_in.wrapper)
            self._check_strides(stand_in)
            entry = self.recorder.inputs[stand_in.index]
            value = self.recorder.value_of(self._current(wrapper))
            if value is not (stand_in.begin or entry.value):
                check_update(self.build, entry, value)
                updates.append(TraceOutput(value, stand_in.index, entry.name))
        by_value = {entry.value: i for i, entry in enumerate(self.recorder.inputs)}
        for number in self.recorder.numbers:
            if number.final is not None:
                updates.append(TraceOutput(number.final, by_value[number.value], number.name))
        return updates

    def _check_strides(self, stand_in: StandIn) -> None:
        """
        Raises:
            GraphTraceError: `build()` has changed the strides of a tensor from outside in place, or given an argument
                other memory.
        """
        entry = self.recorder.inputs[stand_in.index]
        if entry.role == "input" and torch._functionalize_was_storage_changed(stand_in.wrapper):  # type: ignore[attr-defined]
            raise GraphTraceError(
                f"{self.name}: build() gives {entry.role} {entry.name!r} other memory (.set_()), so that other views "
                "of its old memory keep their values; a program can only write into it. Write x.copy_(y), or return "
                "the new tensor."
            )
        known = self.rewrites.restrided.get(id(stand_in.wrapper))
        if known is None:
            return
        with torch._C.DisableTorchFunction():
            real, now = stand_in.real, stand_in.wrapper
            old, new = [
                [s for n, s in zip(t.shape, t.stride()) if self.rewrites.concrete(n) != 1]
                for t in (real, now)
            ]
        if tuple(map(self.rewrites.concrete, new)) == tuple(old) or now.shape != real.shape:
            return  # of another shape: `check_update` says so
        raise GraphTraceError(
            f"{known[1]}: build() changes the strides of {entry.role} {entry.name!r} in place; a program can only "
            "change the values of a tensor from outside, so other views of its memory would differ. Use a view: "
            "x = x.transpose(0, 1)."
        )

    def _finish(self, trace: Trace, outputs: list[TraceOutput]) -> None:
        trace.inputs = list(self.recorder.inputs)
        trace.ops = list(self.recorder.ops)
        trace.outputs = outputs
        trace.input_leaves = self.input_leaves
        trace.mesh = common_mesh(self.recorder.meshes, self.name)
        self._check_global(trace)
        if self.recorder.sizes is not None:
            trace.size = self.recorder.sizes.size


def _take_hooks(slot: Slot, wrapper: torch.Tensor) -> None:
    """Let a parameter's hooks see the gradient of its stand-in.

    Raises:
        GraphTraceError: it has hooks that are to run once the gradient is there.
    """
    with torch._C.DisableTorchFunction():
        if getattr(slot.tensor, "_post_accumulate_grad_hooks", None):
            raise GraphTraceError(
                f"{slot.role} {slot.name!r} has a hook from register_post_accumulate_grad_hook(), which "
                "a graph, where gradients go to the optimizer, has no place for. Remove it, or use "
                "register_hook()."
            )
        if wrapper.requires_grad:
            for hook in (slot.tensor._backward_hooks or {}).values():
                wrapper.register_hook(hook)


def _same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.stride(), a.dtype) == (
        b.data_ptr(),
        b.shape,
        b.stride(),
        b.dtype,
    )


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _some(names: Sequence[str], most: int = 3) -> str:
    """The first few of some names."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _describe_here(locator: Locator) -> str:
    return describe(locator.here())


def flatten_result(result: Any) -> tuple[list[Any], TreeSpec]:
    """What a function returns, flattened, so far that its tensors are leaves."""
    leaves = tree_leaves(result)
    while any([_holds_tensors(leaf) and learn(leaf) for leaf in leaves]):  # noqa: C419
        leaves = tree_leaves(result)
    return tree_flatten(opened(result, _holds_tensors))


def _has_size(leaf: Any) -> bool:
    """Whether an output is a size that varies, follows from one, or is a shape with one."""
    # start-up: it loads PyTorch's symbolic shapes
    from torch.fx.experimental.sym_node import SymNode

    numbers = leaf if isinstance(leaf, torch.Size) else (leaf,)
    kinds = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return any(isinstance(x, kinds) and isinstance(x.node, SymNode) for x in numbers)


def _holds_tensors(leaf: Any, depth: int = 3) -> bool:
    """Whether an output that is no tensor has traced tensors inside, where no call finds them."""
    if isinstance(leaf, (GeneratorType, set, frozenset)):
        return isinstance(leaf, GeneratorType) or any(map(is_traced, leaf))
    try:
        parts = tree_leaves(list(vars(leaf).values())) if depth else []
    except TypeError:
        return False
    return any(is_traced(part) or _holds_tensors(part, depth - 1) for part in parts)


def _is_unusable(tensor: torch.Tensor) -> bool:
    """Whether no program can take a tensor; one of a module that is only reached need not be used."""
    lazy = torch.nn.parameter.is_lazy(tensor)
    return lazy or tensor.layout != torch.strided or tensor.is_quantized


#: the functions that call `build()`, and optimizers
OUTSIDE = (Tracing.run_build.__code__, Tracing.finish.__code__)
_PARTS = ("ops", "outputs")


def _rearranged(
    left: tuple[tuple[Any, ...], dict[str, Any]], given: tuple[tuple[Any, ...], dict[str, Any]]
) -> list[str]:
    """Arguments whose lists or dicts hold other things after `build()` than before."""
    pairs = [(f"argument {n}", *pair) for n, pair in enumerate(zip(left[0], given[0]))]
    pairs += [(f"argument {k!r}", left[1][k], v) for k, v in given[1].items()]
    found = []
    for name, now, before in pairs:
        (parts, spec), (old, old_spec) = tree_flatten(now), tree_flatten(before)
        if spec != old_spec or any(a is not b for a, b in zip(parts, old)):
            found.append(name)
    return found
