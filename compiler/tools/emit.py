"""`gflow-opt --emit=FORM`: an emitter for each form, by name.

An emitter takes the module after the passes and returns text. Another code generator adds its own:

    EMITTERS["triton"] = my_function      # (module: ir.Operation, options: EmitOptions) -> str
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from gflow.dialects.mlir import PassManager, func, ir
from gflow.dialects.program import KERNEL_LOWERING, KernelStep, Program
from gflow.dialects.program.processor import NO_BF16_LINE, without

from ..driver.pipeline_text import nearest
from ..ir.dynamic_sizes import sized
from ..kernel.selection.choice import selected_for
from ..memory.planned import NotPlanned, PlanReading, read_plan
from ..reports.timeline import StepOnRanks, mesh_with, step_on_ranks
from ..reports.visual.dot import dot
from ..targets import Target, parse_target
from ..targets.links import network_of


class EmitError(ValueError):
    """The module cannot be printed in this form. The message says why, and what to do."""


@dataclass
class EmitOptions:
    """Options of emitters.

    target: the target of the kernels. timing: receives the seconds of each phase. network: the network between ranks;
    by default that of the target's device."""

    target: str = "cpu"
    timing: dict[str, float] = field(default_factory=dict)
    network: str = ""
    mesh: str = ""


Emitter = Callable[[ir.Operation, EmitOptions], str]


def emit(form: str, module: ir.Operation, options: EmitOptions) -> str:
    """The module in the given form, as text.

    Raises:
        EmitError: the form is unknown, or does not exist for this module.
        CompileError: code generation does not support an op.
    """
    check_form(form)
    with module.context:
        return EMITTERS[form](module, options)


def check_form(form: str) -> None:
    """
    Raises:
        EmitError: there is no such form.
    """
    if form != "mlir" and form not in EMITTERS:
        known = ", ".join(["mlir", *EMITTERS])
        raise EmitError(f"no form '{form}' to emit{nearest(form, EMITTERS)} (known: {known})")


def functions(module: ir.Operation) -> list[func.FuncOp]:
    """The functions of a module that have a body.

    Raises:
        EmitError: there are none.
    """
    inside = [module] if module.name == "func.func" else [
        o.operation for region in module.regions for block in region for o in block.operations
    ]  # fmt: skip
    views = [o.opview for o in inside]
    found = [v for v in views if isinstance(v, func.FuncOp) and len(v.regions[0].blocks) > 0]
    if not found:
        raise EmitError("the module has no function with a body")
    return found


# -- kernels


def _cpu_programs(module: ir.Operation) -> list[Program]:
    # start-up of gflow-opt: what is printed loads what it needs
    from ..emit.cpu.build import build_program

    found = []
    for function in functions(module):
        _planned(function)
        found.append(build_program(function, threads=1, blas=True))
    return found


def _planned(function: func.FuncOp) -> PlanReading:
    try:
        return read_plan(function)
    except NotPlanned as error:
        raise EmitError(str(error)) from None


#: by target: the programs of a module's functions
GENERATORS: dict[str, Callable[[ir.Operation], list[Program]]] = {"cpu": _cpu_programs}


def _programs(module: ir.Operation, options: EmitOptions) -> list[Program]:
    if options.target not in GENERATORS:
        known = ", ".join(GENERATORS)
        raise EmitError(f"no kernels for target '{options.target}' as MLIR (known: {known})")
    return GENERATORS[options.target](module)


def kernels(module: ir.Operation, options: EmitOptions) -> str:
    """The generated kernels as one module, as for processors with all instruction sets that they have lines for. A
    comment before each kernel lists the steps that launch it."""
    declared: dict[str, str] = {}
    texts: dict[str, str] = {}
    launched: dict[str, list[str]] = {}
    for program in _programs(module, options):
        declared |= program.declarations
        texts |= program.kernels
        for step in program.steps:
            for one in getattr(step, "members", (step,)):
                if isinstance(one, KernelStep):
                    launched.setdefault(one.kernel, []).append(_label(one.label))
    lines = ["module {", *declared.values()]
    for name, text in texts.items():
        uses = launched.get(name, [])
        shown = list(dict.fromkeys(uses))[:_MOST_LABELS]
        more = f", and {len(uses) - len(shown)} more" if len(uses) > len(shown) else ""
        plural = "launch" if len(uses) == 1 else "launches"
        lines += [
            "",
            f"  // {len(uses)} {plural}: {'; '.join(shown)}{more}",
            without(text, NO_BF16_LINE).rstrip(),
        ]
    return "\n".join([*lines, "}", ""])


_MOST_LABELS = 3


def _label(text: str) -> str:
    """The label of a step as one line, without the syntax of locations."""
    text = re.sub(r"loc\((.*)\)$", r"\1", text.replace("\n", " "))
    return re.sub(r'"([^"]*)"', r"\1", text)


def llvm_dialect(module: ir.Operation, options: EmitOptions) -> str:
    """The kernels in the LLVM dialect."""
    return str(_lowered(module, options))


def llvm(module: ir.Operation, options: EmitOptions) -> str:
    """The kernels as LLVM IR, before LLVM optimizes them."""
    # start-up of gflow-opt: what is printed loads what it needs
    from gflow.dialects.mlir import translate_module_to_llvmir

    return translate_module_to_llvmir(_lowered(module, options))


def _lowered(module: ir.Operation, options: EmitOptions) -> ir.Operation:
    found = ir.Module.parse(kernels(module, options)).operation
    manager = PassManager.parse(KERNEL_LOWERING)
    manager.enable_verifier(False)
    manager.run(found)
    return found


def _on_gpu(module: ir.Operation, options: EmitOptions) -> tuple[list[func.FuncOp], Target]:
    """The planned functions, and the GPU target: that of the options, else the one that kernels were selected for, else
    CUDA's default."""
    found = functions(module)
    names = [options.target, *filter(None, map(selected_for, found)), "cuda"]
    target = next(target for target in map(parse_target, names) if target.gpu)
    for function in found:
        _planned(function)
    return found, target


def triton(module: ir.Operation, options: EmitOptions) -> str:
    """The sources of the Triton kernels, and their launches."""
    # start-up of gflow-opt: what is printed loads what it needs
    from .emit_triton import programs, triton_text

    found, target = _on_gpu(module, options)
    return "\n".join(triton_text(p, _label) for p in programs(found, target))


def launches(module: ir.Operation, options: EmitOptions) -> str:
    """Bytes, operations and a lower bound of the time of each launch of Triton kernels."""
    # start-up of gflow-opt: what is printed loads what it needs
    from ..reports.launches import launch_report

    found, target = _on_gpu(module, options)
    return "\n".join(str(launch_report(f, target)) for f in found)


# -- many ranks


def timeline(module: ir.Operation, options: EmitOptions) -> str:
    """A simulated call on all ranks of the mesh."""
    return "\n".join(str(simulated(f, options)) for f in functions(module))


def simulated(function: func.FuncOp, options: EmitOptions) -> StepOnRanks:
    """
    Raises:
        EmitError: there is no such target, network or mesh.
    """
    try:
        device = parse_target(options.target).device
        network = network_of(device.name, options.network)
        return step_on_ranks(function, device, network, mesh_with(function, options.mesh))
    except ValueError as error:
        raise EmitError(str(error)) from None


# -- plan


def plan(module: ir.Operation, options: EmitOptions) -> str:
    """The plan as tables: steps and memory."""
    return "\n".join(plan_text(_planned(function)) for function in functions(module))


def plan_text(p: PlanReading) -> str:
    """A plan as two tables: the steps in order, and the arena's values."""
    over = f", {100 * (p.arena / p.lower_bound - 1):.1f} % over it" if p.lower_bound else ""
    lines = [
        f"@{p.name}: {len(p.steps)} steps, arena {p.arena:,} bytes",
        f"  least possible in this order: {p.lower_bound:,} bytes{over}",
        "",
        "  step      live bytes  op",
    ]
    for n, step in enumerate(p.steps):
        lines.append(f"  {n:>4} {step.live:>15,}  {step.op}    {step.source}".rstrip())
        lines.append(f"{'':24}({', '.join(step.operands)})")
        for result, place in zip(step.results, step.places):
            lines.append(f"{'':24}-> {result} in {place}")
    lines += ["", "  arena offset            size   steps       value"]
    for v in sorted(p.values, key=lambda v: (v.offset, v.start)):
        lines.append(
            f"  {v.offset:>12,} {v.size:>15,}   {v.start:>4}-{v.end:<4}   {v.op}: {v.type}"
        )
    return "\n".join([*lines, ""])


# -- other engines' forms


def stablehlo(module: ir.Operation, options: EmitOptions) -> str:
    """Each function as a StableHLO module. Checks (`gflow.check`) are left out.

    Raises:
        EmitError: an op has no counterpart in StableHLO.
    """
    # start-up of gflow-opt: what is printed loads what it needs
    from ..engines.form import EngineError
    from ..engines.stablehlo.write import write_function

    try:
        with sized(module):
            written = [write_function(f, checks=True) for f in functions(module)]
    except EngineError as error:
        raise EmitError(str(error)) from None
    return "\n".join(str(w.module) for w in written)


def onnx(module: ir.Operation, options: EmitOptions) -> str:
    """The first function as an ONNX model, in the text form of `onnx.printer`. Checks (`gflow.check`) are left out.

    Raises:
        EmitError: ONNX is not installed, or an op has no counterpart in ONNX.
    """
    # start-up of gflow-opt: what is printed loads what it needs
    from ..engines.form import EngineError
    from ..engines.onnx.write import write_function

    if importlib.util.find_spec("onnx") is None:
        raise EmitError("ONNX is not installed (onnx): pip install 'gflow-compiler[onnx]'")
    # start-up: few modules are printed as ONNX
    from onnx import printer

    try:
        with sized(module):
            model = write_function(functions(module)[0], checks=True).model
        return printer.to_text(model) + "\n"
    except EngineError as error:
        raise EmitError(str(error)) from None


#: every form but "mlir", which gflow-opt prints itself
EMITTERS: dict[str, Emitter] = {
    "kernels": kernels,
    "llvm-dialect": llvm_dialect,
    "llvm": llvm,
    "plan": plan,
    "dot": lambda module, options: "\n".join(dot(f) for f in functions(module)),
    "triton": triton,
    "launches": launches,
    "stablehlo": stablehlo,
    "onnx": onnx,
    "timeline": timeline,
}
