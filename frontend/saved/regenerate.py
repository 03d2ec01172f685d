"""Generates the code of programs from their IR, for `gflow.load(..., native=False)`."""

from __future__ import annotations

from gflow.dialects.program import Program
from gflow.runtime.stored.bundle import ArtifactError


def regenerate(program: Program) -> Program:
    """Check the planned module of a program and generate its code. Only the program's arguments and results are used
    besides the module.

    Raises:
        ArtifactError: the module is invalid, or does not belong to this program.
    """
    # start-up: an artifact needs the compiler only if its code is generated again
    from gflow.compiler import CompileOptions
    from gflow.compiler.driver.compile import generate_planned
    from gflow.compiler.ir.errors import CompileError
    from gflow.execution.device import add_code

    try:
        made = generate_planned(program.ir, program.target, program.max_threads, program.twin)
    except CompileError as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ArtifactError(f"the IR of {program.name} cannot be compiled: {reason}") from None
    for what in ("arguments", "results", "size"):
        if getattr(made, what) != getattr(program, what):
            raise ArtifactError(f"the IR of {program.name} has other {what} than its program")
    add_code(made, CompileOptions(target=program.target))
    return made
