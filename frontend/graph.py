"""`gflow.nn.Graph`: a `build()` that is traced and compiled once per input signature."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import torch

from .amp import StaticGradScaler
from .call.dynamic.automatic import AutomaticSizes, NoRange, can_vary, dims_of
from .call.dynamic.automatic_numbers import AutomaticNumbers, as_plain, needed
from .call.dynamic.dynamic_dim import DynamicCalls
from .call.first_step import FirstStep, Setup
from .call.gradients import keeps, read_gradient
from .call.plans.cache import PlanCache
from .call.plans.call_record import record_call
from .call.plans.compilations import Compilation, Compilations
from .call.plans.expected import describe_call, difference, full_message
from .call.plans.new_plan import compile_plan, trace_call
from .call.plans.plan import Plan
from .call.sharing import Sharing
from .call.signature import Parameters, bind_call
from .call.tracebacks import without_internals
from .call.transaction import Call
from .call.watchers import building, is_building, one_at_a_time
from .call.zero_state import traceable
from .config import TRAINS, GraphConfig
from .errors import EagerMismatch, GraphError, GraphInputError
from .execution.device import tf32_kinds
from .guards.build import Reading
from .inspection import Inspection
from .inspection.against_eager import checked_step
from .oneflow.attributes import Attributes, own_names
from .oneflow.graph_methods import OneFlowMethods
from .report.printing import Calls
from .runtime.seeds import Seeds
from .saved.runtime_state import RuntimeState
from .saved.schedules import learning_rates, schedule_problem
from .saved.state_dict import load_state_dict, state_dict
from .tracing.context.collector import collector_paused
from .tracing.context.debug_settings import DebugSettings
from .tracing.context.deprecated_spellings import warn_older
from .tracing.context.location import here, optimizer_added, user_frame
from .tracing.context.wrappers import check_optimizer
from .tracing.data.bound_call import BoundCall
from .tracing.data.sizes import SizeDecides
from .tracing.dispatch.clipping import clip_problem
from .tracing.optimizers.step_hooks import check_hooks, has_hooks, run_hooks
from .tracing.optimizers.unread_keys import unread_problem
from .tracing.program.module_config import changes, check_settings, is_checkpointed, stage_setting
from .tracing.program.modules import ModuleTable, collect_modules
from .tracing.program.sharded_modules import take_apart
from .tracing.request import TraceRequest

_names: Counter[str] = Counter()
_log = logging.getLogger("gflow")
#: how often a range of sizes is tried, each time the part of it in which a choice by the size is one
_PARTS = 12
#: programs of one signature, for other Python state, of which one is told
_MANY = 8


@dataclass
class _State:
    """modules: attributes that are modules, or lists, tuples and dicts with some; names: all attributes, in
    the order of assignment."""

    name: str
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    sparse: list[int] = field(default_factory=list)
    scaler: Any = None
    plans: PlanCache = field(default_factory=PlanCache)
    table: ModuleTable | None = None
    modules: dict[str, Any] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    seeds: Seeds = field(default_factory=Seeds)
    building: bool = False
    marks: tuple[int, tuple[int, ...]] | None = None
    latest: Plan | None = None
    calls: Calls = field(default_factory=Calls)
    debug: DebugSettings | None = None
    parameters: Parameters | None = None
    dynamic: DynamicCalls = field(default_factory=DynamicCalls)
    sizes: AutomaticSizes = field(default_factory=AutomaticSizes)
    numbers: AutomaticNumbers = field(default_factory=AutomaticNumbers)
    compilations: Compilations = field(default_factory=Compilations)
    turn: Any = field(
        default_factory=threading.RLock
    )  # one call at a time: its size and numbers are its plan's
    call: Call = field(init=False)
    shareable: bool = True
    saves_runtime: bool = False
    loaded: Any = None

    def __post_init__(self) -> None:
        self.call = Call(self.name, self.schedulers)


class Graph(Attributes, Inspection, OneFlowMethods, RuntimeState, Sharing):
    """Base class of static graphs. Subclass it, call `super().__init__()`, assign modules to attributes, and write
    `build()`. A call of the graph runs `build()` as one compiled program: the forward, and with
    `loss.backward()` and an optimizer the whole training step. Parameters, buffers and optimizer state stay your own
    tensors and are updated in place.

    `build()` is traced once per signature: shapes, dtypes, strides and devices of the input tensors, values of other
    inputs, train or eval mode of the modules, and the Python values that it reads elsewhere (attributes, globals,
    closure variables; see docs/graph.md). Tensors that it reads elsewhere are read at each call. Calls of one graph
    from several threads take turns; otherwise graphs are not thread-safe.
    """

    config: GraphConfig
    _state: _State

    def __init__(
        self,
        *,
        enable_get_runtime_state_dict: bool = False,
        debug_v_level: int = -1,
        debug_ranks: int | list[int] | None = None,
        debug_max_py_stack_depth: int = 2,
        debug_only_user_py_stack: bool = True,
        debug_op_repr_with_py_stack: bool = False,
    ) -> None:
        """To be called first in a subclass's `__init__`. The arguments are those of `debug` and
        `enable_save_runtime_state_dict`."""
        kind = type(self).__name__
        self.__dict__["_state"] = state = _State(f"{kind}_{_names[kind]}")
        self.__dict__["config"] = GraphConfig(
            state.plans.clear, state.plans.resize, lambda: bool(state.optimizers)
        )
        _names[kind] += 1
        self.enable_save_runtime_state_dict(enable_get_runtime_state_dict)
        self.debug(
            debug_v_level,
            ranks=debug_ranks,
            max_py_stack_depth=debug_max_py_stack_depth,
            only_user_py_stack=debug_only_user_py_stack,
            op_repr_with_py_stack=debug_op_repr_with_py_stack,
        )

    @property
    def name(self) -> str:
        """The class's name and a number: `GraphMobileNetV2_0`."""
        return self._checked().name

    @property
    def training(self) -> bool:
        """Whether the graph updates parameters: it has an optimizer."""
        return bool(self._checked().optimizers)

    @property
    def is_compiled(self) -> bool:
        """Whether the graph has a program: it was called, and nothing that invalidates its programs (a new
        optimizer, a changed switch of its config) has happened since."""
        state = self._checked()
        return bool(state.plans) or state.loaded is not None

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """The program to compile; subclasses define it.

        Arguments and results are tensors of any shape and dtype, `None`, numbers, strings, and lists, tuples, dicts
        and dataclasses of them. While it is traced, tensors have no values: code that depends on a value (an `if`,
        `.item()`) is an error that names the line.

        Raises:
            NotImplementedError: the subclass defines no `build()`.
        """
        raise NotImplementedError

    def add_optimizer(
        self, optim: torch.optim.Optimizer, lr_sch: Any = None, is_sparse: bool = False
    ) -> None:
        """Make the graph a training graph: each call updates the parameters of `optim` with the gradients of
        `backward()`, then steps `lr_sch`. Several optimizers may be added.

        Args:
            optim: any PyTorch optimizer. The gradients of a parameter group with the key `clip_grad_max_norm` are first
                clipped to that norm; `clip_grad_norm_type` is the p of the norm, 2 by default.
            lr_sch: a scheduler of `optim` that steps without a metric. Step `ReduceLROnPlateau` yourself between calls.
            is_sparse: update only the rows of embedding weights, and of their state, that the step looked up.
                `torch.optim.SparseAdam` always does.

        Raises:
            GraphError: `optim` is not an optimizer, `lr_sch` is not a scheduler of it or needs a metric, the clipping
                of a group is not a number, a group has options that `optim` does not support, or the graph is frozen
                (`config.freeze`).
        """
        state = self._checked()
        if isinstance(optim, str):
            warn_older("add_optimizer(name, optim, lr_sch)", "add_optimizer(optim, lr_sch)")
            optim, lr_sch, is_sparse = lr_sch, is_sparse or None, False
        if not isinstance(optim, torch.optim.Optimizer):
            raise GraphError(
                f"{here()}: add_optimizer() takes a torch.optim.Optimizer, "
                f"got {type(optim).__name__}"
            )
        problem = None if lr_sch is None else schedule_problem(optim, lr_sch)
        if (
            problem := problem
            or clip_problem(optim)
            or unread_problem(optim)
            or check_optimizer(optim)
        ):
            raise GraphError(f"{here()}: {problem}")
        if not isinstance(is_sparse, bool):
            problem = f"add_optimizer(): is_sparse is True or False, got {is_sparse!r}"
            raise GraphError(f"{here()}: {problem}")
        if self.config.is_frozen:
            raise GraphError(f"{here()}: add_optimizer(): {TRAINS}")
        if is_sparse:
            state.sparse.append(len(state.optimizers))
        optimizer_added(optim)
        state.optimizers.append(optim)
        if lr_sch is not None:
            state.schedulers.append(lr_sch)
        state.plans.clear()

    def learning_rates(self) -> list[list[float]]:
        """The learning rates of the next step: for each optimizer, in the order of `add_optimizer`, one for each of its
        parameter groups."""
        return learning_rates(self._checked().optimizers)

    def grad(self, parameter: str | torch.Tensor) -> torch.Tensor | None:
        """A copy of a parameter's gradient in the latest step, as the optimizer used it: divided by the loss scale, and
        clipped. None if the step computed none. Only gradients named by `config.keep_gradients()` before the step are
        kept.

        Args:
            parameter: its name in the graph (`"model.head.weight"`), or the parameter itself.

        Raises:
            GraphError: there is no such parameter, no optimizer trains it, its gradient is not kept, or there was no
                step yet.
        """
        state = self._checked()
        plans = [p for variants in state.plans.values() for p in variants]
        wanted, where = self.config.kept_gradients, here()
        return read_gradient(parameter, self._roots(), plans, state.optimizers, wanted, where)

    def set_grad_scaler(self, grad_scaler: Any = None) -> None:
        """Scale the loss, so that small gradients do not underflow in float16.

        Args:
            grad_scaler: a `gflow.amp.GradScaler`, a `torch.amp.GradScaler`, a `gflow.amp.StaticGradScaler`, or None for
                no scaling.

        Raises:
            GraphError: it is none of these.
        """
        state = self._checked()
        if grad_scaler is not None and not isinstance(
            grad_scaler, (torch.amp.GradScaler, StaticGradScaler)
        ):
            raise GraphError(
                f"{here()}: set_grad_scaler() takes a gflow.amp.GradScaler, a torch.amp.GradScaler "
                f"or a gflow.amp.StaticGradScaler, got {type(grad_scaler).__name__}"
            )
        state.scaler = grad_scaler
        state.plans.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for these arguments. A new signature is compiled first.

        Takes the arguments of `build()` and returns its results. Result tensors have the shapes and dtypes of
        `build()`, are row-major, have no `grad_fn`, and belong to the caller.

        Raises:
            GraphInputError: an argument is missing, unknown, or of a kind that a program cannot take;
                or the cache of programs is strict and full. Names the argument, and the shape and
                dtype that it has and should have.
            GraphTraceError: `build()`, or an optimizer, does something that a static graph does not support. Names
                the line.
            GraphError: the graph is not set up, or is called in `build()` of a graph.
        """
        state: _State | None = self.__dict__.get("_state")
        if state is not None and state.loaded is not None:
            return state.loaded(*args, **kwargs)
        with nullcontext() if state is None else state.turn:
            try:
                return self._run(state, args, kwargs)
            except BaseException as error:
                self._settle(error)
                raise without_internals(error)  # noqa: B904

    def _run(self, state: _State | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call whose turn it is."""
        hooked = state is not None and has_hooks(state.optimizers)
        if state is not None and hooked:
            check_hooks(state.optimizers, state.scaler)
            run_hooks(state.optimizers[0], after=False)
        call, plan, first = self._program(args, kwargs)
        state = self._state
        if first is not None:
            return self._first_step(first, hooked)
        assert plan is not None
        run: Any = plan.compiled.run
        run.done = False
        state.call.begin(run)
        check = self.config._check
        if check is None or not check.is_due(state.call.steps):
            result = plan.run(call.leaves, state)
        else:
            result = self._checked_run(check, plan, call, hooked)
        if hooked:
            run_hooks(state.optimizers[0], after=True)
        state.call.finish()
        return result

    def _checked_run(self, check: Any, plan: Plan, call: BoundCall, hooked: bool) -> Any:
        """A run beside eager."""
        try:
            return checked_step(check, plan, call, self, here())
        except EagerMismatch:  # the step itself was made
            if hooked:
                run_hooks(self._state.optimizers[0], after=True)
            raise

    def state_dict(self, destination: dict[str, Any] | None = None) -> dict[str, Any]:
        """Everything needed to resume a run: modules by their names, optimizers, schedulers, scaler, random state and
        step count. docs/checkpoints.md lists the keys.

        Args:
            destination: a dict that receives the entries and is returned; a new one by default.
        """
        found = state_dict(self._checked(), self._roots())
        if destination is None:
            return found
        destination.update(found)
        return destination

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Load a state from `state_dict()`, before the first call.

        Args:
            strict: whether the keys must be exactly those of the graph.

        Raises:
            GraphError: the graph was called already, keys are missing or unexpected (if `strict`), or shapes or
                parameter groups differ. The graph is then unchanged.
        """
        state = self._checked()
        if state.call.called and not state.call.broken:
            raise GraphError(
                f"{here()}: {state.name} was called already, and a graph's state can only be loaded "
                "before the first call. Make a new graph and load into it, or load into the modules "
                "and optimizers themselves (model.load_state_dict, optimizer.load_state_dict): the "
                "graph works on their tensors."
            )
        load_state_dict(state, self._roots(), state_dict, strict, here())
        state.call.broken = ""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise GraphError(
            f"{here()}: a graph cannot be copied or pickled. Make another over copy.deepcopy(model), or "
            "save it with gflow.save()."
        )

    @staticmethod
    def trace(func: Callable[..., Any]) -> Graph:
        """Decorator that makes a graph of a function. Write a class for training or saving.

        Raises:
            GraphError: `func` is a class, a module, or not callable.
        """

        class Traced(Graph):
            def build(self, *args: Any, **kwargs: Any) -> Any:
                return func(*args, **kwargs)

        if not callable(func) or isinstance(func, (type, torch.nn.Module)):
            raise GraphError(f"{here()}: Graph.trace takes a function, got {type(func).__name__}")
        Traced.__name__ = Traced.__qualname__ = f"{getattr(func, '__name__', 'function')}_graph"
        return Traced()

    def _compile(self, *args: Any, **kwargs: Any) -> Any:
        """Compile the program for these arguments before the first call.

        Nothing is run, except where an optimizer can make its state only by a first step.

        Returns:
            What a call returns, with tensors of zeros; where a first step was made, its results.
        """
        result = None
        try:
            bound, plan, first = self._program(args, kwargs)
            call = self._state.call
            if first is not None:
                optimizers = self._state.optimizers
                if hooked := has_hooks(optimizers):
                    check_hooks(optimizers, self._state.scaler)
                    run_hooks(optimizers[0], after=False)
                result = self._first_step(first, hooked)
            elif plan is not None:
                result = plan.blank_results(bound.leaves)
            call.setup, call.called = None, True
        except BaseException as error:
            self._settle(error)
            raise without_internals(error)  # noqa: B904
        return result

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BoundCall, Any]:
        """A call, and the key of its programs: the call's own, and what else changes a trace."""
        state: _State | None = self.__dict__.get("_state")
        if state is None or state.table is None:
            state = self._first_call()
        build = self.build
        if state.parameters is None or not state.parameters.are_of(build):
            state.parameters = Parameters(build)
        call = bind_call(build, args, kwargs, state.parameters)
        state.dynamic.mark(call, self._micro_batches(state))
        if self.config.dynamic_shapes:
            state.numbers.mark(call, not state.plans.is_full)
        assert state.table is not None
        if not state.table.is_current():
            self._collect(state)
        return call, (call.key, *_modes(state))

    def _program(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[BoundCall, Plan | None, FirstStep | None]:
        """A call with its program, compiled if it is a new one, and the first step that stands for this call, if
        one had to be made. There is no program where an optimizer has skipped that step."""
        state: _State | None = self.__dict__.get("_state")
        if state is not None and state.call.broken:
            raise GraphError(
                f"{here()}: {state.name} has stopped in the middle of a step, so that its parameters, buffers "
                f"and optimizers are partly updated, and takes no further calls. What happened: "
                f"{state.call.broken}\nLoad a checkpoint with load_state_dict() to go on."
            )
        if is_building():
            raise self._nested()
        call, key = self._bind(args, kwargs)
        if _is_traced(call.leaves):
            raise self._nested()
        plan = self._state.plans.find(key, call.leaves)
        if plan is not None:
            return call, plan, None
        varies = self._may_vary(call)
        if varies:
            for served, own in self._state.sizes.served(call, key):
                if (plan := self._state.plans.find(own, served.leaves)) is not None:
                    return served, plan, None
        with one_at_a_time, collector_paused():
            return self._programs(call, key, varies)

    def _may_vary(self, call: BoundCall) -> bool:
        return self.config.sizes_may_vary and can_vary(call)

    def _micro_batches(self, state: _State) -> int:
        return self.config.gradient_accumulation_steps if state.optimizers else 1

    def _programs(
        self, call: BoundCall, key: Any, varies: bool
    ) -> tuple[BoundCall, Plan | None, FirstStep | None]:
        """A new program: for a range of sizes where a second one has come and a range can be had, else for the sizes
        of the call."""
        start = time.perf_counter()
        state = self._state
        proposed = None
        if varies and not state.plans.is_full:
            proposed = state.sizes.proposed(call, key, self._micro_batches(state))
        reason: Exception | None = None
        if call.dynamic is not None and not call.numbers:
            return self._marked_program(call, key, start)
        for _ in range(_PARTS):
            if proposed is None:
                break
            wide, own = proposed
            assert wide.dynamic is not None
            try:
                found = self._new_program(own, wide, start)
            except NoRange as refusal:
                reason = refusal.reason
                state.call.settle(reason)
                proposed = state.sizes.narrowed(call, key, wide, reason)
            else:
                state.sizes.took(call, key, state.name, wide.dynamic)
                return wide, *found
        if reason is not None:
            state.sizes.refuse(call, key, state.name, reason)
        if call.numbers:
            try:
                found = self._new_program(key, call, start)
            except NoRange as refusal:
                state.call.settle(refusal.reason)
                told = (str(refusal.reason).splitlines() or [type(refusal.reason).__name__])[0]
                live, call = call, as_plain(call)
                key = (call.key, *key[1:])
                if (plan := state.plans.find(key, call.leaves)) is not None:
                    return call, plan, None
                found = self._new_program(key, call, start)  # an error of its own is no refusal
                state.numbers.refuse(live, state.name, live.numbers, told)
            else:
                exact = [] if found[0] is None else needed(found[0].trace)
                if exact and found[0] is not None:
                    why = "Python asks for the value itself, as float() and shapes do"
                    state.numbers.refuse(call, state.name, exact, why)
                    own = state.numbers.key_of(call)
                    state.plans.move(found[0], key, (own, *key[1:]))
        else:
            found = self._new_program(key, call, start)
        if varies and found[0] is not None:
            program = found[0].compiled.program
            state.sizes.saw(call, key, 0 if program is None else program.arena_bytes)
        return call, *found

    def _marked_program(
        self, call: BoundCall, key: Any, start: float
    ) -> tuple[BoundCall, Plan | None, FirstStep | None]:
        """A new program for a call with a marked dimension: for its range, or for the part of it, with the call's own
        size, in which what the program asks of sizes has one answer."""
        state = self._state
        for _ in range(_PARTS):
            if call.dynamic is None:
                break
            try:
                return call, *self._new_program(key, call, start)
            except SizeDecides as error:
                if not state.dynamic.narrowed(call, error):
                    raise
                state.call.settle(error)
                call, key = self._bind(call.args, call.kwargs)
                if (plan := state.plans.find(key, call.leaves)) is not None:
                    return call, plan, None
        return call, *self._new_program(key, call, start)

    def _nested(self) -> GraphError:
        return GraphError(
            f"{here()}: {self.name} is called inside build() of a graph; graphs don't nest. "
            "Call its modules there instead, or call one graph after the other."
        )

    # the slow path

    def _checked(self) -> _State:
        state = self.__dict__.get("_state")
        if state is None:
            kind = type(self)
            raise GraphError(
                f"{here()}: {kind.__name__}.__init__ does not call super().__init__(); call it "
                "first, before attributes are set and optimizers are added."
            )
        return state

    def _first_call(self) -> _State:
        state = self._checked()
        if type(self).build is Graph.build:
            raise GraphError(
                f"{here()}: {type(self).__name__} does not define build(); define "
                "`def build(self, ...)` with the program to compile, and call the graph itself."
            )
        self._collect(state)
        return state

    def _collect(self, state: _State) -> None:
        """Find the modules. If they changed (a parameter was replaced, ...): start over."""
        with one_at_a_time:  # while another is traced, modules may hold what its forward assigned
            if state.table is not None:
                take_apart(state.table.modules)
            if state.table is None or not state.table.is_current():
                state.plans.clear()
                state.table, state.marks = collect_modules(self._roots()), None

    def _new_program(
        self, key: Any, call: BoundCall, start: float
    ) -> tuple[Plan | None, FirstStep | None]:
        """See `_program`. start: when its making began, as `time.perf_counter` has it."""
        state, roots = self._checked(), self._roots()
        table = state.table
        if table is None or table.roots != roots:  # a list of modules may have grown
            table = collect_modules(roots)
        check_settings(table.names, table.modules)
        given = describe_call(call)
        unlike = difference(given, [plan.described for plan in state.plans])
        if state.plans.is_full:
            raise GraphInputError(full_message(here(), state.name, state.plans.size, unlike))
        self._say_why(key, call)
        static = state.sizes.why_static(call, key)
        why = state.compilations.reason(
            given, key[1:], table, state.plans.of(key), state.plans.cleared
        )
        state.call.prepare(Setup(state.optimizers, state.scaler))
        # sizes and numbers that vary must not stay in Python's state
        attempt = bool(call.numbers) or (call.dynamic is not None and call.dynamic.automatic)
        reading = Reading(self, state.name, call, roots, table, attempt)
        kept = keeps(self.config.kept_gradients, roots, here())
        request = TraceRequest(
            state.name,
            call,
            table,
            state.optimizers,
            state.scaler,
            kept,
            self._micro_batches(state),
            self.config.stack_scalars and self.config.gradient_accumulation_steps > 1,
            self.config.pipeline_schedule,
            state.sparse,
            reading.reached,
        )
        kind = type(self).__name__
        state.building = True
        options = self.config.resolved()
        divided = options.passes.zero > 2 or any(map(stage_setting, table.modules))
        traced = None
        try:
            with (
                traceable(state.optimizers, table.modules, divided),
                building(state.name, kind, state.debug, table, reading.frames) as calls,
            ):
                traced = trace_call(request, state.call.setup)
                if traced.trace is None:
                    return None, traced.first
                plan = compile_plan(traced.trace, call, options, traced.timings)
                plan.guard, plan.given = reading.guard(plan.trace)
        except Exception as error:
            reading.undo(always=isinstance(error, SizeDecides))
            if attempt and (traced is None or is_refusal(error)):
                # what the author's code raises of a size that is no int may be anything
                raise NoRange(error) from error
            if unlike and hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"Unlike in earlier calls of {state.name}, {unlike}.")
            raise
        finally:
            state.building = False
        for optimizer in state.optimizers:
            optimizer._opt_called = True  # type: ignore[attr-defined]
        state.latest, state.calls = plan, calls
        plan.described = given
        plan.record = record_call(call, table.modes())
        state.call.drop = partial(state.plans.discard, plan)
        state.plans.add(key, plan)
        self._remember(call, given, key[1:], why + static, start)
        return plan, traced.first

    def _remember(
        self, call: BoundCall, given: dict[str, str], modes: Any, why: str, start: float
    ) -> None:
        """Note a compilation for `explain_recompiles()`."""
        state = self._state
        sizes = "" if call.dynamic is None else dims_of(call.dynamic, call.names)
        if call.dynamic is not None:
            sizes += f" in {call.dynamic.sizes}"
        made = Compilation(state.name, datetime.now(), time.perf_counter() - start, why, sizes)
        state.compilations.add(made, given, modes, state.plans.cleared)

    def _say_why(self, key: Any, call: BoundCall) -> None:
        """Once a signature has several programs for the sake of Python state, tell which changes."""
        state = self._checked()
        reasons = [r for p in state.plans.of(key) if (r := p.first_change(call.leaves))]
        if reasons:
            _log.info("%s is compiled again: %s", state.name, reasons[0])
        if len(reasons) == _MANY:
            warnings.warn_explicit(
                f"{state.name} was compiled {_MANY} times for the same inputs, since what build() reads changes "
                f"between calls: {reasons[0]}. Pass it to the graph as a tensor, which needs no other program.",
                UserWarning,
                *user_frame(2),
            )

    def _settle(self, error: BaseException) -> None:
        """Finish a call that an exception has ended, or put back what it had begun."""
        state: _State | None = self.__dict__.get("_state")
        if state is not None:
            state.call.settle(error)

    def _first_step(self, first: FirstStep, hooked: bool) -> Any:
        """Take what was computed on copies for this call's."""
        call = self._state.call
        call.begin(first)
        first.commit()
        if hooked:
            run_hooks(self._state.optimizers[0], after=True)
        call.finish()
        return first.outputs


def _checkpointed(state: _State) -> tuple[int, ...]:
    """The modules whose activations are recomputed in the backward, by number."""
    assert state.table is not None
    if state.marks is None or state.marks[0] != changes():
        marked = [i for i, m in enumerate(state.table.modules) if is_checkpointed(m)]
        state.marks = (changes(), tuple(marked))
    return state.marks[1]


def _modes(state: _State) -> tuple[Any, ...]:
    """What outside of the arguments changes a trace."""
    assert state.table is not None
    return (
        state.table.modes(),
        _checkpointed(state),
        bool(state.optimizers) or torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.cuda.is_initialized() and tf32_kinds(),
        torch.get_default_dtype(),
        # a default device is a mode for functions
        torch._C._len_torch_function_stack() and torch.get_default_device(),  # type: ignore[attr-defined]
    )


def is_refusal(error: Exception) -> bool:
    """Whether this error means that the compiler does not support the traced program."""
    # start-up: the compiler is loaded by the first compilation
    from .compiler.ir.errors import CompileError
    from .lowering.dtypes import LoweringError

    return isinstance(error, (GraphError, CompileError, LoweringError))


def _is_traced(leaves: Sequence[Any]) -> bool:
    """Whether the graph is called with what another graph's `build()` computes."""
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            return torch._is_functional_tensor(leaf)
    return False


#: names that an author's attributes cannot have
Graph._own_names = own_names(Graph)
