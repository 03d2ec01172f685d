"""Compiles a module in the dialect to a program that the runtime can run."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from gflow.dialects.dialect import make_context
from gflow.dialects.extents import Symbol, guesses, size_of_program
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import VerifyError
from gflow.dialects.program import OnKernels, Program, Race
from gflow.dialects.program.form import seal

from ..ir.diagnostics import Diagnostic, at_operation
from ..ir.dynamic_sizes import SizeError, join, symbol_of
from ..ir.errors import CompileError
from ..ir.frozen import GIVEN, PROLOGUE
from ..ir.modules import entry_function, functions, split_functions
from ..memory.analyses import analyses_kept
from ..targets import parse_target
from .internal import blamed, debugging, internal_error
from .options import CompileOptions, Programs, Resolved, resolve
from .pass_manager import CODE_GENERATION, PipelineError, kept, run_pipeline
from .reproducer import Writer, writer_for

#: the last passes of every compilation
_SELECTS = "gflow-select-kernels"
#: no later pass changes the types of products and of attention
_FUSES = "gflow-fuse"
VERIFIED = "builtin.module(func.func(gflow-verify-memory))"


def compile_module(
    module: ir.Module, options: CompileOptions | None = None, twin: ir.Module | None = None
) -> Program:
    """Run the target's pipeline on `module` (in place), and generate code for its function.

    twin: for a module with a dynamic dimension, the same module with the second prime that represents the dimension
        (`gflow.dialects.extents`). What differs between the two programs depends on the dimension.

    Raises:
        PipelineError: a pass or code generation failed.
        CompileError: the module has no function, or the program cannot depend on the dynamic dimension.
        ValueError: the target is unknown.
    """
    return compile_programs(module, options, twin).main


def compile_programs(
    module: ir.Module, options: CompileOptions | None = None, twin: ir.Module | None = None
) -> Programs:
    """As `compile_module`, with the prologue that `gflow-freeze` may have split off.

    Raises:
        CompileError: also if the module has a dynamic dimension but no twin, or the target supports static sizes only.
    """
    symbol = symbol_of(module.operation)
    if symbol is None:
        return _compile(module, options)
    other = None if twin is None else symbol_of(twin.operation)
    if twin is None or other is None:
        raise CompileError(
            f"the module has a dynamic dimension, {symbol}, so it must be compiled together with its twin"
        )
    options = options or CompileOptions()
    if parse_target(options.target).gpu:
        raise CompileError(
            f"the module has a dynamic dimension, {symbol} (gflow.dynamic_dim), which {options.target} does not "
            "support yet"
        )
    with guesses() as first:
        made = _compile(module, options)
    quiet = replace(options, reproducer_dir="", on_phase=None, on_kernels=None)
    with guesses() as again:
        # the same passes have just succeeded on `module`
        check = _compile(twin, quiet, verify=False)
    if first & again:
        raise SizeError(f"{min(first & again)} is a constant, and is taken for a size")
    if (made.given, made.reads) != (check.given, check.reads):
        raise CompileError("which values are computed once depends on the dynamic size")
    joined = join(made.main, check.main, (symbol, other))
    joined.seal = seal(joined)
    return replace(made, main=joined)


def _compile(module: ir.Module, options: CompileOptions | None, verify: bool = True) -> Programs:
    options = options or CompileOptions()
    resolved = resolve(options)
    entry = entry_function(module)
    name = ir.StringAttr(entry.attributes["sym_name"]).value
    writer = writer_for(name, options.reproducer_dir)
    tell = options.on_phase or (lambda name, detail: None)
    racing = options.racing if resolved.blas else None
    races: list[Race] = []
    begun: set[str] = set()  # names of kernels

    def instrument(when: str, name: str, root: ir.Operation) -> None:
        if when == "before":
            tell("passes", name)
            if name == _FUSES and options.on_kernels is not None:
                begun.update(_begin_kernels(module, resolved, options.on_kernels))
        elif when == "after" and name == _SELECTS and racing is not None and resolved.isa:
            # start-up: a cached program needs no selection of kernels
            from .attention_races import race_attentions
            from .races import race_products

            tell("passes", "races of kernels")
            start = time.perf_counter()
            for function in functions(module):
                races.extend(race_products(function, racing, resolved.threads, resolved.isa))
                races.extend(race_attentions(function, racing, resolved.threads, resolved.isa))
            options.timing["race"] = options.timing.get("race", 0.0) + time.perf_counter() - start

    with analyses_kept():  # code generation uses what the last passes have read and described
        run_pipeline(
            module,
            resolved.pipeline,
            verify=verify,
            verify_last=False,
            timing=options.timing,
            reproducer=writer,
            instrument=instrument,
        )

        def check(reproducer: Writer | None) -> None:
            # for any pipeline: no program is returned whose memory plan is not verified
            run_pipeline(
                module,
                VERIFIED,
                verify=verify,
                verify_last=False,
                timing=options.timing,
                reproducer=reproducer,
            )

        tell("codegen", "")
        start = time.perf_counter()
        symbol = symbol_of(module.operation)
        try:
            with module.context, _reproducible(module, writer):
                programs = [
                    _program(one, symbol, resolved, races, options.on_kernels, begun)
                    for one in split_functions(module)
                ]
                given = [_given(function) for function in functions(module)]
        except PipelineError:
            check(None)  # an invalid module would be the cause, and its error says more
            raise
        options.timing["codegen"] = time.perf_counter() - start
        check(writer)  # while threads compile the kernels
    if len(programs) == 1:
        return Programs(programs[0])
    return Programs(programs[0], programs[1], given[0], given[1])


def _begin_kernels(module: ir.Module, resolved: Resolved, on_kernels: OnKernels) -> set[str]:
    """Begin to compile kernels that do not depend on the passes that follow. Returns their names."""
    if parse_target(resolved.target).gpu:
        return set()
    # start-up: a cached program needs no code generation
    from ..emit.cpu.early import early_kernels

    begun: set[str] = set()
    for function in functions(module):
        kernels, declared = early_kernels(function, resolved.threads, resolved.blas, resolved.isa)
        if kernels:
            on_kernels(kernels, declared)
        begun.update(kernels)
    return begun


def _program(
    module: ir.Module,
    symbol: Symbol | None,
    resolved: Resolved,
    races: list[Race],
    on_kernels: OnKernels | None,
    begun: Collection[str],
) -> Program:
    """Generate the program of a module with one planned function."""
    entry = entry_function(module)
    if PROLOGUE in entry.attributes:
        symbol = None
    with size_of_program(symbol):
        program = _generate(entry, resolved, on_kernels, begun)
    program.ir = module.operation.get_asm(enable_debug_info=True, assume_verified=True)
    program.races = [replace(r, step=n) for r in races if (n := _step_of(r, program)) is not None]
    program.seal = seal(program)
    return program


def _given(function: func.FuncOp) -> tuple[int, ...]:
    """The attribute `gflow.given` of a function, as numbers."""
    attributes = function.operation.attributes
    return tuple(ir.DenseI64ArrayAttr(attributes[GIVEN])) if GIVEN in attributes else ()


def _step_of(race: Race, program: Program) -> int | None:
    """The number of the first step of a race's op; None if the op has no step."""
    labels = (getattr(step, "label", "") for step in program.steps)
    return next((n for n, label in enumerate(labels) if label == race.label), None)


def _generate(
    entry: func.FuncOp,
    resolved: Resolved,
    on_kernels: OnKernels | None = None,
    begun: Collection[str] = (),
) -> Program:
    """Generate the target's code for a planned function."""
    target = parse_target(resolved.target)
    if target.gpu:
        # start-up: only the code generator that is used is loaded
        from ..emit.triton import build as triton

        return triton.build_program(entry, target)
    # start-up: only the code generator that is used is loaded
    from ..emit.cpu import build as cpu

    return cpu.build_program(
        entry, threads=resolved.threads, blas=resolved.blas, on_kernels=on_kernels, begun=begun
    )


def generate_planned(text: str, target: str, threads: int, twin: str = "") -> Program:
    """Generate the program of a module in textual form whose memory is planned. The plan is verified; no pass is run.

    twin: for a module with a dynamic dimension, the same with the second prime that represents it; "" without.

    Raises:
        CompileError: the target is unknown; the text exceeds the limits or is invalid; its memory plan is not sound;
            no code can be generated for it; or the program cannot depend on the dynamic dimension.
    """
    program, symbol = _generate_planned(text, target, threads)
    if symbol is None:
        return program
    check, other = _generate_planned(twin, target, threads)
    if other is None or (symbol.name, symbol.least, symbol.most) != (
        other.name,
        other.least,
        other.most,
    ):
        raise CompileError(f"the IR has a size, {symbol}, and its twin another")
    program = join(program, check, (symbol, other))
    program.seal = seal(program)
    return program


def _generate_planned(text: str, target: str, threads: int) -> tuple[Program, Symbol | None]:
    # start-up: most programs come from traces
    from ..memory.plan_check import problems
    from .inputs import parse

    try:
        parse_target(target)
    except ValueError as error:
        raise CompileError(str(error)) from None
    diagnostics: list[Diagnostic] = []
    context = make_context()
    root = parse(text, "the IR", context, diagnostics)
    if root is None:
        raise CompileError(diagnostics[0].message if diagnostics else "the IR is not valid")
    with context:
        symbol = symbol_of(root)
    with context, size_of_program(symbol):
        function = entry_function(root.opview)
        for problem, op in problems(function):
            raise CompileError(f"its memory plan is not sound: {problem} ('{op.name}')")
        try:
            program = _generate(function, resolve(CompileOptions(target=target, threads=threads)))
        except VerifyError as error:  # of a `gflow.kernel` that no pass has written
            raise CompileError(str(error)) from None
    program.ir = text
    program.seal = seal(program)
    return program, symbol


@contextmanager
def _reproducible(module: ir.Module, writer: Writer | None) -> Iterator[None]:
    """A context for code generation: a failure becomes a diagnostic and writes a reproducer."""
    if writer is not None:
        writer.before(module.operation, "builtin.module()", False)
    try:
        yield
    except Exception as error:
        if debugging():
            raise
        if isinstance(error, CompileError):
            found = [at_operation(blamed(error, module.operation), "error", str(error))]
        else:
            found = [internal_error(error, CODE_GENERATION, module.operation)]
        if writer is not None:
            found.append(kept(writer.path))
        raise PipelineError(CODE_GENERATION, found) from None
    if writer is not None:
        writer.succeeded()
