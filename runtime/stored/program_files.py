"""The files of an artifact that hold its programs: tables of steps, kernels as text and as machine code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields

import torch

from gflow.dialects.program import Program
from gflow.dialects.program.form import decode, encode

from ..cpu import jit, table
from .bundle import Bundle
from .device_files import device_files, read_device
from .program_io import ProgramError, from_values

#: tensors; machine code of all kernels for a processor
WEIGHTS, OBJECT = "weights.safetensors", "kernels/cpu.o"


def program_files(programs: Sequence[Program]) -> dict[str, bytes]:
    """The files of programs, without their constants and machine code."""
    files: dict[str, bytes] = {}
    for n, program in enumerate(programs):
        files[_ir_name(n)] = program.ir.encode()
        values = {name: encode(getattr(program, name)) for name in _SAVED}
        values["kernels"] = encode(tuple(program.kernels))
        more, code = device_files(program)
        values |= more
        files |= code
        files[f"programs/{n}.json"] = json.dumps(values).encode()
        for name, text in program.kernels.items():
            files[f"kernels/{name}.mlir"] = text.encode()
    return files


def machine_code(programs: Sequence[Program]) -> bytes | None:
    """An object file with the kernels of all programs, for machines like this one; None where there are
    none for the CPU, or it cannot be made."""
    if any(program.target != "cpu" for program in programs):
        return None
    return jit.object_file(*all_kernels(programs))


def _ir_name(n: int) -> str:
    return f"model.{n}.mlir" if n else "model.mlir"


#: fields of a program that its JSON has as they are; the others are files
_SAVED = tuple(
    f.name
    for f in fields(Program)
    if f.name not in ("ir", "kernels", "constants", "triton", "device_code")
)


def read_program(bundle: Bundle, n: int, constants: Sequence[torch.Tensor]) -> Program:
    """The program of a number. constants: its own, which are not among the files.

    Raises:
        ProgramError: it is not whole.
    """
    try:
        found = json.loads(bundle.files[f"programs/{n}.json"])
        names = decode(found.pop("kernels"))
        device = read_device(found, bundle.files)
        kernels = {k: bundle.files[f"kernels/{k}.mlir"].decode() for k in names}
        text = bundle.files[_ir_name(n)].decode()
        raw = [c.numpy().tobytes() for c in constants]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # a file that is no JSON, or JSON of any kind and depth
        raise ProgramError(f"program {n}: {type(error).__name__}: {error}") from None
    return from_values(found, **device, ir=text, kernels=kernels, constants=raw)


def all_kernels(programs: Sequence[Program]) -> tuple[dict[str, str], dict[str, str]]:
    """The kernels of all programs for a processor, as text, and declarations of what they call."""
    kernels: dict[str, str] = {}
    declarations: dict[str, str] = {}
    for program in programs:
        more, called = table.kernels_of(program)
        kernels |= more
        declarations |= called
    return kernels, declarations


def runner_text() -> str:
    """The code that calls kernels. Machine code of kernels is compatible with one version of it."""
    return table.RUNNER_TEXT + table.GROUP_TEXT
