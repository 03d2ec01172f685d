"""Executables: the arena, the table of steps, calls into PyTorch.

It needs PyTorch and the dialect, but not the frontend or the compiler.

    arena          the memory of executables: one block for all that never run at the same time
    calls          the arguments and results of a graph's call, as plain data
    checks         the report of a program's checks, and when the host reads it: after the steps, or, on an
                   asynchronous device, at the next call, without waiting
    device         the interface of devices, which load and run the native steps of a program
    executable     runs a `Program` on a device: its memory, the binding of a call, its steps in order; a call is
                   atomic
    failures       errors that a run finds in values: an index out of range, a singular matrix
    frames         what calls of one size have in common: a program's steps with the numbers of that size, and the
                   addresses in them
    interrupts     sections in which signal handlers are delayed, so that their exceptions leave no work half done
    loading        loads a program on its device
    numbers        conditions on host numbers under which a program is valid, as data
    recorded       tracers and dispatch modes of others, which a program's run would not be part of
    results        output tensors that are reused after the caller has dropped them
    seeds          the seeds of a program's random ops: PyTorch's default generator, from which each call draws
    sizes          programs with dynamic sizes: the numbers that depend on a call's size
    tensors        PyTorch tensors over memory of a program
    composed/      training steps that consist of several programs, run in order
    cpu/           programs for the CPU: kernels by LLVM's JIT, and the table of steps that runs them
    cuda/          programs for CUDA devices: kernels as machine code, launched through the driver
    distributed/   collectives as steps of a program, over the process groups of `torch.distributed`
    engines/       other engines that run parts of a program: imported when they are enabled
    schedules/     learning rate schedulers: OneFlow's own, and all of them as data in artifacts
    steps/         steps that the host runs: calls of PyTorch
    stored/        programs, checkpoints and artifacts as files: written atomically, verified when read, trusted only if
                   signed
    torch_ops/     ops of gflow's own in PyTorch's dispatcher
"""

from __future__ import annotations

from .executable import Executable
from .loading import load_program

__all__ = ["Executable", "load_program"]
