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
from gflow.compiler.ir.ssa import read_body
from gflow.dialects.mlir import func
from gflow.dialects.ops.distribution import COLLECTIVE

from ..base import NoOptions, Pass

#: ops between a gradient and its reduce_scatter, also the division by the number of ranks
_FORM = ("reshape", "pad", "mul", "convert", "constant")


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Move the reduce_scatters of gradients up, in place."""
    unthread(function)
    body = read_body(function)
    begin = function.regions[0].blocks[0].operations[0].operation
    for o in body.ops:
        if (
            o.name != COLLECTIVE
            or GRADIENT not in o.op.attributes
            or kind_of(o.op) != "reduce_scatter"
        ):
            continue
        chain, value = [o.index], o.operands[0]
        while body.producer[value] >= 0 and body.ops[body.producer[value]].name in _FORM:
            p = body.ops[body.producer[value]]
            if len(body.users[p.results[0]]) != 1 or not p.operands:
                break
            chain.append(p.index)
            value = p.operands[0]
        needs = {body.producer[v] for i in chain for v in body.ops[i].operands}.difference(chain)
        constants = [n for n in needs if n >= 0 and body.ops[n].name == "constant"]
        last = max(needs.difference(constants), default=-1)
        if last < 0 or last + 1 in chain or len(data_operands(o.op)) != 1:
            continue
        after = body.ops[last].op  # ops after it may have moved up
        for op in (body.ops[n].op for n in constants):  # several chains may use the same constant
            if op != begin:
                op.move_before(begin)
        for index in reversed(chain):
            body.ops[index].op.move_after(after)
            after = body.ops[index].op
    thread(function)


PASS = Pass("gflow-zero-2", run, NoOptions, __doc__ or "")
