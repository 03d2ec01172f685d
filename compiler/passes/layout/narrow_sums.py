"""Store sums by index in half precision where operands and users are in half precision, and add them in place.

Before, the gradient of an embedding in bfloat16:

    %s = "gflow.convert"(%dy) {dtype = "f32"} : (tensor<64x8xbf16>) -> tensor<64x8xf32>
    %z = "gflow.constant"() {value = dense<0.0> : tensor<100x8xf32>} : () -> tensor<100x8xf32>
    %0 = "gflow.index_add"(%z, %i, %s) {dim = 0 : i64} : … -> tensor<100x8xf32>
    %1 = "gflow.convert"(%0) {dtype = "bf16"} : (tensor<100x8xf32>) -> tensor<100x8xbf16>

After:

    %z = "gflow.constant"() {value = dense<0.0> : tensor<100x8xbf16>} : () -> tensor<100x8xbf16>
    %1 = "gflow.index_add"(%z, %i, %dy) {dim = 0 : i64} : … -> tensor<100x8xbf16>

The float32 table is as large as the vocabulary and would be written and read once more. GPU kernels add half-precision
values in float32 and round once, so the bits are the same. The pass is for GPUs only; other targets round after each
addition.

A sum by index that is added to another gradient of the same table (with tied weights, that of the last layer) is
accumulated into it directly:

    %0 = "gflow.index_add"(%z, %i, %s) {dim = 0 : i64} : … -> tensor<100x8xf32>
    %1 = "gflow.add"(%g, %0) : (tensor<100x8xf32>, tensor<100x8xf32>) -> tensor<100x8xf32>

becomes

    %1 = "gflow.index_add"(%g, %i, %s) {dim = 0 : i64} : … -> tensor<100x8xf32>

The kernel may then update `%g` in place, and accesses only rows that have an index. In half precision, the result is
rounded once instead of twice. The sum is not changed if the other summand is an argument or a constant.
"""

from __future__ import annotations

import math

from gflow.dialects import builder
from gflow.dialects.attributes import read
from gflow.dialects.constants import is_splat
from gflow.dialects.mlir import func, ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import TensorType, type_of

from ...kernel.registers import HALVES
from ..base import NoOptions, Pass


def run(function: func.FuncOp, options: NoOptions) -> None:
    """Replace sums of the function, in place."""
    for view in list(function.regions[0].blocks[0].operations):
        op = view.operation
        if op.name == "gflow.index_add" and (dtype := _half(op)):
            _replace(op, dtype)
    for view in list(function.regions[0].blocks[0].operations):
        if view.operation.name == "gflow.add":
            _add_to_other(view.operation)


def _half(op: ir.Operation) -> str:
    """The half-precision type of a sum's operand and of its result; "" for other sums."""
    into, _, source = op.operands
    kinds = {
        type_of(use.owner.operation.results[0]).dtype
        for use in op.results[0].uses
        if _converts(use.owner)
    }
    plain = all(_converts(use.owner) for use in op.results[0].uses)
    if not (plain and len(kinds) == 1 and _zeros(into) and _converts(source.owner)):
        return ""
    (kind,) = kinds
    given = type_of(source.owner.operation.operands[0]).dtype
    return kind if kind in HALVES and (given, type_of(source).dtype) == (kind, "f32") else ""


def _converts(owner: ir.Operation | ir.OpView | ir.Block) -> bool:
    return not isinstance(owner, ir.Block) and owner.operation.name == "gflow.convert"


def _zeros(value: ir.Value) -> bool:
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "gflow.constant":
        return False
    elements = value.owner.operation.attributes["value"]
    if not is_splat(elements):
        return False
    number = ir.FloatAttr(elements.get_splat_value()).value
    return number == 0.0 and math.copysign(1.0, number) > 0


def _replace(op: ir.Operation, dtype: str) -> None:
    into, index, source = op.operands
    with ir.InsertionPoint(op), op.location:
        zeros = builder.splat(0.0, TensorType(type_of(into).shape, dtype))
        given = source.owner.operation.operands[0]
        attrs = read(OPS["index_add"], op.attributes)
        new = builder.build("index_add", [zeros, index, given], attrs)
    for use in list(op.results[0].uses):
        use.owner.operation.results[0].replace_all_uses_with(new)
        use.owner.operation.erase()
    op.erase()


def _add_to_other(add: ir.Operation) -> None:
    """Replace an addition by a sum by index that starts from the other summand, if that is possible."""
    for here, there in ((0, 1), (1, 0)):
        part, other = _stored(add.operands[here]), _stored(add.operands[there])
        total = _rounded(add, type_of(part).dtype)
        if (
            total is None
            or not _sums_alone(part, add.operands[here])
            or type_of(other) != type_of(part)
        ):
            continue
        if isinstance(other.owner, ir.Block) or other.owner.operation.name == "gflow.constant":
            continue
        sums = part.owner.operation
        with ir.InsertionPoint(add), sums.location:
            _, index, source = sums.operands
            attrs = read(OPS["index_add"], sums.attributes)
            total.replace_all_uses_with(builder.build("index_add", [other, index, source], attrs))
        return


def _stored(value: ir.Value) -> ir.Value:
    """The half-precision value of which a value is the widening; otherwise the value itself."""
    if not _converts(value.owner):
        return value
    (inner,) = value.owner.operation.operands
    return inner if type_of(inner).dtype in HALVES and type_of(value).dtype == "f32" else value


def _rounded(add: ir.Operation, dtype: str) -> ir.Value | None:
    """The result of an addition in the element type of its stored summands; None if it is used in another one."""
    (result,) = add.results
    if type_of(result).dtype == dtype:
        return result
    users = [use.owner.operation for use in result.uses]
    if len(users) != 1 or users[0].name != "gflow.convert":
        return None
    (rounded,) = users[0].results
    return rounded if type_of(rounded).dtype == dtype else None


def _sums_alone(part: ir.Value, summand: ir.Value) -> bool:
    """Whether a summand is a sum by index into zeros whose only reader is this addition."""
    if isinstance(part.owner, ir.Block) or part.owner.operation.name != "gflow.index_add":
        return False
    once = all(len(list(v.uses)) == 1 for v in (part, summand))
    return once and _zeros(part.owner.operation.operands[0])


PASS = Pass("gflow-narrow-sums", run, doc=__doc__)
