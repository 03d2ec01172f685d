"""gflow on a GPU, beside eager PyTorch, its libraries and torch.compile: `python -m benchmarks gpu --help`.

`scripts/gpu_check.sh` runs it from nothing but the repository. On a machine without a GPU, `--stand-in` runs the same
code at tiny sizes on Triton's interpreter: a proof of the check, not of times.

main       the command line, and rows in order within a time
calls      prepared calls: parts in order, and their shares of the time
record     what was found, on disk after each row
report     the tables, and the bars
children   processes that answer requests, each within a time
worker     such a process that makes rows of a section
sections   the sections that there are
steps      training steps: the peers of a model, in waves
peer       the process of one peer
workloads  the step that a peer takes
sanitizer  compute-sanitizer
carried    machine code that travels between machines
ahead      compiles such code before there is a machine
setting    where the check runs, and its clocks
graphs     functions as graphs for the device at hand
rows/      what the rows of the sections measure
"""

from __future__ import annotations

from benchmarks.gpu.main import main

__all__ = ["main"]
