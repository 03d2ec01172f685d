"""Ops that only move or make elements: copies between places."""

from __future__ import annotations

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.movement import kernels
from gflow.compiler.kernel.selection.cpu.loops import runs

from .program_builder import Builder


def move(b: Builder, o: Op) -> None:
    """An iota, a concatenation, a reversal or padding."""
    made = [m for m in kernels(b, o, around=True) if runs(m.k)]
    for m, way in zip(made, b.ways(len(made))):
        b.launch(m.k, m.sources, [m.target], b.label(o), way=way)
