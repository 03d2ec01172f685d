"""The order of collectives in a function: tokens, numbers, and the result that keeps the last token alive."""

from __future__ import annotations

from typing import Any

from gflow.dialects import builder
from gflow.dialects.attributes import read, to_mlir
from gflow.dialects.mlir import func, ir
from gflow.dialects.opdef import Attr
from gflow.dialects.ops import OPS
from gflow.dialects.ops.distribution import COLLECTIVE, ORDERED, TOKEN, has_token

from .ssa import attributes_of

#: the role of the result that is the last token
ORDER = "order"
#: attribute of a collective that reduces a parameter's gradient: the parameter's name
GRADIENT = "gflow.gradient"
#: of the same: the most bytes of the first collective that it may be part of, of the second, …; the last for all others
BUCKETS = "gflow.buckets"


def kind_of(op: ir.Operation) -> str:
    """The kind of a collective or of its start."""
    return ir.StringAttr(op.attributes["kind"]).value


def is_ordered(op: ir.Operation) -> bool:
    """Whether an op has a place in the order of collectives."""
    return op.name.removeprefix("gflow.") in ORDERED


def data_operands(op: ir.Operation) -> list[ir.Value]:
    """The operands of a collective without its token."""
    operands = list(op.operands)
    return operands[: len(operands) - has_token(kind_of(op), len(operands))]


def attributes_read(op: ir.Operation) -> dict[str, Any]:
    """The declared attributes of a collective that it has, as plain data."""
    name = op.name.removeprefix("gflow.")
    return {k: v for k, v in read(OPS[name], op.attributes).items() if v is not None}


def build_collective(x: ir.Value | None, kind: str, **attrs: Any) -> ir.Value:
    """Build a collective at the insertion point and return its value. `thread` gives it its place in the order.

    attrs: `axes` or `group`, `ranks`, and the attributes of the kind.
    """
    operands = [] if x is None else [x]
    made = builder.build_op(COLLECTIVE, operands, {"kind": kind, "sequence": 0, **attrs})
    return made.results[0]


def thread(function: func.FuncOp) -> None:
    """Order all collectives of a function as they stand: each takes the token of the one before it, they are numbered,
    and the last token becomes a result of the function."""
    block = function.regions[0].blocks[0]
    token: ir.Value | None = None
    number = 0
    for view in list(block.operations):
        op = view.operation
        if not is_ordered(op):
            continue
        if token is None or list(op.operands)[-1:] != [token]:
            op = _with_token(op, token)
        op.attributes["sequence"] = to_mlir(Attr("i64"), number)
        number += 1
        token = op.results[len(op.results) - 1]
    if token is not None:
        _keep(function, block, token)


def _with_token(op: ir.Operation, token: ir.Value | None) -> ir.Operation:
    """Replace a collective by one that takes a token."""
    attributes = attributes_of(op)
    for name in ("operandSegmentSizes", "resultSegmentSizes"):
        attributes.pop(name, None)
    operands = [*data_operands(op), *([] if token is None else [token])]
    types = [r.type for r in op.results]
    attributes["operandSegmentSizes"] = builder.segment_sizes([v.type for v in operands])
    attributes["resultSegmentSizes"] = builder.segment_sizes(types)
    made = ir.Operation.create(
        op.name,
        results=types,
        operands=operands,
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, new in zip(op.results, made.results):
        old.replace_all_uses_with(new)
    op.erase()
    return made


def _keep(function: func.FuncOp, block: ir.Block, token: ir.Value) -> None:
    """Return the last token."""
    terminator = block.operations[-1].operation
    at = order_result(function)
    if at is not None:
        terminator.operands[at] = token
        return
    values = [*terminator.operands, token]
    attrs = (
        list(ir.ArrayAttr(function.attributes["res_attrs"]))
        if "res_attrs" in function.attributes
        else []
    )
    attrs += [ir.DictAttr.get({})] * (len(values) - 1 - len(attrs))
    role = ir.StringAttr.get(ORDER)
    attrs.append(ir.DictAttr.get({"gflow.name": role, "gflow.role": role}))
    ir.Operation.create(
        "func.return", operands=values, loc=terminator.location, ip=ir.InsertionPoint(terminator)
    )
    terminator.erase()
    set_types(function)
    function.attributes["res_attrs"] = ir.ArrayAttr.get(attrs)


def set_types(function: func.FuncOp) -> None:
    """Set the function's type from its arguments and its return."""
    block = function.regions[0].blocks[0]
    returned = block.operations[-1].operation.operands
    kind = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in returned])
    function.attributes["function_type"] = ir.TypeAttr.get(kind)


def order_result(function: func.FuncOp) -> int | None:
    """The number of the result that is the last token; None without one."""
    if "res_attrs" not in function.attributes:
        return None
    for n, given in enumerate(ir.ArrayAttr(function.attributes["res_attrs"])):
        attrs = ir.DictAttr(given)
        if "gflow.role" in attrs and ir.StringAttr(attrs["gflow.role"]).value == ORDER:
            return n
    return None


def unthread(function: func.FuncOp) -> None:
    """Remove all tokens, so collectives can be moved, replaced and erased. `thread` adds new ones."""
    block = function.regions[0].blocks[0]
    at = order_result(function)
    if at is not None:
        terminator = block.operations[-1].operation
        first = block.operations[0]
        with ir.Location.unknown(), ir.InsertionPoint(first):
            terminator.operands[at] = builder.splat(0, TOKEN)
    for view in reversed(list(block.operations)):
        op = view.operation
        if is_ordered(op) and len(op.operands) > len(data_operands(op)):
            _with_token(op, None)
