"""`trace_graph`: from `build()` and example arguments to a `Trace`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator
from functools import partial

import torch
from torch.utils._pytree import tree_unflatten

from gflow.dialects.records import record
from gflow.errors import GraphError, GraphTraceError, mark_traced

from .context.collector import collector_paused
from .context.location import Locator, here, user_line
from .context.missing_names import advice
from .context.saved_hooks import may_change_values, without_outer_hooks
from .context.transforms import finds_anomalies, without_outer_cache
from .context.user_warnings import warnings_at_user_lines
from .context.watched_calls import asked_by_build, globals_of, watched_calls
from .data.trace import Trace
from .data.values import View
from .dispatch.failures.pruning import prune
from .dispatch.library import traceable_library
from .dispatch.shapes.dynamo_stub import light_dynamo
from .dispatch.shapes.in_place_rules import quick_rules
from .dispatch.symbols.real_types import real_types
from .optimizers.optimizer import NewState
from .optimizers.state import prepare_state, state_to_devices
from .program.data_parallel import is_data_parallel
from .program.graph_blocks import named_by
from .program.module_config import engine_of, is_checkpointed
from .program.module_stages import COPIES, has_stages, stages_of
from .program.modules import kept_real
from .program.parallel_modules import reshardings
from .program.sharded_modules import check as check_sharded
from .program.sharded_modules import gathered_once, unhooked
from .program.shared import Shared
from .request import TraceRequest
from .trace_checks import (
    changed_flags,
    check_arrays,
    check_assigned,
    check_begins,
    check_branches,
    check_hooks,
    check_memory,
    check_parted,
    check_state,
    histories,
    warn_of_histories,
    warn_of_no_gradients,
)
from .trace_results import flatten_result, outputs_of, rearranged, updates_of
from .traced_inputs import describe_here, is_unusable
from .traced_steps import TracedSteps


@record
class FirstStepNeeded:
    """The result of a trace whose optimizer can create its state only from real gradients. A step must first run op by
    op.

    Args:
        trace: the trace up to the optimizers; its last outputs are the gradients of `parameters`.
        parameters: the parameters that the optimizers will update.
    """

    trace: Trace
    parameters: list[torch.Tensor]


def trace_graph(request: TraceRequest) -> Trace:
    """Trace one call, forward, backward and update.

    Nothing is computed, and no argument, parameter or buffer changes; optimizers get their initial state.

    Raises:
        GraphTraceError: `build()` or an optimizer does something that a static graph cannot express.
        NewState: an optimizer can create its state only from real gradients (`begin_trace` supports this).
    """
    found = begin_trace(request).finish()
    if isinstance(found, FirstStepNeeded):
        raise NewState("optimizer state")
    return found


def begin_trace(request: TraceRequest) -> Tracing:
    """Trace `build()`, forward and backward. `finish()` of the result traces the optimizers.

    Raises:
        GraphTraceError: `build()` does something that a static graph cannot express.
    """
    with _machinery():
        storages: Collection[int] = ()
        while True:
            tracing = Tracing(request, storages, OUTSIDE)
            try:
                tracing.run_build()
                return tracing
            except Shared as found:
                storages = found.storages


@contextlib.contextmanager
def _machinery() -> Iterator[None]:
    with collector_paused(), light_dynamo(), quick_rules():
        yield


@contextlib.contextmanager
def _located(locator: Locator) -> Iterator[None]:
    """Add a note with the user's line and the module to errors of PyTorch and of the user's code. They keep their type
    and text.

    Raises:
        GraphTraceError: instead of an error of TorchDynamo.
    """
    try:
        yield
    except GraphError:
        raise
    except Exception as error:
        where = locator.module_of(error)
        dynamo = sys.modules.get("torch._dynamo.exc")
        if dynamo is not None and isinstance(error, dynamo.TorchDynamoException):
            # TorchDynamo marks functions on which it failed, and would skip them in later eager calls.
            sys.modules["torch._dynamo"].reset()
            raise GraphTraceError(
                f"{user_line(error)}build() calls a function that PyTorch compiles itself (control flow such "
                f"as cond, scan and while_loop, or a compiled function), which a graph cannot record{where}. "
                "Use torch.where for a choice and a Python loop of fixed length, or call the function through "
                "gflow.compile, which compiles the code around it."
            ) from error
        note = f"{user_line(error)}raised in build() while the graph was traced{where}{_of_dtensor(error)}"
        if (instead := advice(error)) is not None:
            note += f". {instead}"
        if hasattr(error, "add_note"):
            error.add_note(note)
        elif error.args and isinstance(error.args[0], str):  # Python 3.10
            error.args = (f"{error.args[0]}\n{note}", *error.args[1:])
        mark_traced(error)
        raise


def _of_dtensor(error: Exception) -> str:
    """The advice for a missing method that only DTensors have; "" for other errors."""
    asked = getattr(error, "name", None) if isinstance(error, AttributeError) else None
    if asked not in ("redistribute", "full_tensor", "to_local", "placements", "device_mesh"):
        return ""
    return (
        f". In build() a global tensor (DTensor) is a plain tensor of its global shape: leave .{asked} out, or say "
        "with gflow.to_global(x, placement, sbp) how a value is to lie"
    )


class Tracing(TracedSteps):
    """One trace in progress: `run_build()`, then `finish()`."""

    def run_build(self) -> None:
        """Record `build()`: forward and backward.

        Raises:
            Shared: tensors share memory; the trace is to be repeated with the storages that the exception names.
            GraphTraceError: `build()` does something that a static graph cannot express.
        """
        training = bool(self.optimizers)
        if training and finds_anomalies():
            raise GraphTraceError(
                f"{here()}: {self.name} is called within torch.autograd.detect_anomaly, which looks for NaN in the "
                "gradient of each of PyTorch's own calls, and the backward of a graph makes none. Run the step in "
                "eager mode there, or say check_nan=False."
            )
        for found in self.sharded:
            check_sharded(found, self.table.names[id(found.module)], here(), training)
        self.recorder.divided_over = self.parallel.divide(self.sharded, training)
        leaves = self._inputs()
        for slot in self.table.slots:
            if not is_unusable(slot.tensor):
                self.proxy(slot)
        owner = getattr(self.build, "__self__", None)
        target = getattr(
            owner, "_target", None
        )  # the function that a graph of `gflow.compile` runs
        with (
            kept_real(
                self.table,
                self.request.reached,
                owner,
                self._rebound,
                lambda tensor: id(tensor) in self.rewrites.met,
            ),
            torch.set_grad_enabled(training or torch.is_grad_enabled()),
        ):
            self._optimizer_parameters()
            self._loss_scale()
            keeps_state = getattr(owner, "keeps_python_state", False)
            self.rewrites.asked = asked = asked_by_build(self.name, keeps_state)
            with (
                self.active(),
                self.locator.module_calls(is_checkpointed, self._instead),
                reshardings(
                    self.table,
                    partial(describe_here, self.locator),
                    bool(self.recorder.meshes),
                ),
                unhooked(self.sharded),
                named_by(self.table.names),
                watched_calls(
                    asked,
                    globals_of([owner, target, *self.table.modules]),
                ),
                traceable_library(self.rewrites, self.rewrites.lift, self.recorder.seed),
                self._real_types(owner, target),
            ):
                args, kwargs = tree_unflatten(leaves, self.request.call.structure)
                with (
                    warnings_at_user_lines(),
                    _located(self.locator),
                    without_outer_hooks(),
                    without_outer_cache(self.name),
                ):
                    graded = torch.is_grad_enabled()
                    result = self.build(*args, **kwargs)
                    if torch.is_grad_enabled() != graded:
                        mode = f"the gradient mode ({graded} to {not graded})"
                        self.trace.passing.append((mode, ("", 0)))
                self.recorder.check_seed(self.locator.here())
        if may_change_values() and any(op.loc.phase == "backward" for op in self.recorder.ops):
            raise GraphTraceError(
                f"{self.name}: build() has a backward and is called within torch.autograd.graph.saved_tensors_hooks, "
                "whose functions a program does not call. Use the context in build(), around the forward."
            )
        whole = tree_unflatten(leaves, self.request.call.structure)
        self.trace.rearranged = rearranged((args, kwargs), whole)
        check_memory(self)
        check_parted(self)
        check_arrays(self)
        check_hooks(self)
        self.trace.held = [*self.rewrites.constants]  # optimizers have guards of their own
        self.trace.passing += changed_flags(self)
        check_assigned(self, self.rebound, self.name)
        check_begins(self)
        trace = self.trace
        trace.out_leaves, trace.out_spec = flatten_result(result)
        self.outputs = outputs_of(self, trace)

    def _real_types(self, *functions: object) -> contextlib.AbstractContextManager[None]:
        """`real_types` where sizes or numbers of the call may differ at the next one. functions: besides the modules',
        whose code may ask for types."""
        if not self.has_sizes and not self.request.call.numbers:
            return contextlib.nullcontext()
        codes = [getattr(f, "build", f) for f in functions]
        codes += [kind.forward for kind in {type(m) for m in self.table.modules}]
        return real_types([f.__globals__ for f in codes if hasattr(f, "__globals__")])

    def finish(self) -> Trace | FirstStepNeeded:
        """Record the optimizers' updates.

        Returns:
            The whole trace; or a request for a first step, after which `finish` must be called again.

        Raises:
            GraphTraceError: a step does something that a static graph cannot express.
        """
        with _machinery():
            if not self.waited:
                if self.micro_batches == 1:
                    self._reduce_gradients()
                self.partial = self._partial_reduced()
                if self.optimizers and not any(map(self.with_grad, self.optimizers)):
                    warn_of_no_gradients(self)
                self.trace.histories = histories(self)
                self.trace.ungraded = [*self.rewrites.ungraded.values()]
                self.trace.facts = [*self.rewrites.facts]
                if self.optimizers and self.trace.histories:
                    warn_of_histories(self, self.trace.histories)
                if not all([prepare_state(o, self.with_grad(o)) for o in self.optimizers]):  # noqa: C419
                    return self._wait()
            for optimizer in self.optimizers:
                state_to_devices(optimizer)
            if self.micro_batches > 1 and self._first is None:
                self.recorder.forget_numbers()  # the second program computes its numbers itself
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
                    f"{type(optimizer).__name__} is a sparse optimizer, and another optimizer of the graph creates "
                    "its state from gradients in a first step, which is dense. In graphs with sparse optimizers, "
                    "use optimizers whose state starts with zeros."
                )
        if self.recorder.meshes or self.sharded:
            raise GraphTraceError(
                f"{self.name}: an optimizer creates its state from gradients in its first step, which is not "
                "supported with global tensors (DTensor). Run one step without the graph first, or use an "
                "optimizer whose state starts with zeros (SGD, AdamW, ...)."
            )
        self.waited = True
        self.partial.branches = check_branches(self)
        return FirstStepNeeded(
            self.partial, [p for o in self.optimizers for p in self.with_grad(o)]
        )

    def _whole(self) -> Trace:
        trace, first = self.trace, self._first
        kept = self._keep_gradients(trace)
        updates = updates_of(self) + kept
        check_state(self, updates)
        self._finish(trace, self.outputs + updates)
        trace.known = None if self.recorder.known is None else self.recorder.known.conditions()
        trace.branches = check_branches(self)
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
        names = self.table.names
        trace.engines = {names[id(m)]: e for m in self.table.modules if (e := engine_of(m))}
        if first is not None:
            self._divide(trace, first, updates)
            for part in trace.parts or ():
                part.groups, part.reduced = trace.groups, trace.reduced
                part.buckets, part.copied = trace.buckets, trace.copied
                part.divided, part.kept_whole = trace.divided, trace.kept_whole
                part.mesh, part.data_axes = trace.mesh, trace.data_axes
                part.engines = trace.engines
        prune(trace)
        self._divide_stages(trace)
        self.parallel.use()
        return trace

    def _divide_stages(self, trace: Trace) -> None:
        """Divide a trace whose modules are in pipeline stages into the programs of each rank.

        Raises:
            GraphTraceError: the step uses a feature that stages do not support.
        """
        if not has_stages(self.table):
            return
        problem = (
            ("dynamic_dim()" if trace.size is not None else "")
            or ("fully_shard()" if trace.divided else "")
            or ("global tensors (DTensor)" if trace.mesh is not None else "")
            or ("keep_gradients()" if trace.kept else "")
            or ("modules that an engine runs (XRTModule)" if trace.engines else "")
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
        # imported here for start-up time: few graphs have pipeline stages
        from .optimizers.pipeline_stages import divide_stages

        stages = stages_of(self.table, self.parallel.groups)
        if stages.mesh.copies:
            self._check_copies()
            self.parallel.axes[stages.mesh.copies] = COPIES
        trace.schedule = self.request.schedule
        trace.stages = divide_stages(trace, stages)

    def _check_copies(self) -> None:
        """Check that each trained parameter is averaged over the pipelines.

        Raises:
            GraphTraceError: one is not, so each pipeline would train it by its own part of the batch.
        """
        for p in self.trained():
            if not self.parallel.averages(p):
                raise GraphTraceError(
                    f"{self.name}: parameter {self.parameter_names.get(id(p), '')!r} is averaged by no data-parallel "
                    "module, and others of the pipeline are: each pipeline would train it by its own part of the "
                    "batch. Put it into the DistributedDataParallel module."
                )

    def _instead(self, module: torch.nn.Module) -> torch.nn.Module | None:
        """The function to call instead of a module that works with other ranks by hooks; None for other modules."""
        if not is_data_parallel(module):
            return None
        return self.parallel.enter(module, here(), bool(self.optimizers))


#: code of the functions that call `build()` and optimizers
OUTSIDE = (Tracing.run_build.__code__, Tracing.finish.__code__)
