"""From a trace to an executable: lowering, compiler, runtime."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gflow.dialects.program import Program, processor
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

from .device import add_code, allow_tf32, for_tensors, gpu_of, tf32_kinds
from .frozen import freeze
from .programs import check, from_bytes, to_bytes
from .trace_text import text_of
from .tuning import group_races, kept_races, races_groups, tuned

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

    watcher = current()
    gpu = gpu_of(trace)
    options = replace(for_tensors(options or CompileOptions(), gpu), on_phase=watcher.phase)
    if trace.engines:
        options = replace(options, passes=replace(options.passes, module_engines=True))
    amp = options.passes.amp
    if amp and options.target == "cpu" and not (amp == "bf16" and processor.multiplies_bfloat16()):
        _say_slow(processor.multiplies_bfloat16())
    watcher.traced(trace)
    if options.passes.freeze:
        freeze(trace, options.passes, options.target)
    options, made, takes_rng, shardings, programs = _for_device(trace, options, gpu)
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
    timings = {**options.timing, "load": loaded - compiled}
    options = replace(options, on_phase=None)
    dialect = sys.modules.get("gflow.dialects.dialect")  # a stored program needs none
    if dialect is not None:
        dialect.forget_contexts()
    device.release_memory()
    return Compiled(executable, takes_rng, program.ir, timings, options, program, shardings)


def _for_device(
    trace: Trace, options: CompileOptions, gpu: torch.device | None
) -> tuple[CompileOptions, Programs, bool, list[Any], list[Program]]:
    """The options and programs of a trace, whether they take a seed, the shardings of the trace's results; and the main
    program and the prologue, if there is one, with code for the device.

    Where contractions were faster apart from their epilogues, the options name the groups, and the trace was compiled
    again with them.
    """
    made, takes_rng, shardings = _made(trace, options)
    if not races_groups(options, made.main, gpu):
        return options, made, takes_rng, shardings, _with_code(made, options, gpu)
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.driver.group_races import faster_apart, with_races

    # adding code changes the seals
    seals = [program.seal for program in (made.main, made.prologue) if program is not None]
    races, programs = kept_races(seals, options, gpu), None
    if races is None:
        programs = _with_code(made, options, gpu)
        races = group_races(seals, programs, options, gpu)
    groups = faster_apart(races)
    if groups:
        groups = tuple(sorted({*options.passes.unfused, *groups}))
        options = replace(options, passes=replace(options.passes, unfused=groups))
        made, takes_rng, shardings = _made(trace, options)
    if groups or programs is None:
        programs = _with_code(made, options, gpu)
    device = torch.cuda.get_device_name(gpu)
    programs = [with_races(program, races, device) for program in programs]
    return options, made, takes_rng, shardings, programs


def _made(trace: Trace, options: CompileOptions) -> tuple[Programs, bool, list[Any]]:
    """The programs of a trace, whether they take a seed, and the shardings of the trace's results."""
    start = time.perf_counter()
    name = _name(trace, options)
    stored = None if name is None else _stored(name, options, start)
    if stored is None:
        stored, shardings = _lowered_and_compiled(trace, options, name)
    else:
        shardings = []
    made, takes_rng = stored
    _check_divided(trace, made.main)
    return made, takes_rng, shardings


def _with_code(made: Programs, options: CompileOptions, gpu: torch.device | None) -> list[Program]:
    """The main program and the prologue, if there is one, with code for the device."""
    programs = []
    for program in (made.main, made.prologue):
        if program is not None:
            add_code(program, options)
            programs.append(tuned(program, options, gpu))
    return programs


def _name(trace: Trace, options: CompileOptions) -> str | None:
    """The name of a trace's programs in the cache: of all that lowering and the compiler read. None without a cache,
    or where that is more than the text of the trace."""
    text = None if cache.directory() is None else text_of(trace)
    if text is None:
        return None
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler import resolve

    read = (
        bool(options.passes.amp), options.passes.for_onnx, tf32_kinds(), options.race_products,
        torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return cache.key("trace", text, repr(read), repr(resolve(options)))


def _stored(name: str, options: CompileOptions, start: float) -> tuple[Programs, bool] | None:
    """The programs of this name in the cache, and whether they take a seed; None if there are none."""
    data = cache.read("programs", name)
    if data is None:
        return None
    current().phase("cache")
    try:
        found = from_bytes(data, checked=True)
    except program_io.ProgramError as error:
        cache.discard("programs", name, str(error))
        return None
    options.timing["cache"] = time.perf_counter() - start
    return found


def _lowered_and_compiled(
    trace: Trace, options: CompileOptions, name: str | None
) -> tuple[tuple[Programs, bool], list[Any]]:
    """The programs of a trace, whether they take a seed, and the shardings of the trace's results. name: that under
    which the cache does not have the programs; None if the name depends on the module."""
    # start-up: a stored program needs neither lowering nor the bindings of MLIR
    from gflow.lowering.global_view import has_gradients, result_shardings

    from .races import racing

    if options.target == "cpu":
        options = replace(options, on_kernels=jit.begin_kernels)
        if options.race_products:
            options = replace(options, racing=racing())
    current().phase("lower")
    start = time.perf_counter()
    module = _lowered(trace, options)
    shardings = [] if trace.mesh is None else result_shardings(module)
    if trace.mesh is not None:
        use_groups(trace.mesh)
        if options.passes.zero and not has_gradients(module):
            _check_shared(trace)
    options.timing["lower"] = time.perf_counter() - start
    takes_rng = _argument_count(module) > len(trace.inputs)
    if takes_rng and options.eager_random:
        raise GraphTraceError(
            f"{trace.name}: an op draws random numbers of gflow's own, and the option eager_random asks for those of "
            "eager, which gflow does not draw for this op. Draw them outside, and pass them in."
        )
    return (_compile(module, options, trace, takes_rng, name), takes_rng), shardings


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
def _say_slow(bfloat16: bool) -> None:
    """Warn once in a process that mixed precision saves no time on a processor. bfloat16: it does in that type."""
    other = "; dtype=torch.bfloat16 is faster on this processor" if bfloat16 else ""
    _log.warning(
        "enable_amp() on the CPU saves memory, not time: products in half precision are computed in float32 "
        "(docs/mixed_precision.md)%s",
        other,
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
    module = _lowered(trace, options)
    return _compile(module, options, trace, _argument_count(module) > len(trace.inputs)).main


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
    passes = options.passes
    if target != options.target:  # what was measured on one device says nothing of another
        passes = replace(passes, unfused=())
    options = replace(options, target=target, passes=passes, timing={})
    found = []
    for part in trace.parts or (trace,):
        program = program_of(part, options)
        if code:
            add_code(program, options, always=True)
        found.append(program)
    return found


def _compile(
    module: Any, options: Any, trace: Trace, takes_rng: bool, name: str | None = None
) -> Programs:
    """The programs of a module: from the disk cache, from another rank that runs it as well, or compiled.

    name: that under which the cache does not have them; None if their name is a hash of the module.
    """
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler import compile_programs, resolve
    from gflow.compiler.driver.pass_manager import PipelineError
    from gflow.compiler.ir.errors import BudgetError
    from gflow.dialects.distribution.mesh import MESH

    allow_tf32(module, options)

    def compiled() -> Programs:
        twin = None if trace.size is None else _lowered(trace, options, 1)
        if twin is not None:
            allow_tf32(twin, options)
        try:
            return _checked(compile_programs(module, options, twin), trace)
        except PipelineError as error:
            cause = error.__cause__
            if not isinstance(cause, BudgetError):
                raise
            raise GraphError(
                f"{trace.name}: {cause}; set a larger one: config.set_memory_budget({cause.least})"
            ) from None

    shared = MESH in module.operation.attributes and world_size() > 1
    cached = cache.directory() is not None
    if not cached and not shared:
        return compiled()
    if name is None or shared:
        start = time.perf_counter()
        code = io.BytesIO()
        module.operation.write_bytecode(code)
        name = cache.key(code.getvalue(), repr(resolve(options)))
        found = _stored(name, options, start) if cached else None
        if found is not None:
            return found[0]
    made: Any = None
    if shared and dist.get_backend() != "fake":

        def make() -> bytes:
            nonlocal made
            made = compiled()
            return to_bytes(made, takes_rng)

        current().phase("compile on one rank")
        given = done_once(name, trace.name, make)
        if made is None and given is not None:
            current().phase("cache")
            with contextlib.suppress(
                program_io.ProgramError
            ):  # of another version: this rank compiles, too
                made = from_bytes(given)[0]
    programs = compiled() if made is None else made
    if cached:
        cache.write("programs", name, to_bytes(programs, takes_rng))
    return programs


def _checked(programs: Programs, trace: Trace) -> Programs:
    """Programs, after the check that stored programs have.

    Raises:
        CompileError: a program would access memory outside of its arguments or its arena.
    """
    # start-up: the compiler is loaded by the first compilation
    from gflow.compiler.ir.errors import CompileError

    try:
        check(programs)
    except program_io.ProgramError as error:
        raise CompileError(
            f"{trace.name}: gflow compiled a program that is wrong, and does not run it: {error}. Please report this."
        ) from None
    return programs


def _argument_count(module: Any) -> int:
    function = next(iter(module.body.operations))
    return len(function.arguments)
