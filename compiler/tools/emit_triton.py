"""`gflow-opt --emit=triton`: the sources of a program's Triton kernels, and its launches."""

from __future__ import annotations

from collections.abc import Callable

from gflow.dialects.mlir import func
from gflow.dialects.program import AtenStep, LaunchStep, Place, Program, TritonConfig, TritonKernel
from gflow.dialects.types import TensorType

from ..targets import Target


def programs(functions: list[func.FuncOp], target: Target) -> list[Program]:
    """The programs of planned functions.

    Raises:
        CannotLower: code generation does not support an op.
    """
    # start-up of gflow-opt: what is printed loads what it needs
    from ..emit.triton.build import build_program

    return [build_program(f, target) for f in functions]


def triton_text(program: Program, shown: Callable[[str], str] = str) -> str:
    """The launches of a program as a comment, then its kernels as Python source, each with its configs.

    Imports are printed once. shown: prints the label of a step.
    """
    lines = [f"# @{program.name} for {program.target}: {len(program.steps)} steps, {len(program.triton)} kernels,"
             f" arena {program.arena_bytes:,} bytes", "#"]  # fmt: skip
    for n, step in enumerate(program.steps):
        lines += [f"# {n:>4}  {_step(step, program)}", f"#         {shown(step.label)}"]
    imports: dict[str, None] = {}
    bodies = []
    for kernel in program.triton.values():
        head, body = _split(kernel.source)
        imports |= dict.fromkeys(head)
        bodies += ["", "", *_about(kernel), body.strip("\n")]
    return "\n".join([*lines, "", *imports, *bodies, ""])


def _split(source: str) -> tuple[list[str], str]:
    """The imports at the beginning of a source, and the rest."""
    lines = source.splitlines()
    n = 0
    while n < len(lines) and (not lines[n] or lines[n].startswith(("import ", "from "))):
        n += 1
    return [line for line in lines[:n] if line], "\n".join(lines[n:])


def _about(kernel: TritonKernel) -> list[str]:
    types = ", ".join(f"{name}: {kind}" for name, kind in kernel.parameters.items())
    lines = [f"# {kernel.name}({types})", f"#   grid: {', '.join(kernel.grid)}"]
    if kernel.constants:
        lines.append(f"#   constants: {_named(kernel.constants)}")
    if kernel.multiples:
        lines.append(f"#   multiples of 16: {', '.join(kernel.multiples)}")
    return lines + [f"#   config {n}: {_config(c)}" for n, c in enumerate(kernel.configs)]


def _config(config: TritonConfig) -> str:
    blocks = f"{_named(config.constants)}, " if config.constants else ""
    return f"{blocks}{config.num_warps} warps, {config.num_stages} stages"


def _named(constants: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in constants.items())


def _step(step: object, program: Program) -> str:
    if isinstance(step, LaunchStep):
        kernel = program.triton[step.kernel]
        args = [f"{n}={_argument(a)}" for n, a in zip(kernel.parameters, step.args)]
        grid = "×".join(map(str, step.grid))
        return f"{step.kernel}[{grid}, config {step.config}]({', '.join(args)})"
    if isinstance(step, AtenStep):
        inputs = ", ".join(f"{_argument(r.place)}: {_type(r.type)}" for r in step.inputs)
        outputs = ", ".join("-" if r is None else _argument(r.place) for r in step.outputs)
        return f"{step.overload}({inputs}) -> {outputs}"
    return type(step).__name__


def _argument(value: object) -> str:
    if isinstance(value, Place):
        index = "" if value.space == "arena" else str(value.index)
        return f"{value.space}{index}" + (f"+{value.offset}" if value.offset else "")
    return str(value)


def _type(ty: TensorType) -> str:
    return "x".join([*map(str, ty.shape), ty.dtype])
