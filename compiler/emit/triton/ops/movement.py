"""Data-movement ops as strided copies."""

from __future__ import annotations

from gflow.compiler.ir.ssa import Op
from gflow.compiler.kernel.movement import kernels

from ..program_builder import Builder
from ..region.fused import launch, readable


def move(b: Builder, o: Op) -> None:
    """Add the launches of an `iota`, `concatenate`, `reverse` or `pad`."""
    b.choice.check(b.choice.kind == "kernel", "is not for a copy")
    for moved in kernels(b, o):
        launch(b, moved.k, moved.sources, [moved.target], b.label(o), lambda: readable(o.op))
