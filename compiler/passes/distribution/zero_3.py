"""ZeRO 3: each rank has its piece of every parameter; the whole is there while it is used.

Before (after gflow-zero-1, which reads `%w` whole in the forward and the backward, and a piece of it in the update):

    %y = "gflow.matmul"(%x, %w) : …
    %dx = "gflow.matmul"(%dy, %w) : …
    %p = "gflow.shard"(%w) {axes = ["dp"], ranks = 2 : i64} : (tensor<4x2xf32>) -> tensor<4xf32>
    %u = "gflow.sub"(%p, %s) : …
    %1, %t = "gflow.collective"(%u) {kind = "all_gather", gflow.gradient = "w", …} : …
    return …                                                     // %1 updates %w

After, where `%w` is a `tensor<4xf32>`:

    %0, %t = "gflow.collective"(%w) {kind = "all_gather", gflow.gradient = "w", …} : (tensor<4xf32>) -> …
    %y = "gflow.matmul"(%x, %0 …) : …
    %1, %u = "gflow.collective"(%w, %t) {kind = "all_gather", gflow.gradient = "w", …} : …
    %dx = "gflow.matmul"(%dy, %1 …) : …
    %v = "gflow.sub"(%w, %s) : …
    return …                                                     // %v updates %w

A parameter is gathered before it is first used in the forward and again before its first use in the backward
(as locations say), and freed after the last use in each: memory is planned, so nothing needs to be said for that. With
`gathers=1` it is gathered once, and kept from the forward to the backward. It runs after gflow-zero-1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gflow.compiler.ir.collectives import (
    BUCKETS,
    GRADIENT,
    data_operands,
    kind_of,
    set_types,
    thread,
    unthread,
)
from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.locations import source_of
from gflow.compiler.ir.ssa import aliases, read_body
from gflow.dialects import builder
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.distribution import COLLECTIVE

from ..base import Pass
from .pieces import Pieces, become_piece, drop_unread, group_read


@dataclass(frozen=True)
class Zero3Options:
    """When parameters are whole."""

    gathers: int = field(
        default=2, metadata={"doc": "2: for the forward and for the backward; 1: once for both"}
    )


def run(function: func.FuncOp, options: Zero3Options) -> None:
    if options.gathers not in (1, 2):
        raise PassError(f"gathers must be 1 or 2, found {options.gathers}")
    unthread(function)
    body = read_body(function)
    block = function.regions[0].blocks[0]
    for n, alias in enumerate(aliases(function, body)):
        made = None if alias is None else _gathered(body.terminator.operands[n])
        if alias is None or made is None:
            continue
        ty = builder.type_of(block.arguments[alias])
        pieces = Pieces(function, group_read(made))
        name = ir.StringAttr(made.attributes[GRADIENT]).value
        if BUCKETS in made.attributes:
            pieces.buckets[name] = made.attributes[BUCKETS]
        body.terminator.operands[n] = data_operands(made)[0]
        readers = become_piece(function, pieces, alias, n)
        whole = partial(pieces.gather, block.arguments[alias], ty, name)
        _gather_for_uses(function, block.arguments[alias], readers, whole, options.gathers)
    set_types(function)
    drop_unread(function)
    thread(function)


def _gather_for_uses(
    function: func.FuncOp,
    argument: ir.Value,
    readers: list[ir.Operation],
    whole: Callable[[], ir.Value],
    gathers: int,
) -> None:
    """What reads the whole reads one that is gathered just before."""
    wholes: dict[bool, ir.Value] = {}
    for view in list(function.regions[0].blocks[0].operations):
        op = view.operation
        if op not in readers or op.name == "func.return":
            continue
        backward = gathers == 2 and source_of(op).phase == "backward"
        if backward not in wholes:
            with op.location, ir.InsertionPoint(op):
                wholes[backward] = whole()
        for k, v in enumerate(op.operands):
            if v == argument:
                op.operands[k] = wholes[backward]


def _gathered(value: ir.Value) -> ir.Operation | None:
    """The all_gather that a returned value is a view of."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if (
            op.name == f"gflow.{COLLECTIVE}"
            and kind_of(op) == "all_gather"
            and GRADIENT in op.attributes
        ):
            return op
        if op.name not in ("gflow.reshape", "gflow.slice"):
            return None
        value = op.operands[0]
    return None


PASS = Pass("gflow-zero-3", run, Zero3Options, __doc__ or "")
