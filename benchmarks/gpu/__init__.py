"""gflow on a GPU, beside eager PyTorch, its libraries and torch.compile: `python -m benchmarks gpu --help`.

`scripts/gpu_check.sh` runs it from nothing but the repository. On a machine without a GPU, `--stand-in` runs the same
code at tiny sizes on Triton's interpreter: a proof of the check, not of times.

main          the command line, and rows in order within a time
calls         prepared calls: parts in order, and their shares of the time
record        what was found, on disk after each row
report        the tables, and the bars
children      processes that answer requests, each within a time
worker        such a process that makes rows of a section; sections says which there are
steps         training steps: the peers of a model, in waves; peer is the process of one, workloads its step
contractions  products, convolutions, attention: works, which `work` checks and times
bandwidth     memory-bound kernels
own_kernels   what ran; our own kernels alone, by configuration
exactness     errors beside eager's, against float64
numerics      families of ops, and steps of small models; families lists the ops
sanitizer     compute-sanitizer
carried       machine code that travels between machines; ahead compiles it
setting       where the check runs, and its clocks
graphs        functions as graphs for the device at hand
"""

from __future__ import annotations

from benchmarks.gpu.main import main

__all__ = ["main"]
