"""Loads a program on its device."""

from __future__ import annotations

import os
from typing import Any

import torch

from gflow.dialects.program import Program

from .arena import Arena
from .device import DeviceError
from .executable import Executable
from .tensors import on_host

#: names a stand-in for the GPU: "interpreter"
DEVICE = "GFLOW_CUDA_DEVICE"


@on_host()
def load_program(
    program: Program,
    arena: Arena | None = None,
    *,
    kept_results: int = 4,
    where: torch.device | None = None,
) -> Executable:
    """The executable of a program, on the device of its target.

    Args:
        arena, kept_results: as in `Executable`.
        where: the GPU, for a program for CUDA; PyTorch's current one if None.

    Raises:
        DeviceError: the device does not exist, or the program is for another one.
    """
    if program.target == "cpu":
        return Executable(program, arena=arena, kept_results=kept_results)
    device = gpu_for(program.target, where)
    return Executable(program, device, arena, kept_results=kept_results)


def interpreted() -> bool:
    """Whether programs for CUDA run on Triton's interpreter."""
    return os.environ.get(DEVICE, "") == "interpreter"


def gpu_for(target: str, where: torch.device | None = None) -> Any:
    """The device for programs of a kind of GPU: a GPU, or the substitute that `$GFLOW_CUDA_DEVICE` names.

    Raises:
        DeviceError: there is no such device.
    """
    stand_in = os.environ.get(DEVICE, "")
    if interpreted():
        # start-up: a program for the CPU needs no CUDA
        from .cuda.interpreter import InterpreterDevice

        return InterpreterDevice()
    if stand_in:
        raise DeviceError(f"{DEVICE}={stand_in}: 'interpreter' is the one that is known")
    if not target.startswith("cuda"):
        raise DeviceError(
            f"gflow compiles for {target}, and runs nothing on AMD's GPUs so far; {DEVICE}=interpreter "
            "runs it on the CPU, to look at"
        )
    # start-up: a program for the CPU needs no CUDA
    from .cuda.gpu import gpu

    return gpu(where or torch.device("cuda"))
