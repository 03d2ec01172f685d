"""A function body as plain Python lists, for passes that look at all of it.

Reading operands and types through the bindings costs microseconds each; a pass that plans
(fusion, scheduling, memory) reads everything once, decides on integers, and writes the IR at the
end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gflow.dialects.mlir import func, ir
from gflow.dialects.types import TensorType, tensor_type


@dataclass
class Op:
    """One operation.

    index: its number in the body. name: without the dialect's prefix for ops of ours.
    operands, results: value numbers.
    """

    index: int
    op: ir.Operation
    name: str
    operands: list[int]
    results: list[int]


@dataclass
class Body:
    """A function of one block. Values are numbered: arguments first, then results in order.

    arguments, returned: value numbers. producer: value → op number, -1 for arguments.
    users: value → op numbers, one for each use (the terminator not counted).
    """

    values: list[ir.Value]
    types: list[TensorType]
    ops: list[Op]
    arguments: list[int]
    returned: list[int]
    producer: list[int]
    terminator: ir.Operation
    users: list[list[int]] = field(default_factory=list)


def read_body(function: func.FuncOp) -> Body:
    """Snapshot a function; the objects in it are valid until the IR changes under them."""
    block = function.regions[0].blocks[0]
    values: list[ir.Value] = []
    types: list[TensorType] = []
    producer: list[int] = []
    number: dict[ir.Value, int] = {}

    def add(value: ir.Value, owner: int) -> int:
        number[value] = len(values)
        values.append(value)
        types.append(tensor_type(value.type))
        producer.append(owner)
        return len(values) - 1

    arguments = [add(a, -1) for a in block.arguments]
    ops: list[Op] = []
    *body, last = list(block.operations)
    for view in body:
        op = view.operation
        operands = [number[v] for v in op.operands]
        index = len(ops)
        results = [add(r, index) for r in op.results]
        ops.append(Op(index, op, op.name.removeprefix("gflow."), operands, results))
    terminator = last.operation
    returned = [number[v] for v in terminator.operands]
    users: list[list[int]] = [[] for _ in values]
    for o in ops:
        for v in o.operands:
            users[v].append(o.index)
    return Body(values, types, ops, arguments, returned, producer, terminator, users)


def aliases(function: func.FuncOp, body: Body) -> list[int | None]:
    """For each returned value the number of the argument that it updates (`gflow.alias`)."""
    if "res_attrs" not in function.attributes:
        return [None] * len(body.returned)
    out: list[int | None] = []
    for entry in ir.ArrayAttr(function.attributes["res_attrs"]):
        attrs = ir.DictAttr(entry)
        out.append(ir.IntegerAttr(attrs["gflow.alias"]).value if "gflow.alias" in attrs else None)
    return out


def attributes_of(op: ir.Operation) -> dict[str, ir.Attribute]:
    """An operation's attributes as a dictionary."""
    return {name: op.attributes[name] for name in op.attributes}


def read_live_body(function: func.FuncOp) -> Body:
    """As `read_body`, after ops whose results nobody needs have been erased.

    All ops with results count as free of side effects, as those of the dialect are.
    """
    body = read_body(function)
    live = [not o.results for o in body.ops]
    needed = set(body.returned)
    for o in reversed(body.ops):
        if live[o.index] or not needed.isdisjoint(o.results):
            live[o.index] = True
            needed.update(o.operands)
    if all(live):
        return body
    for o in reversed(body.ops):
        if not live[o.index]:
            o.op.erase()
    return read_body(function)
