"""The scratch that a target's code needs, while one op runs."""

from __future__ import annotations

from collections.abc import Callable

from gflow.dialects.mlir import func

from .liveness import Lives
from .places import erase_places, write_places
from .strategies import apart


def scratch_of(function: func.FuncOp, lives: Lives, target: str) -> dict[int, int]:
    """For each op that needs scratch, by its number, how many bytes; an earlier plan goes."""
    # the code generator asks which places are the same; any that keep that will do
    write_places(function, lives, *apart(lives.buffers))
    found = TARGETS[target](function)
    erase_places(function, lives)
    return found


def _on_cpu(function: func.FuncOp) -> dict[int, int]:
    # only here: other targets need no code generator of the CPU
    from ..codegen.cpu.scratch import scratch_bytes
    from ..compile import host_blas

    return scratch_bytes(function, 0, host_blas())


def _on_cuda(function: func.FuncOp) -> dict[int, int]:
    from ..codegen.triton.scratch import scratch_bytes

    return scratch_bytes(function)


TARGETS: dict[str, Callable[[func.FuncOp], dict[int, int]]] = {"cpu": _on_cpu, "cuda": _on_cuda}
