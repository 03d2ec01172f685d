"""Random IR: every pipeline gives the same results, by the interpreter and by the code generators.

A module is grown (`random_ir`), or is what a random program (`growth.py`) was lowered to. It runs as it stands
by the reference interpreter (`ir_interpreter`); then a pipeline is drawn for a target, and the module runs by
the interpreter after all passes that keep it a tensor program, and as kernels: machine code, or Triton sources
in Triton's interpreter. StableHLO's reference interpreter, and engines that are installed, give second opinions of the
module as it stands, where they have forms for all of its ops.
"""

from __future__ import annotations

import functools
import random
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from codegen_harness import copies
from function_trace import trace_graph
from ir_interpreter import run_module
from random_ir import LARGE, SMALL, random_args, random_module
from stablehlo_interpreter import interpret
from triton_interpreter import run_program

from gflow.compiler.driver.compile import CompileOptions, compile_module
from gflow.compiler.driver.pass_manager import run_pipeline
from gflow.compiler.driver.pipelines import PipelineOptions, pipeline_for
from gflow.compiler.engines.form import call_of
from gflow.compiler.engines.forms import form_of, written_form
from gflow.compiler.engines.stablehlo.write import portable, write_function
from gflow.compiler.ir.modules import entry_function
from gflow.compiler.tools.reduce import reduce_text
from gflow.dialects.dialect import make_context
from gflow.dialects.mlir import ir
from gflow.dialects.types import type_of
from gflow.inspection.noise import Noise
from gflow.lowering import lower
from gflow.runtime import Executable
from gflow.runtime.engines.load import load_code
from gflow.runtime.engines.packages import available

from .campaign import Result
from .growth import grow
from .judge import REFUSALS, Verdict, apart, unexplained
from .run import compiled_text
from .settings import Settings
from .tensors import make

Tensor = torch.Tensor

#: elements of all values together up to which StableHLO's interpreter runs a module: it takes a microsecond for each
_INTERPRETED = 1 << 16

#: passes that code generation needs; all others are left out now and then
NEEDED = ("gflow-fuse", "gflow-materialize", "gflow-select-kernels", "gflow-plan-memory")
#: the first pass after which a module is no tensor program
_PLACES = "gflow-materialize"


@dataclass
class Subject:
    """A module as text, and its arguments."""

    text: str
    args: list[Tensor]
    kind: str


@functools.cache
def _context() -> ir.Context:
    return make_context()


def parse(text: str) -> ir.Module:
    with _context():
        return ir.Module.parse(text)


def _grown(seed: int, rng: random.Random) -> Subject:
    shapes = LARGE if rng.random() < 0.3 else SMALL
    count, updates = rng.randint(5, 50), rng.random() < 0.4
    contractions = rng.random() < 0.6
    module = random_module(_context(), seed, count, shapes, updates, contractions)
    return Subject(str(module), random_args(module, seed), "grown")


def _traced(seed: int, rng: random.Random) -> Subject | None:
    """What a random program is lowered to; None where it is refused, or raises."""
    program = grow(seed)
    if program.raises:
        return None
    program = replace(program, settings=Settings())
    _, tensors = make(program)
    closures = {t.name: tensors[t.name] for t in program.tensors if t.role == "closure"}
    build = compiled_text(program, False, closures)
    given = [tensors[t.name] for t in program.tensors if t.role != "closure"]
    given = [t.detach() for t in given]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = trace_graph("program", build, given, {}, {})
            module = lower(trace)
    except (*REFUSALS, RuntimeError, ValueError, TypeError, IndexError):
        return None  # what a trace takes is the other fuzzer's business
    by_value = [i.tensor for i in trace.inputs]
    args = [
        given[trace.input_leaves[i.value]] if t is None else t
        for i, t in zip(trace.inputs, by_value)
    ]
    function = next(iter(module.body.operations))
    if len(function.arguments) > len(args):
        args.append(torch.tensor([1234, 5]))
    return Subject(
        module.operation.get_asm(enable_debug_info=True), [a.detach() for a in args], "traced"
    )


def random_pipeline(rng: random.Random, target: str) -> str:
    """The target's pipeline with switches, and some of its passes left out."""
    options = PipelineOptions(
        straighten=rng.choice(("SpeedFirst", "MemoryFirst", "Disable", "OverlapCpuGpu")),
        compress_memory=rng.random() < 0.8,
        choose_best_allocation=rng.random() < 0.2,
        fuse_add_to_output=rng.random() < 0.7,
        fuse_cast_scale=rng.random() < 0.7,
        fuse_model_update_ops=rng.random() < 0.7,
        multi_tensor_update=rng.random() < 0.3,
    )
    text = pipeline_for(target, options)
    passes = text.removeprefix("builtin.module(func.func(").removesuffix("))").split(",")
    keep = 0.75 if rng.random() < 0.7 else 0.3
    kept = [p for p in passes if p.startswith(NEEDED) or rng.random() < keep]
    if rng.random() < 0.2:
        kept = [
            "gflow-fuse{max-ops=1 epilogues=false}" if p.startswith("gflow-fuse") else p
            for p in kept
        ]
    return f"builtin.module(func.func({','.join(kept)}))"


def _tensor_passes(pipeline: str) -> str:
    inner = pipeline.removeprefix("builtin.module(func.func(").removesuffix("))").split(",")
    first = next(i for i, p in enumerate(inner) if p.startswith(_PLACES))
    return f"builtin.module(func.func({','.join(inner[:first])}))"


def drawn(seed: int) -> tuple[Subject | None, str, str]:
    """A seed's module (None where its program is not traced), target and pipeline."""
    rng = random.Random(seed)
    subject = _grown(seed, rng) if rng.random() < 0.4 else _traced(seed, rng)
    target = rng.choice(("cpu", "cpu", "cpu", "cuda:90"))
    return subject, target, random_pipeline(rng, target)


def judge_ir(seed: int) -> Verdict:
    """One module, one pipeline."""
    subject, target, pipeline = drawn(seed)
    if subject is None:
        return Verdict("refused", "the program is not traced")
    return judge_subject(subject, target, pipeline)


def judged_ir(seed: int, shrink: float) -> tuple[Result, str | None]:
    """One seed for `campaign`; a find with its module, which is made smaller for `shrink` seconds."""
    start = time.process_time()
    subject, target, pipeline = drawn(seed)
    if subject is None:
        return Result(seed, "refused", "the program is not traced"), None
    verdict = judge_subject(subject, target, pipeline)
    found = Result(seed, verdict.status, verdict.detail, verdict.where)
    text = None
    if verdict.is_find:
        if shrink:
            subject = minimized(subject, target, pipeline, verdict, shrink)
            verdict = judge_subject(subject, target, pipeline)
        ops = sorted(set(re.findall(r'"gflow\.(\w+)"', subject.text)))
        name = f"{verdict.status} {verdict.where.split(' builtin')[0]} {' '.join(ops)}"
        found = Result(seed, verdict.status, verdict.detail, verdict.where, signature=name)
        text = f"// {target}: {pipeline}\n// {verdict.status}: {verdict.detail}\n{subject.text}\n"
    return replace(
        found, mode=f"{subject.kind} {target}", seconds=round(time.process_time() - start, 3)
    ), text


def minimized(
    subject: Subject, target: str, pipeline: str, verdict: Verdict, seconds: float
) -> Subject:
    """The smallest module found that has the same verdict, by `gflow-reduce`'s reductions. Where its arguments are
    no longer those of the whole, they are random."""

    def of(text: str) -> Subject:
        module = parse(text)
        args = random_args(module)
        same = [(a.shape, a.dtype) for a in args] == [(a.shape, a.dtype) for a in subject.args]
        return replace(subject, text=text, args=subject.args if same else args)

    def interesting(text: str) -> bool:
        try:
            found = judge_subject(of(text), target, pipeline)
        except (ir.MLIRError, RuntimeError, ValueError, TypeError, IndexError, KeyError):
            return False  # not valid, or nothing that the interpreter runs
        return (found.status, found.where) == (verdict.status, verdict.where) and (
            found.status != "crash" or found.detail[:60] == verdict.detail[:60]
        )

    return of(reduce_text(subject.text, interesting, seconds).text)


def judge_subject(subject: Subject, target: str, pipeline: str) -> Verdict:
    module = parse(subject.text)
    reference = functools.partial(run_module, module)
    with torch.no_grad():
        want = reference(copies(subject.args))
        wrong = _differs(subject, want, reference, _by_interpreter, pipeline, target)
        if wrong is None:
            run = _by_machine_code if target == "cpu" else _by_triton
            wrong = _differs(subject, want, reference, run, pipeline, target)
        for engine, form, by in _SECOND:
            given = engine is None or available(engine)
            if wrong is None and given and _fits(parse(subject.text), form, engine):
                wrong = _differs(subject, want, reference, by, pipeline, target)
    return wrong or Verdict("ok", where=f"{subject.kind} {target}")


def _by_interpreter(
    module: ir.Module, args: list[Tensor], pipeline: str, target: str
) -> list[Tensor]:
    run_pipeline(module, _tensor_passes(pipeline))
    return run_module(module, args)


def _by_machine_code(
    module: ir.Module, args: list[Tensor], pipeline: str, target: str
) -> list[Tensor]:
    program = compile_module(module, CompileOptions(target=target, pipeline=pipeline, threads=2))
    run = Executable(program)
    run.arena.fill_(0x7B)  # what nobody wrote is not zero
    return run(args)


def _by_triton(module: ir.Module, args: list[Tensor], pipeline: str, target: str) -> list[Tensor]:
    return run_program(
        compile_module(module, CompileOptions(target=target, pipeline=pipeline)), args
    )


def _fits(module: ir.Module, name: str, engine: str | None) -> bool:
    """Whether there is a form for every op, and the module is small enough for an interpreter."""
    form = form_of(name)
    with module.context:
        block = entry_function(module).regions[0].blocks[0]
        if any(type_of(x).dtype not in form.dtypes for x in block.arguments):
            return False
        ops = [o.operation for o in block.operations]
        ops = [o for o in ops if o.name.startswith("gflow.") and o.name != "gflow.check"]
        values = sum(type_of(x).numel for op in ops for x in op.results)
        if engine is None and values > _INTERPRETED:
            return False
        return not any(form.why_not(call_of(op)) for op in ops)


def _by_stablehlo_interpreter(
    module: ir.Module, args: list[Tensor], pipeline: str, target: str
) -> list[Tensor]:
    return interpret(write_function(entry_function(module), checks=True).module, args)


def _by_xla(module: ir.Module, args: list[Tensor], pipeline: str, target: str) -> list[Tensor]:
    function = entry_function(module)
    code = portable(write_function(function, checks=True).module)
    return load_code("xla", code).run(args, [None] * len(function.type.results))


def _by_onnxruntime(
    module: ir.Module, args: list[Tensor], pipeline: str, target: str
) -> list[Tensor]:
    # not installed everywhere
    from gflow.compiler.engines.onnx.write import write_function as write_onnx

    function = entry_function(module)
    model = write_onnx(function, checks=True, form=written_form("onnxruntime")).model
    code = load_code("onnxruntime", model.SerializeToString())
    return code.run(args, [None] * len(function.type.results))


Run = Callable[[ir.Module, "list[Tensor]", str, str], "list[Tensor]"]
#: what gives a second opinion: an engine, or an interpreter that is always there, whose form it runs, and how
_SECOND: tuple[tuple[str | None, str, Run], ...] = (
    (None, "xla", _by_stablehlo_interpreter),
    ("xla", "xla", _by_xla),
    ("onnxruntime", "onnxruntime", _by_onnxruntime),
)


def _differs(
    subject: Subject,
    want: Sequence[Tensor],
    reference: Callable[..., list[Tensor]],
    run: Run,
    pipeline: str,
    target: str,
) -> Verdict | None:
    name = run.__name__.strip("_").replace("_", " ")
    args = copies(subject.args)
    try:
        got = run(parse(subject.text), args, pipeline, target)
    except Exception as error:
        return Verdict(
            "crash",
            f"{type(error).__name__}: {' '.join(str(error).split())[:400]}",
            f"{name} {pipeline}",
        )

    def trials(n: int) -> Callable[[int], list[Tensor]]:
        def noisy(count: int) -> list[Tensor]:
            found = []
            for k in range(count):
                with Noise(101 * k + 1, 1.0 + k % 2):
                    found.append(reference(copies(subject.args))[n])
            return found

        return noisy

    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return Verdict(
                "mismatch", f"result {n}: {a.dtype}{list(a.shape)}, {b.dtype}{list(b.shape)}", name
            )
        a, b = a.clone(), b.clone()
        wrong = apart(a, b)
        if wrong.any():
            left = unexplained(wrong, a, b, None, trials(n))
            if left is not None:
                at = tuple(left.nonzero()[0].tolist())
                detail = f"result {n}: {int(left.sum())} of {left.numel()} at {list(at)}"
                return Verdict("mismatch", f"{detail} ({pipeline})", name)
    return None
