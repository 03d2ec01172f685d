"""`gflow.nn.Graph`: a `build()` that is traced and compiled once per input signature."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .amp import StaticGradScaler
from .call.branching import OtherTruth
from .call.first_step import FirstStep, Setup
from .call.gradients import read_gradient
from .call.graph_state import GraphState
from .call.plans.plan import Plan
from .call.programs import Programs
from .call.sharing import Sharing
from .call.tracebacks import without_internals
from .config import TRAINS, GraphConfig
from .errors import EagerMismatch, GraphError
from .inspection import Inspection
from .inspection.against_eager import checked_step
from .oneflow.attributes import Attributes, own_names
from .oneflow.graph_methods import OneFlowMethods
from .runtime.failures import OtherBranch
from .saved.runtime_state import RuntimeState
from .saved.schedules import learning_rates, schedule_problem
from .saved.state_dict import load_state_dict, state_dict
from .tracing.context.deprecated_spellings import warn_older
from .tracing.context.location import here, optimizer_added
from .tracing.context.transforms import acts_on_calls, check_untransformed
from .tracing.context.wrappers import check_optimizer
from .tracing.data.bound_call import BoundCall
from .tracing.dispatch.clipping import clip_problem
from .tracing.optimizers.step_hooks import check_hooks, has_hooks, run_hooks
from .tracing.optimizers.unread_keys import unread_problem

_names: Counter[str] = Counter()


class Graph(Attributes, Inspection, OneFlowMethods, Programs, RuntimeState, Sharing):
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
    _state: GraphState

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
        self.__dict__["_state"] = state = GraphState(f"{kind}_{_names[kind]}")
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
        if torch.compiler.is_dynamo_compiling():
            return _outside_of_dynamo(self, args, kwargs)
        state: GraphState | None = self.__dict__.get("_state")
        if acts_on_calls():
            table = None if state is None else state.table
            parameters = [] if table is None else [slot.tensor for slot in table.slots]
            check_untransformed([*tree_leaves((args, kwargs)), *parameters])
        if state is not None and state.loaded is not None:
            return state.loaded(*args, **kwargs)
        with nullcontext() if state is None else state.turn:
            try:
                return self._run(state, args, kwargs)
            except BaseException as error:
                self._settle(error)
                raise without_internals(error)  # noqa: B904

    def _run(self, state: GraphState | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call whose turn it is."""
        hooked = state is not None and has_hooks(state.optimizers)
        if state is not None and hooked:
            check_hooks(state.optimizers, state.scaler)
            state.call.hooked = Setup(state.optimizers, state.scaler)
            run_hooks(state.optimizers[0], after=False)
        while True:
            try:
                call, plan, first = self._program(args, kwargs)
                state = self._state
                if first is not None:
                    return self._first_step(first, hooked)
                assert plan is not None
                result = self._plan_run(plan, call, hooked)
                break
            except OtherTruth as other:  # another program is for it
                self._state.call.branches(other)
        state.call.branching = None
        if hooked:
            run_hooks(state.optimizers[0], after=True)
        state.call.finish()
        return result

    def _plan_run(self, plan: Plan, call: BoundCall, hooked: bool) -> Any:
        run: Any = plan.compiled.run
        run.done = False
        state = self._state
        state.call.begin(run)
        check = self.config._check
        try:
            if check is None or not check.is_due(state.call.steps):
                return plan.run(call.leaves, state)
            return self._checked_run(check, plan, call, hooked)
        except OtherBranch as error:
            raise OtherTruth(plan.trace.branches, error) from error

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
                    call.hooked = Setup(optimizers, self._state.scaler)
                    run_hooks(optimizers[0], after=False)
                result = self._first_step(first, hooked)
            elif plan is not None:
                result = plan.blank_results(bound.leaves)
            call.setup, call.called = None, True
        except BaseException as error:
            self._settle(error)
            raise without_internals(error)  # noqa: B904
        return result

    def _checked(self) -> GraphState:
        state = self.__dict__.get("_state")
        if state is None:
            kind = type(self)
            raise GraphError(
                f"{here()}: {kind.__name__}.__init__ does not call super().__init__(); call it "
                "first, before attributes are set and optimizers are added."
            )
        return state

    def _first_call(self) -> GraphState:
        state = self._checked()
        if type(self).build is Graph.build:
            raise GraphError(
                f"{here()}: {type(self).__name__} does not define build(); define "
                "`def build(self, ...)` with the program to compile, and call the graph itself."
            )
        self._collect(state)
        return state

    def _settle(self, error: BaseException) -> None:
        """Finish a call that an exception has ended, or put back what it had begun."""
        state: GraphState | None = self.__dict__.get("_state")
        if state is not None:
            state.call.settle(error, whole=True)

    def _first_step(self, first: FirstStep, hooked: bool) -> Any:
        """Take what was computed on copies for this call's."""
        call = self._state.call
        call.begin(first)
        first.commit()
        if hooked:
            run_hooks(self._state.optimizers[0], after=True)
        call.finish()
        call.branching = None
        return first.outputs


#: names that an author's attributes cannot have
Graph._own_names = own_names(Graph)


def _outside_of_dynamo(graph: Graph, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A graph's call in a function that TorchDynamo traces: it splits the function here, and the graph runs its own
    program."""
    call = torch._dynamo.disable(Graph.__call__, reason="a graph of gflow is a program of its own")  # type: ignore[no-untyped-call]
    return call(graph, *args, **kwargs)
