"""`gflow.compile`: one line for a module or a function."""

from __future__ import annotations

import copy
import functools
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from gflow.call.plans.compilations import Recompiles
from gflow.call.signature import Parameters
from gflow.call.watchers import is_building
from gflow.errors import GraphError, GraphInputError, GraphTraceError, StateChangedError, is_traced
from gflow.lowering.dtypes import LoweringError
from gflow.nn.graph import Graph
from gflow.tracing.context.location import here
from gflow.tracing.context.saved_hooks import IN_EAGER, may_change_values
from gflow.tracing.context.transforms import (
    ANOMALIES,
    CACHED,
    TRANSFORMED,
    acts_on_calls,
    finds_anomalies,
    is_cached,
)
from gflow.tracing.program.module_config import set_engine
from gflow.tracing.program.modules import scripted_module
from gflow.tracing.program.unwrapped import unwrapped

from .captured import Captured
from .differentiable import Differentiable
from .joint import Undivided
from .objects import holds_state, stateful_kinds
from .split import UNTRACED, Split

_requires_grad = operator.attrgetter("requires_grad")


def compile(target: Any = None, /, *, fullgraph: bool = False, **options: Any) -> Any:
    """Compile a module or a function for use inside of an eager program.

    A call without gradients (under `torch.no_grad()`, or if nothing requires grad) runs one compiled program. A call
    with gradients returns results with a `grad_fn` whose backward is compiled too: `loss.backward()` and optimizers
    work as in eager mode. For a whole training step as one program, including the update, write an `nn.Graph`.

    For a module, the result is a module of the same class that shares its parameters, buffers, mode and attributes:
    `state_dict()`, `.train()` and `.to()` of one act on both.

    Objects that hold tensors may be arguments and results, and are updated as in eager mode: transformers' caches, and
    classes registered with `torch.utils._pytree`. Calls with such objects go through TorchDynamo, with dynamic shapes
    from the start.

    A program serves the shapes, dtypes and strides of its inputs and the values of all other arguments. From the
    second size or float on, it serves a range of sizes and any float. If a program cannot express a call (a branch on
    the value of a tensor, `.item()`, a boolean mask as an index), the logger "gflow" names the line in one warning,
    and TorchDynamo splits the target there from then on: the pieces are compiled, and Python runs between them. Calls
    that change Python state, such as a counter of a module, are split in the same way, so that the state changes at
    every call.

    Args:
        target: a module or function. Without it, `compile` is a decorator.
        fullgraph: raise an error that names the line instead of splitting the target.
        options: fields of `gflow.compiler.CompileOptions`, such as `threads`; `cache_size`, the number of programs to
            keep (default 16); and `dynamic`: False compiles a program for each size and each Python number. The
            default is as in graphs (`config.enable_dynamic_shapes()`).

    The result has `explain_recompiles()`, which lists the reason of each compilation, as
    `nn.Graph.explain_recompiles` does. Calls that are split, or take an object that holds tensors (a model's cache),
    are compiled through TorchDynamo and not listed; `TORCH_LOGS=recompiles` tells their reasons.

    Raises:
        GraphError: `target` is not callable, or an option is unknown.
        GraphTraceError: `target` is a module of `torch.jit`.
    """
    if target is None:
        return functools.partial(compile, fullgraph=fullgraph, **options)
    if not callable(target):
        raise GraphError(
            f"{here()}: compile() takes a module or a function, got {type(target).__name__}"
        )
    target = unwrapped(target)
    if isinstance(target, torch.jit.ScriptModule):
        raise scripted_module("the module that compile() takes")
    if isinstance(target, CompiledModule):
        if target._runner.engine:  # the engine of an XRTModule is kept, unless another one is given
            passes = options.get("passes") or target._options["passes"]
            engine = passes.engine or target._runner.engine
            options["passes"] = replace(passes, engine=engine)
        target = target._original
    run = _Runner(target, fullgraph, dict(options))
    if isinstance(target, torch.nn.Module):
        return _compiled_module(target, run, {"fullgraph": fullgraph, **options})
    function = functools.wraps(target)(lambda *args, **kwargs: run(args, kwargs))
    function.explain_recompiles = run.explain_recompiles  # type: ignore[attr-defined]
    return function


class _Program(Graph):
    """The calls that need no gradients."""

    def __init__(
        self,
        target: Callable[..., Any],
        captured: Captured,
        whole: bool,
        options: dict[str, Any],
    ) -> None:
        # imported here for start-up time
        from gflow.compiler import CompileOptions

        super().__init__()
        self.__dict__["keeps_python_state"] = not whole
        self._state.takes_tail = False
        self._target = target
        self.target = {str(i): module for i, module in enumerate(_modules(captured))}
        size = options.pop("cache_size", None)
        if size is not None:
            self.config.set_cache_size(size)
        if "dynamic" in options:
            self.config.enable_dynamic_shapes(options.pop("dynamic"))
        try:
            self.config.compile_options = CompileOptions(**options)
        except TypeError as error:
            raise GraphError(f"{here()}: compile(): {error}") from None

    def build(self, *args: Any, **kwargs: Any) -> Any:
        return self._target(*args, **kwargs)


class _Runner:
    """Chooses between a program without gradients, a pair of programs with them, and a split."""

    def __init__(self, target: Callable[..., Any], whole: bool, options: dict[str, Any]) -> None:
        self.target, self.captured, self.whole = target, Captured(target), whole
        passes = options.get("passes")
        self.engine: str = "" if passes is None else passes.engine
        self.program = _Program(target, self.captured, whole, options)
        self.parameters = Parameters(target)
        self._pairs: Any = None
        self._split: Split | None = None
        self._stateful: Split | None = None
        self._kinds: set[type] = set()
        """Types of arguments that hold state, found so far."""
        self._by_dynamo: set[bool] = set()
        """Which calls go through the split from the start: those with gradients, those without."""

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.compiler.is_compiling() or is_building():  # part of a larger program
            if self.engine:
                raise GraphError(
                    f"{here()}: {self.engine} runs this module's calls, and torch.compile cannot give a part of a "
                    "function to an engine; call the module outside of it, or in an nn.Graph or gflow.compile"
                )
            return self.target(*args, **kwargs)
        if acts_on_calls():
            self._pieces().in_eager(TRANSFORMED)
            return self.target(*args, **kwargs)
        if parametrize._cache_enabled and is_cached(_modules(self.captured)):
            self._pieces().in_eager(CACHED)
            return self.target(*args, **kwargs)
        args, kwargs = self._bound(args, kwargs)
        gradients = torch.is_grad_enabled() and self._needs_grad(args, kwargs)
        if gradients and (may_change_values() or finds_anomalies()):
            self._pieces().in_eager(ANOMALIES if finds_anomalies() else IN_EAGER)
            return self.target(*args, **kwargs)
        if holds_state(args, kwargs, self._kinds):
            return self._with_state(args, kwargs)
        if gradients not in self._by_dynamo and self._reaches_sharded():
            self._pieces().because_of(Undivided("a function that calls a module of fully_shard()"))
            self._by_dynamo.add(gradients)
        if gradients in self._by_dynamo:
            return self._pieces()(args, kwargs)
        raised = False  # an error of the function itself
        try:
            run = self._gradients() if gradients else self.program
            return run(*args, **kwargs)
        except (GraphError, Undivided, LoweringError, *UNTRACED) as error:
            # an error of TorchDynamo: a function that PyTorch compiles by itself, such as `scan`
            problem: Exception = error
        except Exception as error:
            # traced arguments are leaves, which autograd does not allow to update
            if "a leaf Variable that requires grad" in str(error) and _has_history(args, kwargs):
                problem = Undivided("an argument that is updated in place")
            elif is_traced(error) and not self.whole:
                problem, raised = error, True
            else:
                raise
        if raised:
            return self._by_itself(args, kwargs, gradients, problem)
        return self._divided(args, kwargs, gradients, problem)

    def _by_itself(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool, error: Exception
    ) -> Any:
        """Run a call whose function raised an error while it was traced in eager mode. Either its arguments are wrong,
        and eager raises the error itself, or it checks whether it is compiled (`torch.compiler.is_compiling`), and
        cannot be."""
        result = self.target(*args, **kwargs)
        self._pieces().because_of(error)
        self._by_dynamo.add(gradients)
        return result

    def explain_recompiles(self) -> Recompiles:
        """The compilations for calls with and without gradients, in order."""
        graphs = [self.program] if self._pairs is None else [self.program, self._pairs]
        found = [made for graph in graphs for made in graph.explain_recompiles()]
        return Recompiles(sorted(found, key=lambda made: made.when))

    def _bound(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call in its normal form; unchanged if hooks of a module may observe the form, or if it does not fit,
        which is the function's own error."""
        function: Any = self.target
        if isinstance(function, torch.nn.Module):
            if function._forward_pre_hooks or function._forward_hooks:
                return args, kwargs
            function = function.forward
        if not self.parameters.are_of(function):
            self.parameters = Parameters(function)
        return self.parameters.bind(args, kwargs) or (args, kwargs)

    def _needs_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if any(map(_requires_grad, self._tensors())):
            return True
        leaves = tree_leaves((args, kwargs))
        return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)

    def _reaches_sharded(self) -> bool:
        """Whether a function calls modules of `fully_shard`, whose first call sets them up: a trace that is refused in
        the middle of it would leave them half made."""
        fsdp = sys.modules.get("torch.distributed.fsdp")
        if fsdp is None or self.whole or isinstance(self.target, torch.nn.Module):
            return False
        return any(
            isinstance(m, fsdp.FSDPModule)
            for root in _modules(self.captured)
            for m in root.modules()
        )

    def _tensors(self) -> Iterator[torch.Tensor]:
        for part in self.captured.parts():
            if isinstance(part, torch.nn.Module):
                for module in part.modules():  # `parameters()` takes twice as long to the first
                    yield from (p for p in module._parameters.values() if p is not None)
            elif isinstance(part, torch.Tensor):
                yield part

    def _divided(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool, problem: Exception
    ) -> Any:
        """Run a call that cannot be one program, because of `problem`."""
        if isinstance(problem, GraphInputError):
            self._kinds |= stateful_kinds(args, kwargs)
            if holds_state(args, kwargs, self._kinds):
                return self._with_state(args, kwargs)
        if self.whole and not gradients:
            raise problem
        if isinstance(problem, GraphTraceError) and problem.by_eager and not self.whole:
            result = self.target(*args, **kwargs)  # eager raises its own error
            self._pieces().leave_to_eager(problem.by_eager)
            self._by_dynamo.add(gradients)
            return result
        split = self._pieces()
        if not isinstance(problem, Undivided):
            split.because_of(problem)
        if isinstance(problem, StateChangedError) and problem.hidden:
            split.leave_to_eager(f"TorchDynamo would {problem.hidden}")
        try:
            result = split(args, kwargs)
        except UNTRACED as error:  # `fullgraph` is set
            if not isinstance(problem, Undivided):
                raise problem from error
            if isinstance(error, torch._dynamo.exc.BackendCompilerFailed):
                raise
            raise _refusal(problem, error) from error
        if not isinstance(problem, GraphInputError):  # calls with other arguments may succeed
            self._by_dynamo.add(gradients)
        return result

    def _gradients(self) -> Any:
        if self._pairs is None:
            self._pairs = pairs = Differentiable(
                self.target, self.captured, self.program.target, not self.whole
            )
            state, config = self.program.__dict__["_state"], self.program.config
            pairs.config.set_cache_size(state.plans.size)
            pairs.config.compile_options = config.compile_options
            pairs.config.enable_dynamic_shapes(config.dynamic_shapes)
        return self._pairs

    def _with_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call with an object that holds tensors, such as a model's cache of keys and values, and may be changed
        by it: TorchDynamo tracks its attributes. The tensors grow, so sizes are dynamic from the start."""
        if self._stateful is None:
            options = self.program.config.compile_options
            self._stateful = Split(self.target, options, self.whole, dynamic=True)
        return self._stateful(args, kwargs)

    def _pieces(self) -> Split:
        if self._split is None:
            self._split = Split(self.target, self.program.config.compile_options, self.whole)
        return self._split


def _refusal(problem: Undivided, error: Exception) -> GraphError:
    """The error if TorchDynamo refuses a function that was left to it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = " ".join(line for line in lines if line.startswith("File"))
    return GraphError(
        f"compile(): with gradients, two programs cannot hold {problem}, and TorchDynamo, which the call is left "
        f"to, refuses it: {' '.join(lines[:2]).rstrip('.')}. A new tensor in place of the update, or an nn.Graph, "
        f"does it. {where}"
    )


def _modules(captured: Captured) -> list[torch.nn.Module]:
    """The modules that a target reaches, and that no other one contains."""
    return [part for part in captured.parts() if isinstance(part, torch.nn.Module)]


class CompiledModule:
    """What `compile` adds to the class of a module."""

    __slots__ = ()
    _original: torch.nn.Module
    _runner: _Runner
    _options: dict[str, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._runner.engine and is_building():
            # under its name in the graph, which gives its ops to the engine
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        return self._runner(args, kwargs)

    def explain_recompiles(self) -> Recompiles:
        """Each compilation so far: when it happened, its duration in seconds, and the difference to all earlier
        programs. Calls that went through TorchDynamo (split ones) are not listed; `TORCH_LOGS=recompiles` shows their
        reasons."""
        return self._runner.explain_recompiles()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return compile(copy.deepcopy(self._original, memo), **self._options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (self._original, self._options)


def _rebuild(module: torch.nn.Module, options: dict[str, Any]) -> Any:
    return compile(module, **options)


def _compiled_module(module: torch.nn.Module, run: _Runner, options: dict[str, Any]) -> Any:
    """An instance of a subclass of the module's class that shares the module's attributes."""
    kind = type(module)
    slots = ("_original", "_runner", "_options")
    body = {"__slots__": slots, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    new: Any = object.__new__(type(kind.__name__, (CompiledModule, kind), body))
    new.__dict__ = module.__dict__
    for name, value in zip(slots, (module, run, options)):
        object.__setattr__(new, name, value)
    if run.engine:
        set_engine(new, run.engine)
    return new


def _has_history(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is the result of a call that autograd has recorded."""
    leaves = tree_leaves((args, kwargs))
    return any(isinstance(x, torch.Tensor) and x.grad_fn is not None for x in leaves)
