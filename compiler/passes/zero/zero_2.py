"""ZeRO stage 2: each gradient is reduce-scattered as soon as it is complete, so no rank keeps a whole gradient.

Before (after `gflow-zero-1`): the reduce_scatter runs at the end of the backward.

    %dw = "gflow.matmul"(%x, %dy) : …
    %dx = "gflow.matmul"(%dy, %w) : …
    %s, %t = "gflow.collective"(%dw) {kind = "reduce_scatter", gflow.gradient = "w", …} : …

After:

    %dw = "gflow.matmul"(%x, %dy) : …
    %s, %t = "gflow.collective"(%dw) {kind = "reduce_scatter", gflow.gradient = "w", …} : …
    %dx = "gflow.matmul"(%dy, %w) : …

The reduce_scatter of a gradient moves up to where the last term of the gradient is added, together with the ops that
only reshape, scale or convert its operand. All ranks run the same program, so the order of collectives stays the same
on all ranks.
"""

from __future__ import annotations

from gflow.compiler.ir.collectives import GRADIENT, data_operands, kind_of, thread, unthread
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops.distribution import COLLECTIVE

from ..base import NoOptions, Pass

#: ops between a gradient and its reduce_scatter, also the division by the number of ranks
_FORM = ("reshape", "pad", "mul", "convert", "constant")


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Move the reduce_scatters of gradients up, in place."""
    unthread(function)
    operations = [view.operation for view in function.regions[0].blocks[0].operations]
    for op in operations:
        if (
            op.name == f"gflow.{COLLECTIVE}"
            and GRADIENT in op.attributes
            and kind_of(op) == "reduce_scatter"
        ):
            _move_up(op, operations[0])
    thread(function)


def _move_up(op: ir.Operation, begin: ir.Operation) -> None:
    """Move a reduce_scatter, and what only forms its operand, to where the operand's last part is computed.

    begin: the first op of the function, before which constants are moved.
    """
    chain, value = [op], op.operands[0]
    while (maker := _maker(value)) is not None and maker.name.removeprefix("gflow.") in _FORM:
        if len(list(maker.results[0].uses)) != 1 or not len(maker.operands):
            break
        chain.append(maker)
        value = maker.operands[0]
    made = [_maker(v) for one in chain for v in one.operands]
    needs = [m for m in made if m is not None and m not in chain]
    constants = [m for m in needs if m.name == "gflow.constant"]
    last = None
    for m in needs:
        if m.name != "gflow.constant" and (last is None or last.is_before_in_block(m)):
            last = m
    if last is None or len(data_operands(op)) != 1:
        return
    for m in constants:  # several chains may use the same constant
        if m != begin:
            m.move_before(begin)
    for one in reversed(chain):
        one.move_after(last)
        last = one


def _maker(value: ir.Value) -> ir.Operation | None:
    """The op that a value is a result of; None for an argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


PASS = Pass("gflow-zero-2", run, NoOptions, __doc__ or "")
