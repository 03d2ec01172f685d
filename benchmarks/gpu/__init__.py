"""gflow on a GPU, beside eager PyTorch, its libraries and torch.compile: `python -m benchmarks gpu --help`.

`scripts/gpu_check.sh` runs it from nothing but the repository. On a machine without a GPU,
`--stand-in` runs the same code at tiny sizes on Triton's interpreter: a proof of the check, not of times.
"""

from __future__ import annotations

from benchmarks.gpu.main import main

__all__ = ["main"]
