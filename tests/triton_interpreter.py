"""Programs for CUDA run on CPU tensors by Triton's interpreter, in the runtime's own way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gflow.dialects.program import Program
from gflow.runtime import Executable
from gflow.runtime.cuda.interpreter import InterpreterDevice, interpreting


def run_program(program: Program, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a program; aliased ones are written to `args`.

    Raises:
        DeviceError: a kernel failed, or touched memory that is nobody's.
    """
    run = Executable(program, InterpreterDevice(), graphs=False)
    run.arena.fill_(0x7B)  # what nobody wrote is not zero
    with interpreting():
        return run(args)
