"""Data-movement ops as strided copies."""

from __future__ import annotations

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.movement import kernels
from gflow.compiler.kernel.selection.cpu.loops import runs

from .program_builder import Builder


def move(b: Builder, o: Op) -> None:
    """Add the steps of an `iota`, `concatenate`, `reverse` or `pad`."""
    made = [m for m in kernels(b, o, around=True) if runs(m.k)]
    for m, way in zip(made, b.ways(len(made))):
        b.launch(m.k, m.sources, [m.target], b.label(o), way=way)
