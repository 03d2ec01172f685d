"""A function body as plain Python lists, for passes that read all of it.

Reading an operand or a type through the bindings takes microseconds. A planning pass (fusion, scheduling, memory) reads
everything once, decides on integers, and writes the IR at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gflow.dialects.mlir import func, ir
from gflow.dialects.types import TensorType, counted, try_tensor_type

from .errors import PassError


@dataclass
class Op:
    """An operation.

    index: its position in the body. name: without the prefix `gflow.` for ops of the dialect. operands, results: value
    numbers.
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


#: a limit of a tensor's bytes: the address space of a process
_ADDRESSABLE = 1 << 47


def read_body(function: func.FuncOp) -> Body:
    """Read a function. The operations in the result are valid until they are changed or erased.

    Raises:
        PassError: the function is not one block of ops of the dialect on tensors of static shape.
    """
    blocks = function.regions[0].blocks
    if len(blocks) != 1:
        raise PassError(f"expects a function of one block, found {len(blocks)}", function)
    block = blocks[0]
    values: list[ir.Value] = []
    types: list[TensorType] = []
    producer: list[int] = []
    number: dict[ir.Value, int] = {}
    checked: dict[ir.Type, TensorType] = {}  # there are far fewer types than values

    def add(value: ir.Value, owner: int) -> int:
        number[value] = len(values)
        values.append(value)
        given = value.type
        ty = checked.get(given)
        if ty is None:
            ty = checked[given] = _type(value)
        types.append(ty)
        producer.append(owner)
        return len(values) - 1

    arguments = [add(a, -1) for a in block.arguments]
    ops: list[Op] = []
    *body, last = list(block.operations)
    for view in body:
        op = view.operation
        if not op.name.startswith("gflow."):
            raise PassError(f"expects ops of the gflow dialect, found '{op.name}'", op)
        operands = [number[v] for v in op.operands]
        index = len(ops)
        results = [add(r, index) for r in op.results]
        ops.append(Op(index, op, op.name.removeprefix("gflow."), operands, results))
    terminator = last.operation
    if terminator.name != "func.return":
        raise PassError(
            f"expects a block that ends in 'func.return', found '{terminator.name}'", last
        )
    returned = [number[v] for v in terminator.operands]
    users: list[list[int]] = [[] for _ in values]
    for o in ops:
        for v in o.operands:
            users[v].append(o.index)
    return Body(values, types, ops, arguments, returned, producer, terminator, users)


def _type(value: ir.Value) -> TensorType:
    ty = try_tensor_type(value.type)
    if ty is not None and ty.nbytes < _ADDRESSABLE:
        return ty
    owner = value.owner
    op = owner.owner if isinstance(owner, ir.Block) else owner
    if ty is not None:
        raise PassError(f"a {ty} has {counted(ty.nbytes)} bytes, more than can be addressed", op)
    raise PassError(
        f"expects tensors of static shape and a known element type, found {value.type}", op
    )


def aliases(function: func.FuncOp, body: Body) -> list[int | None]:
    """For each returned value, the number of the argument that it updates (`gflow.alias`), or None.

    Raises:
        PassError: an attribute names no argument, an argument of another type, or one that another result names.
    """
    if "res_attrs" not in function.attributes:
        return [None] * len(body.returned)
    out: list[int | None] = []
    seen: set[int] = set()
    for number, entry in enumerate(ir.ArrayAttr(function.attributes["res_attrs"])):
        attrs = ir.DictAttr(entry)
        alias = (
            _alias(attrs["gflow.alias"], len(body.arguments)) if "gflow.alias" in attrs else None
        )
        if "gflow.alias" in attrs and (
            alias is None
            or alias in seen
            or body.types[body.arguments[alias]] != body.types[body.returned[number]]
        ):
            raise PassError(
                f"'gflow.alias' of result {number} must be the number of an argument of type "
                f"{body.types[body.returned[number]]} that no other result updates, found "
                f"{attrs['gflow.alias']}",
                function,
            )
        out.append(alias)
        if alias is not None:
            seen.add(alias)
    return out


def updates(function: func.FuncOp) -> list[int | None]:
    """As `aliases`, with no other check than that the arguments exist.

    Raises:
        PassError: one does not.
    """
    count = len(function.type.inputs)
    if "res_attrs" not in function.attributes:
        return [None] * len(function.type.results)
    out = []
    for result, entry in enumerate(ir.ArrayAttr(function.attributes["res_attrs"])):
        attrs = ir.DictAttr(entry)
        alias = _alias(attrs["gflow.alias"], count) if "gflow.alias" in attrs else None
        if "gflow.alias" in attrs and alias is None:
            raise PassError(
                f"'gflow.alias' of result {result} must be the number of an argument, found "
                f"{attrs['gflow.alias']}",
                function,
            )
        out.append(alias)
    return out


def _alias(attribute: ir.Attribute, arguments: int) -> int | None:
    if not isinstance(attribute, ir.IntegerAttr):
        return None
    return attribute.value if 0 <= attribute.value < arguments else None


def attributes_of(op: ir.Operation) -> dict[str, ir.Attribute]:
    """An operation's attributes as a dictionary."""
    return {name: op.attributes[name] for name in op.attributes}


def put_operands(op: ir.Operation, numbers: Sequence[int], new: Mapping[int, ir.Value]) -> None:
    """Replace the operands of an op by the entries of `new` for their value numbers."""
    for n, v in enumerate(numbers):
        if v in new:
            op.operands[n] = new[v]


def clone_with(op: ir.Operation, operands: Sequence[ir.Value]) -> ir.Operation:
    """A copy of an op, at the insertion point, with other operands."""
    copy = op.clone()
    places = copy.operands
    for n, v in enumerate(operands):
        places[n] = v
    return copy


def clone_into(op: ir.Operation, known: dict[ir.Value, ir.Value]) -> ir.Operation:
    """Copy an op to the insertion point. known: the copy of each of its operands; those of its results are added."""
    copy = clone_with(op, [known[v] for v in op.operands])
    known.update(zip(op.results, copy.results))
    return copy


def clone_region(op: ir.Operation) -> tuple[list[ir.Operation], list[ir.Value]]:
    """Copy the ops of a region in front of its op. Returns the copies, and those of the values that it yields."""
    block = op.regions[0].blocks[0]
    known: dict[ir.Value, ir.Value] = dict(zip(block.arguments, op.operands))
    *inner, last = [view.operation for view in block.operations]
    with ir.InsertionPoint(op):
        copies = [clone_into(o, known) for o in inner]
    return copies, [known[v] for v in last.operands]


def fused_kind(op: ir.Operation) -> str:
    """The attribute `kind` of a `gflow.fused` op; "" without one and for other ops."""
    if op.name != "gflow.fused" or "kind" not in op.attributes:
        return ""
    return ir.StringAttr(op.attributes["kind"]).value


def read_live_body(function: func.FuncOp) -> Body:
    """Erase ops without used results, then read the function as `read_body` does.

    Ops with results count as free of side effects, as all ops of the dialect with results are.
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
    return _without(body, live)


def _without(body: Body, live: Sequence[bool]) -> Body:
    """The body with the live ops only; values and ops are numbered anew."""
    number = {v: v for v in body.arguments}
    values = [body.values[v] for v in body.arguments]
    types = [body.types[v] for v in body.arguments]
    producer = [-1] * len(values)
    users: list[list[int]] = [[] for _ in values]
    ops: list[Op] = []
    for o in body.ops:
        if not live[o.index]:
            continue
        index = len(ops)
        operands = [number[v] for v in o.operands]
        for v in operands:
            users[v].append(index)
        results = []
        for r in o.results:
            number[r] = len(values)
            results.append(len(values))
            values.append(body.values[r])
            types.append(body.types[r])
            producer.append(index)
            users.append([])
        ops.append(Op(index, o.op, o.name, operands, results))
    returned = [number[v] for v in body.returned]
    return Body(values, types, ops, body.arguments, returned, producer, body.terminator, users)
