"""Writing places into the IR."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.dialects.mlir import func, ir

from .liveness import Lives


def write_places(function: func.FuncOp, lives: Lives, size: int, offsets: Sequence[int]) -> None:
    """Put the arena's size on a function and places on its ops; an earlier plan's scratch goes."""
    set_number(function, "arena_size", size)
    for o in lives.making:
        where = [lives.place.get(r) or f"arena:{offsets[lives.buffer_of[r]]}" for r in o.results]
        o.op.attributes["gflow.buffers"] = ir.ArrayAttr.get([ir.StringAttr.get(w) for w in where])
        if "gflow.scratch" in o.op.attributes:
            del o.op.attributes["gflow.scratch"]


def erase_places(function: func.FuncOp, lives: Lives) -> None:
    """Take them away again."""
    del function.operation.attributes["gflow.arena_size"]
    for o in lives.making:
        del o.op.attributes["gflow.buffers"]


def set_number(function: func.FuncOp, name: str, value: int) -> None:
    """Set the function's attribute `gflow.<name>`."""
    i64 = ir.IntegerType.get_signless(64)
    function.operation.attributes[f"gflow.{name}"] = ir.IntegerAttr.get(i64, value)
