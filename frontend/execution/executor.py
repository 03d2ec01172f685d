"""From a trace to an executable: lowering, compiler, runtime."""

from __future__ import annotations

import functools
import io
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gflow.dialects.distribution.mesh import MESH
from gflow.dialects.program import Program
from gflow.dialects.records import record
from gflow.errors import GraphError, GraphInputError, GraphTraceError
from gflow.runtime.composed.frozen import Frozen, constants_of
from gflow.runtime.cpu import jit
from gflow.runtime.distributed import groups
from gflow.runtime.distributed.shared_work import done_once
from gflow.runtime.loading import load_program
from gflow.runtime.stored import cache, program_io
from gflow.runtime.tensors import on_host
from gflow.tracing.context.ranks import world_size
from gflow.tracing.context.watch import current
from gflow.tracing.data.global_tensors import axes_of
from gflow.tracing.data.trace import Trace

from .device import add_code, allow_tf32, for_tensors, gpu_of, tuned
from .frozen import freeze
from .programs import from_bytes, to_bytes

if TYPE_CHECKING:
    from gflow.compiler import CompileOptions, Programs

_log = logging.getLogger("gflow")

Runner = Callable[[list[torch.Tensor]], Any]


@record
class Compiled:
    """A compiled and loaded trace.

    Attributes: run: takes the arguments of the traced function in order, then, if `takes_rng`, an int64 tensor (seed,
    offset). ir: the module after all passes. timings: seconds by phase. options: the compiler's options. program: the
    program that `run` runs. shardings: for a trace of global tensors, the shardings of its results.
    """

    run: Runner
    takes_rng: bool
    ir: str = ""
    timings: dict[str, float] = field(default_factory=dict)
    options: Any = None
    program: Any = None
    shardings: list[Any] = field(default_factory=list)


def composed(run: Runner, parts: Sequence[Compiled]) -> Compiled:
    """A `Compiled` of several compiled parts: times are summed; IR, options and program are those of the first."""
    timings: dict[str, float] = {}
    for part in parts:
        for phase, seconds in part.timings.items():
            timings[phase] = timings.get(phase, 0.0) + seconds
    takes_rng = any(part.takes_rng for part in parts)
    return replace(parts[0], run=run, takes_rng=takes_rng, timings=timings)


@on_host()
def compile_trace(trace: Trace, options: Any = None) -> Compiled:
    """Lower, compile and load one trace."""
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler import CompileOptions
    from gflow.dialects.dialect import forget_contexts
    from gflow.lowering.global_view import has_gradients, result_shardings

    from .races import racing

    watcher = current()
    gpu = gpu_of(trace)
    options = replace(for_tensors(options or CompileOptions(), gpu), on_phase=watcher.phase)
    if trace.engines:
        options = replace(options, passes=replace(options.passes, module_engines=True))
    if options.passes.amp and options.target == "cpu":
        _say_slow()
    if options.target == "cpu":
        options = replace(options, on_kernels=jit.begin_kernels)
        if options.race_products:
            options = replace(options, racing=racing())
    watcher.traced(trace)
    if options.passes.freeze:
        freeze(trace, options.passes, options.target)
    watcher.phase("lower")
    start = time.perf_counter()
    module = _lowered(trace, options)
    shardings = [] if trace.mesh is None else result_shardings(module)
    if trace.mesh is not None:
        use_groups(trace.mesh)
        if options.passes.zero and not has_gradients(module):
            _check_shared(trace)
    lowered = time.perf_counter()
    takes_rng = _argument_count(module) > len(trace.inputs)
    made = _compile(module, options, trace)
    del module
    _check_divided(trace, made.main)
    programs = []
    for program in (made.main, made.prologue):
        if program is not None:
            add_code(program, options)
            programs.append(tuned(program, options, gpu))
    program, compiled = programs[0], time.perf_counter()
    watcher.phase("JIT")
    executable: Any = load_program(program, kept_results=options.kept_results, where=gpu)
    device = executable.device
    if made.prologue is not None:
        read = [trace.inputs[n] for n in made.reads]
        tensors: Any = [i.tensor for i in read]
        constants = constants_of(programs[1], [i.name for i in read], tensors, gpu)
        executable = Frozen(constants, made.reads, executable, made.given)
    loaded = time.perf_counter()
    timings = {"lower": lowered - start, **options.timing, "load": loaded - compiled}
    options = replace(options, on_phase=None, on_kernels=None, racing=None)
    forget_contexts()
    device.release_memory()
    return Compiled(executable, takes_rng, program.ir, timings, options, program, shardings)


def _check_shared(trace: Trace) -> None:
    """Check that state can be sharded.

    Raises:
        GraphTraceError: state is to be sharded over ranks with copies of parameters, and there are none.
    """
    made = {r for op in trace.ops for r in op.results}
    if made.isdisjoint(trace.reduced):
        return
    told = (
        f"along {', '.join(trace.data_axes)}, and the batch is not"
        if trace.data_axes
        else "by none"
    )
    raise GraphTraceError(
        f"{trace.name}: enable_zero() splits the state of ranks that have copies of the parameters and parts of the "
        f"batch. Of the mesh {dict(zip(axes_of(trace.mesh), trace.mesh.shape))}, parameters are copied {told} split "
        "there. Split the batch along a dimension along which no parameter is split (gflow.to_global(x, placement, "
        "[gflow.sbp.split(0), gflow.sbp.broadcast])), or leave enable_zero() out."
    )


def _check_divided(trace: Trace, program: Program) -> None:
    """Check the use of sharded tensors.

    Raises:
        GraphTraceError: the program reads a tensor of which ranks have shards as a whole.
    """
    for given, argument in zip(trace.inputs, program.arguments):
        if given.value in trace.divided and argument.pieces is None:
            raise GraphTraceError(
                f"{trace.name}: {given.role} {given.name!r} belongs to a module of fully_shard(), and its update needs "
                "the whole of it; use an optimizer that updates elements by themselves (SGD, AdamW, ...), or "
                "DistributedDataParallel with config.enable_zero()."
            )


@functools.cache
def _say_slow() -> None:
    """Warn once in a process that mixed precision saves no time on a processor."""
    _log.warning(
        "enable_amp() on the CPU saves memory, not time: products in half precision are computed in float32 "
        "(docs/mixed_precision.md)"
    )


def use_groups(mesh: Any) -> None:
    """Register the process groups of a `DeviceMesh` for programs over it that are loaded next.

    Raises:
        GraphInputError: the order of ranks in the mesh differs from that in the process group of a dimension.
    """
    sizes = dict(zip(axes_of(mesh), mesh.shape))
    here = mesh.get_coordinate()
    for n, axis in enumerate(sizes):
        group = mesh.get_group(n)
        if here is not None and dist.get_rank(group) != here[n]:
            raise GraphInputError(
                f"the ranks of {mesh} are not in ascending order along {axis!r}, so the shards of a tensor "
                "would be gathered in another order than they were split; list the ranks in ascending order."
            )
        groups.use(sizes, (axis,), group)


def program_of(trace: Trace, options: Any) -> Any:
    """The program of a trace, without machine code for a GPU."""
    return _compile(_lowered(trace, options), options, trace).main


def _lowered(trace: Trace, options: Any, which: int = 0) -> Any:
    """The module of a trace. which: the first or second stand-ins of its dynamic dimensions."""
    # start-up: the compiler is loaded by the first compilation
    from gflow.lowering import lower

    passes = options.passes
    return lower(trace, which, options.target, halves=bool(passes.amp), for_onnx=passes.for_onnx)


def programs_for(
    trace: Trace, options: CompileOptions, target: str, code: bool = True
) -> list[Program]:
    """The programs of a trace for another target than it was compiled for; there are two for a step in micro-batches.
    code: with machine code.

    Raises:
        ValueError: the target is unknown.
        KernelError: a kernel does not compile.
    """
    options = replace(options, target=target, timing={})
    found = []
    for part in trace.parts or (trace,):
        program = program_of(part, options)
        if code:
            add_code(program, options, always=True)
        found.append(program)
    return found


def _compile(module: Any, options: Any, trace: Trace) -> Programs:
    """The programs of a module: from the disk cache, from another rank that runs it as well, or compiled."""
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler import compile_programs, resolve
    from gflow.compiler.driver.pass_manager import PipelineError
    from gflow.compiler.ir.errors import BudgetError

    allow_tf32(module, options)

    def compiled() -> Programs:
        twin = None if trace.size is None else _lowered(trace, options, 1)
        if twin is not None:
            allow_tf32(twin, options)
        try:
            return compile_programs(module, options, twin)
        except PipelineError as error:
            cause = error.__cause__
            if not isinstance(cause, BudgetError):
                raise
            raise GraphError(
                f"{trace.name}: {cause}; set a larger one: config.set_memory_budget({cause.least})"
            ) from None

    shared = MESH in module.operation.attributes and world_size() > 1
    if cache.directory() is None and not shared:
        return compiled()
    start = time.perf_counter()
    code = io.BytesIO()
    module.operation.write_bytecode(code)
    name = cache.key(code.getvalue(), repr(resolve(options)))
    data = cache.read("programs", name) if cache.directory() is not None else None
    made: Any = None
    if data is None and shared and dist.get_backend() != "fake":

        def make() -> bytes:
            nonlocal made
            made = compiled()
            return to_bytes(made)

        current().phase("compile on one rank")
        data = done_once(name, trace.name, make)
    if made is None and data is not None:
        current().phase("cache")
        try:
            programs = from_bytes(data)
        except program_io.ProgramError as error:
            cache.discard("programs", name, str(error))
            data = None
        else:
            options.timing["cache"] = time.perf_counter() - start
            return programs
    programs = compiled() if made is None else made
    if cache.directory() is not None:
        cache.write("programs", name, data or to_bytes(programs))
    return programs


def _argument_count(module: Any) -> int:
    function = next(iter(module.body.operations))
    return len(function.arguments)
