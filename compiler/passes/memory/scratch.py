"""The scratch that a target's code needs, while one op runs."""

from __future__ import annotations

from collections.abc import Callable

from gflow.compiler.memory.liveness import Lives
from gflow.compiler.memory.places import erase_places, write_places
from gflow.compiler.targets import Target
from gflow.dialects.mlir import func

from .strategies import apart


def scratch_of(function: func.FuncOp, lives: Lives, target: Target) -> dict[int, int]:
    """For each op that needs scratch, by its number, how many bytes; an earlier plan goes."""
    # the code generator asks which places are the same; any that keep that will do
    write_places(function, lives, *apart(lives.buffers))
    found = _OF_KIND[target.kind](function, target)
    erase_places(function, lives)
    return found


def _on_cpu(function: func.FuncOp, target: Target) -> dict[int, int]:
    # only here: other targets need no code generator of the CPU
    from gflow.compiler.driver.compile import host_blas
    from gflow.compiler.emit.cpu.scratch import scratch_bytes

    return scratch_bytes(function, 0, host_blas())


def _on_cuda(function: func.FuncOp, target: Target) -> dict[int, int]:
    # one generator of code is loaded
    from gflow.compiler.emit.triton.scratch import scratch_bytes

    return scratch_bytes(function, target)


_OF_KIND: dict[str, Callable[[func.FuncOp, Target], dict[int, int]]] = {
    "cpu": _on_cpu,
    "cuda": _on_cuda,
}
