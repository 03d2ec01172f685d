"""ZeRO stage 3: each rank keeps its shard of every parameter, and gathers a whole parameter only while it is used.

Before (after `gflow-zero-1`; forward and backward read the whole `%w`, the update reads a shard of it):

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

A parameter is gathered before its first use in the forward, and again before its first use in the backward; locations
tell the phases apart. The memory planner frees it after its last use in each phase, without a special op. With
`restore-level=2` it is gathered once and kept from the forward to the backward, with 0 before each op that reads it.

If the forward and backward read the parameter in a narrower type (mixed precision), the shard is converted first and
gathered in that type. With `narrowed=true`, as stages 1 and 2 run the pass under mixed precision, only such parameters
are sharded: their wide values are read by the update alone, as optimizer state is. A parameter without an update (in a
program without updates, or a frozen one) is sharded if `gflow.copies` states that each rank has a copy. The pass runs
after `gflow-zero-1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import cmp_to_key, partial
from typing import Any

from gflow.compiler.ir.collectives import (
    BUCKETS,
    GRADIENT,
    data_operands,
    kind_of,
    thread,
    unthread,
)
from gflow.compiler.ir.errors import PassError
from gflow.compiler.ir.locations import source_of
from gflow.compiler.ir.modules import text_of
from gflow.compiler.ir.ssa import updates
from gflow.dialects import builder
from gflow.dialects.attributes import from_mlir
from gflow.dialects.distribution.mesh import COPIES, PARTS, mesh_of
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import Attr
from gflow.dialects.ops.distribution import COLLECTIVE, SHARD
from gflow.dialects.records import record

from ..base import Pass
from .pieces import Pieces, become_piece, divides, drop_unread, group_read


@record
class Zero3Options:
    """Options of gflow-zero-3: which parameters are sharded, and when they are gathered."""

    min_size: int = field(default=1024, metadata={"doc": "the fewest elements of a parameter"})

    narrowed: bool = field(
        default=False,
        metadata={
            "doc": "only parameters that the forward and backward read in a narrower type: the wide values are "
            "sharded, as optimizer state is in stages 1 and 2"
        },
    )

    restore_level: int = field(
        default=1,
        metadata={
            "doc": "when a parameter is gathered: 0: before each use; 1: once for the forward and once for "
            "the backward; 2: once"
        },
    )


def run(function: func.FuncOp, options: Zero3Options) -> None:
    """Shard the parameters of the function over the ranks, in place.

    Raises:
        PassError: the option restore-level is not 0, 1 or 2.
    """
    if options.restore_level not in (0, 1, 2):
        raise PassError(f"restore-level must be 0, 1 or 2, found {options.restore_level}")
    unthread(function)
    found = [*_updated(function)]
    if options.narrowed:
        block = function.regions[0].blocks[0]
        found = [p for p in found if _narrowed(block.arguments[p.argument], p.group)]
    else:
        found += _read(function, options.min_size)
    for key in dict.fromkeys(str(p.group) for p in found):
        _divide(function, [p for p in found if str(p.group) == key], options.restore_level)
    drop_unread(function)
    thread(function)


@record
class _Parameter:
    """An argument to shard. made: the all_gather of its update; result: the result that updates it; None: no update."""

    argument: int
    name: str
    group: dict[str, Any]
    made: ir.Operation | None = None
    result: int | None = None


def _updated(function: func.FuncOp) -> Iterator[_Parameter]:
    """The arguments that are updated with a gathered piece; gradients that are read after the step stay whole."""
    listed = function.attributes.get("arg_attrs", [])
    returned = function.regions[0].blocks[0].operations[-1].operation.operands
    for n, alias in enumerate(updates(function)):
        made = None if alias is None else _gathered(returned[n])
        if alias is not None and made is not None:
            if alias < len(listed) and text_of(listed[alias], "gflow.role", "") == "gradient":
                continue
            name = ir.StringAttr(made.attributes[GRADIENT]).value
            yield _Parameter(alias, name, group_read(made), made, n)


def _read(function: func.FuncOp, least: int) -> Iterator[_Parameter]:
    """The arguments of at least `least` elements that are only read, and of which each rank has a copy."""
    mesh, updated = mesh_of(function), set(updates(function))
    arguments = function.regions[0].blocks[0].arguments
    listed = function.attributes.get("arg_attrs", [])
    for n, given in enumerate(listed):
        attrs = ir.DictAttr(given)
        told = next((key for key in (COPIES, PARTS) if key in attrs), None)
        if mesh is None or told is None or n in updated:
            continue
        axes = tuple(from_mlir(Attr("str[]"), attrs[told]))
        name = text_of(attrs, "gflow.name", f"%arg{n}")
        if divides(builder.type_of(arguments[n]), least):
            yield _Parameter(n, name, {"axes": axes, "ranks": mesh.size(axes)})


def _divide(function: func.FuncOp, parameters: list[_Parameter], level: int) -> None:
    """Shard the parameters of one group of ranks. level: the option `restore-level`."""
    pieces = Pieces(function, parameters[0].group)
    block = function.regions[0].blocks[0]
    terminator = block.operations[-1].operation
    for p in parameters:
        argument = block.arguments[p.argument]
        pieces.names[argument] = p.name
        with terminator.location, ir.InsertionPoint.at_block_begin(block):
            pieces.of[argument] = builder.build(SHARD, [argument], pieces.group)
        if p.made is not None and p.result is not None:
            if BUCKETS in p.made.attributes:
                pieces.buckets[p.name] = p.made.attributes[BUCKETS]
            terminator.operands[p.result] = data_operands(p.made)[0]
    pieces.sweep(lambda op: source_of(op).phase == "optimizer")
    drop_unread(function)
    for p in parameters:
        argument = block.arguments[p.argument]
        ty = builder.type_of(argument)
        readers = _in_order(become_piece(function, pieces, p.argument, p.result))
        for op in [op for op in readers if _narrows(op)]:
            readers.remove(op)
            with op.location, ir.InsertionPoint(op):
                to = builder.type_of(op.results[0])
                piece = builder.convert(argument, to.dtype)
            users = _in_order(use.owner.operation for use in op.results[0].uses)
            _gather_for_uses(op.results[0], users, partial(pieces.gather, piece, to, p.name), level)
            op.erase()
        _gather_for_uses(argument, readers, partial(pieces.gather, argument, ty, p.name), level)
    pieces.write()


def _in_order(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """The ops in program order, without duplicates. (There is no table of positions: an op's hash depends on its
    operands.)"""
    return sorted({*ops}, key=cmp_to_key(_compared))


def _compared(a: ir.Operation, b: ir.Operation) -> int:
    return int(b.is_before_in_block(a)) - int(a.is_before_in_block(b))


def _narrowed(argument: ir.Value, group: dict[str, Any]) -> bool:
    """Whether all users of a parameter, except its update in shards, convert it to a narrower type."""
    readers = [use.owner.operation for use in argument.uses]
    others = [op for op in readers if op.name != f"gflow.{SHARD}" or group_read(op) != group]
    return bool(others) and all(map(_narrows, others))


def _narrows(op: ir.Operation) -> bool:
    """Whether an op converts a parameter to a narrower type, in which it is then gathered."""
    if op.name != "gflow.convert":
        return False
    before, after = (builder.type_of(v) for v in (op.operands[0], op.results[0]))
    returned = any(use.owner.operation.name == "func.return" for use in op.results[0].uses)
    return after.nbytes * before.numel < before.nbytes * after.numel and not returned


def _gather_for_uses(
    value: ir.Value,
    readers: list[ir.Operation],
    whole: Callable[[], ir.Value],
    level: int,
) -> None:
    """Replace the whole parameter in its users by one that is gathered just before them.

    Args:
        value: the whole parameter.
        readers: its users, in program order.
        whole: builds the gather at the insertion point.
        level: the option `restore-level`.
    """
    wholes: dict[object, ir.Value] = {}
    for op in readers:
        if op.name == "func.return":
            continue
        use = (len(wholes), level == 1 and source_of(op).phase == "backward", None)[level]
        if use not in wholes:
            with op.location, ir.InsertionPoint(op):
                wholes[use] = whole()
        for k, v in enumerate(op.operands):
            if v == value:
                op.operands[k] = wholes[use]


def _gathered(value: ir.Value) -> ir.Operation | None:
    """The all_gather of which a returned value is a view; None: it is no such view."""
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
