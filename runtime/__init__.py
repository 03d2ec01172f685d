"""Executables: the arena, the table of steps, calls into PyTorch.

Needs PyTorch and the dialect, nothing of the frontend or the compiler.

    arena          the memory of executables: one block for all that never run at the same time
    calls          what a call of a graph is given and gives back, as plain data
    checks         what checks of a program report, and when the host looks: behind the steps, or, where a device
                   runs on by itself, at the next call, without waiting
    device         what programs run on, as far as an executable is concerned: a device that loads their native
                   steps
    executable     runs a `Program` on a device: its memory, what a call binds to it, its steps in order, all or
                   nothing
    failures       errors that a run finds in values: an index beyond a dimension, a matrix that has no inverse
    frames         what calls of one size have in common: a program's steps with the numbers of that size, and the
                   addresses in them
    interrupts     signals that wait: sections that an exception of a signal's handler must not leave half done
    loading        a program ready to run, on the device that it is for
    numbers        conditions on host numbers under which a program holds, as data
    recurrent      a layer of an LSTM, a GRU or a plain RNN over a length that varies, as one op
    results        output tensors that are used again once the caller has dropped them
    seeds          where a program's random ops get their seed: PyTorch's default generator, which each call draws
                   from
    sizes          programs whose sizes vary: the numbers that a call's size makes
    tensors        PyTorch tensors over memory that the program places
    composed/      training steps that are several programs, run in order
    cpu/           programs for the CPU: kernels by LLVM's JIT, and the table of steps that runs them
    cuda/          programs for CUDA devices: kernels as machine code, launched through the driver
    distributed/   collectives as steps of a program, over the process groups of `torch.distributed`
    engines/       other engines that run parts of a program: imported when they are switched on
    schedules/     learning rate schedulers: OneFlow's own, and all of them as data in artifacts
    steps/         steps that the host runs: calls of PyTorch
    stored/        programs, checkpoints and artifacts as files: written whole, checked whole, trusted only where
                   signed
"""

from __future__ import annotations

from .executable import Executable
from .loading import load_program

__all__ = ["Executable", "load_program"]
