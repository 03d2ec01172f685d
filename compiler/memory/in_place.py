"""When a kernel may write a result over one of its own operands."""

from __future__ import annotations

from gflow.dialects import builder
from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS

#: ops of a kernel that use a value only at the position where they compute their own
_KEEPS_POSITION = frozenset(
    {"reshape", *(name for name, d in OPS.items() if d.category == "elementwise")}
)


def reads_where_it_writes(fused: ir.Operation, operand: int, result: int) -> bool:
    """Whether a kernel reads `operand` only at the position at which it writes `result` then.

    That holds if both have one type, and all that is computed from the operand stays at its
    position: a broadcast of it would be read for positions that are written later. Where the
    kernel reduces, rows are walked more than once, so only values of the reduced shape are
    read before any is written.
    """
    block = fused.regions[0].blocks[0]
    argument = block.arguments[operand]
    *body, terminator = list(block.operations)
    if argument.type != terminator.operation.operands[result].type:
        return False
    numel = builder.type_of(argument).numel
    for o in body:
        if o.operation.name == "gflow.reduce":
            if numel == builder.type_of(o.operation.operands[0]).numel:
                return False
            break
    stack, seen = [argument], {argument}
    while stack:
        for use in stack.pop().uses:
            op = use.owner.operation
            name = op.name.removeprefix("gflow.")
            if name == "yield":
                continue
            if name not in _KEEPS_POSITION:
                return False
            for r in op.results:
                if r not in seen:
                    seen.add(r)
                    stack.append(r)
    return True
