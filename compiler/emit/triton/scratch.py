"""How much scratch each op's launches need: partial results of split reductions and products."""

from __future__ import annotations

from gflow.compiler.targets import Target
from gflow.dialects.mlir import func

from ..steps import scratch_of_ops
from .build import add_op
from .program_builder import Builder


def scratch_bytes(function: func.FuncOp, target: Target) -> dict[int, int]:
    """For each op that needs scratch, by its number, how many bytes.

    `gflow.buffers` must be there. An op without code needs none.
    """
    return scratch_of_ops(Builder(function, target), add_op)
