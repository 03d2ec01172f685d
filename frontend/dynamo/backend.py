"""The backend function of `torch.compile(model, backend="gflow")`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.backends.common import aot_autograd

from gflow.call.plans.cache import share_buffers, use_arena
from gflow.execution.executor import compile_trace
from gflow.lowering.dtypes import LoweringError, Unsupported
from gflow.runtime.arena import Arena
from gflow.tracing.context.saved_hooks import eager_within_hooks
from gflow.tracing.data.sizes import Fixed
from gflow.tracing.dispatch.eager_random import decompositions

from .margin_losses import with_margin_losses
from .overlaps import with_results_apart, written_in_memory
from .pieces import in_pieces
from .program import FxProgram, boxed
from .recompute import partition
from .refused_calls import RefusedCalls, check_apart, keep_assertions
from .returned_views import with_views_outside
from .row_major import with_row_major_matrices
from .scalar_updates import remainders_specialized, scalar_updates_kept
from .scalars import numbers_in
from .shared_inputs import SHARED, apart_in_each_call, updated_in_shared_memory
from .size_products import with_binary_products
from .sizes import SizedProgram, hints_of, is_symbolic
from .trace_fx import FxTrace, Untraceable, trace_fx

if TYPE_CHECKING:
    from gflow.compiler import CompileOptions

_log = logging.getLogger("gflow")


def gflow(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: CompileOptions | dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of TorchDynamo's, for inference or with its backward.

    Where TorchDynamo marked sizes as dynamic, a program covers a range of one or two of them, and there is one program
    for each combination of the others. A graph has at most 16 programs; calls that none of them covers run op by op.

    Args:
        module: the graph.
        example_inputs: fake or real tensors and numbers, one for each placeholder.
        options: a `gflow.compiler.CompileOptions`, or a dict of its fields.
        mode: "default" or None; an argument of `torch.compile` that gflow does not use.

    Returns:
        A function with the graph's arguments and results.

    Raises:
        ValueError: `mode` is another one.
        TypeError: `options` has another type.
        GraphTraceError: eager's kernels refuse a call of the graph.
    """
    if mode not in (None, "default"):
        raise ValueError(f"backend 'gflow' has no mode {mode!r}; leave it out")
    chosen = _options(options)
    chosen = replace(chosen, eager_random=_as_eager(chosen, example_inputs))
    shared = updated_in_shared_memory(module)
    if shared is not None:
        _log.warning(SHARED, *shared)
        return module.forward  # type: ignore[no-any-return]
    check_apart(module)
    keep_assertions(module)
    arena = Arena()  # a graph's forward and backward never run at the same time
    forward, backward = (
        partial(_compile, options=chosen, arena=arena, phase=p) for p in ("forward", "backward")
    )
    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=forward,
        partition_fn=partition,
        decompositions=decompositions() if chosen.eager_random else None,
        keep_inference_input_mutations=True,
    )
    with scalar_updates_kept(module), remainders_specialized(), RefusedCalls():
        compiled = with_views_outside(
            module,
            lambda graph: compiler(
                written_in_memory(
                    with_results_apart(with_row_major_matrices(with_margin_losses(graph)))
                ),
                example_inputs,
            ),
        )
    return eager_within_hooks(module, apart_in_each_call(module, compiled))


def _as_eager(options: CompileOptions, example_inputs: Sequence[Any]) -> bool:
    """Whether random ops draw eager's numbers: by the option, or, for graphs on the CPU, by Inductor's switch of this
    meaning."""
    if options.eager_random:
        return True
    config = sys.modules.get("torch._inductor.config")  # nobody has set it if it is not loaded
    if config is None or not config.fallback_random:
        return False
    return all(t.device.type == "cpu" for t in example_inputs if isinstance(t, torch.Tensor))


def _options(given: Any) -> CompileOptions:
    # imported here for start-up time: the first compilation loads the compiler
    from gflow.compiler import CompileOptions

    if given is None:
        return CompileOptions()
    if isinstance(given, dict):
        return CompileOptions(**given)
    if isinstance(given, CompileOptions):
        return given
    raise TypeError(
        "backend 'gflow' takes options as a gflow.compiler.CompileOptions or as a dict of its fields; "
        f"got {type(given).__name__}"
    )


def _compile(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: CompileOptions,
    arena: Arena,
    phase: str,
    part_of: torch.fx.GraphModule | None = None,
) -> Any:
    """Compile one graph of functional ATen ops, as a compiler of AOTAutograd.

    Args:
        phase: "forward" or "backward".
        part_of: the graph that `module` is a piece of.

    Returns:
        A function of a list of arguments. A graph that cannot be one program is partitioned, or runs op by op. None,
            with
        `part_of`, if the piece cannot be compiled.
    """
    with_binary_products(module)
    # a piece's outputs that share memory are not the graph's (`in_pieces`), nor are gradients views of each other
    views = phase == "forward" and part_of is None
    trace = partial(trace_fx, module, f"compiled_{phase}", phase, views)
    load = partial(_load, options=options, arena=arena)
    in_eager = partial(_interpret, module)
    with torch.utils._python_dispatch._disable_current_modes():
        try:
            _check_devices(example_inputs)
            if not any(map(is_symbolic, example_inputs)):
                return boxed(load(trace()), in_eager)
            program = _sized(module, phase, trace, load)
        except (Fixed, Untraceable, LoweringError, Unsupported) as error:
            if part_of is not None:
                return None
            again = partial(_compile, options=options, arena=arena, phase=phase, part_of=module)
            return boxed(_divided(module, again, phase, views, error), in_eager)
    return boxed(program, in_eager)


def _sized(
    module: torch.fx.GraphModule, phase: str, trace: Any, load: Callable[[FxTrace], Any]
) -> SizedProgram:
    """A program for a graph with symbolic sizes and numbers.

    Symbols that are not sizes become inputs where all ops that read them allow it, and constants otherwise.

    Raises:
        Fixed, Untraceable, LoweringError, Unsupported: the graph cannot be one program.
    """

    def program(numbers: dict[Any, int]) -> SizedProgram:
        run = partial(_interpret, module)
        made = SizedProgram(
            module, phase, lambda f: trace(formulas=f, numbers=numbers), load, run, numbers
        )
        made.prepare(hints_of(module))
        return made

    numbers = numbers_in(module)
    if numbers:
        try:
            return program(numbers)
        except (Fixed, LoweringError, Unsupported) as error:
            names = ", ".join(map(str, numbers))
            _log.info(
                "torch.compile: the %s graph is compiled for values of %s; %s", phase, names, error
            )
    return program({})


def _divided(
    module: torch.fx.GraphModule, compile: Any, phase: str, views: bool, error: Exception
) -> Callable[[list[Any]], Any]:
    """A graph that cannot be one program because of `error`: several programs, or op by op."""
    with torch.utils._python_dispatch._disable_current_modes():
        found = in_pieces(module, views, compile)
    if found is None:
        _log.warning(
            "torch.compile: the %s graph runs through PyTorch op by op; gflow cannot compile %s%s",
            phase,
            error,
            _way_out(error),
        )
        return partial(_interpret, module)
    divided, left = found
    _log.warning(
        (
            "torch.compile: the %s graph is split into several programs, with %s through PyTorch; gflow "
            "cannot compile %s%s"
        ),
        phase,
        ", ".join(left),
        error,
        _way_out(error),
    )
    return partial(_interpret, divided)


def _way_out(error: Exception) -> str:
    """What to do about a graph that cannot be one program."""
    if not isinstance(error, Fixed):
        return ""
    return (
        ". A size, a stride or a number there is not a polynomial of the sizes of the arguments: "
        "torch.compile(dynamic=False) compiles a program for each size; a number out of a tensor (.item()) can stay a "
        "tensor"
    )


def _load(found: FxTrace, options: CompileOptions, arena: Arena) -> FxProgram:
    compiled = compile_trace(found.trace, replace(options, timing={}))
    use_arena(compiled.run, arena)
    share_buffers(compiled.run, found.saved)
    return FxProgram(found, compiled)


def _check_devices(example_inputs: Sequence[Any]) -> None:
    """Check that all tensors are on one device, a CPU or a GPU; 0-d tensors may stay on the CPU.

    Raises:
        Untraceable: they are not.
    """
    found = {t.device for t in example_inputs if isinstance(t, torch.Tensor) and t.ndim}
    for device in found:
        if device.type not in ("cpu", "cuda"):
            raise Untraceable(f"a tensor on {device}")
    if len(found) > 1:
        raise Untraceable(f"tensors on {' and '.join(sorted(map(str, found)))}")


def _interpret(module: torch.fx.GraphModule, args: list[Any]) -> Any:
    given = list(args)
    args.clear()
    return module(*given)
