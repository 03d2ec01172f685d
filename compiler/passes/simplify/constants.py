"""Constant folding, and ops on broadcast values, which are computed on fewer elements before the broadcast.

In the one-line descriptions x, y, p are values and c, d are constants (splats).
"""

from __future__ import annotations

from gflow.compiler.ir.unit_reshape import unit_reshape
from gflow.dialects.mlir import ir
from gflow.dialects.types import TensorType

from .folding import evaluate
from .rewriter import Node, Rewriter
from .rules import ELEMENTWISE, Rules

RULES = Rules()

_COMMUTATIVE = ("add", "mul", "maximum", "minimum", "and", "or", "xor")
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


@RULES.add(*ELEMENTWISE, on=("splat",))
def fold_constants(n: Node, b: Rewriter) -> ir.Value | None:
    """op(c, d) → a constant"""
    values = []
    for operand in n.operands:
        value = b.splat(operand)
        if value is None:
            return None
        values.append(value)
    found = evaluate(n.name, n.attrs, values, b.type(n.operands[-1]), n.type)
    return None if found is None else b.constant(found, n.type)


@RULES.add(*_COMMUTATIVE, on=("splat",))
def constant_to_the_right(n: Node, b: Rewriter) -> ir.Value | None:
    """op(c, x) → op(x, c)"""
    left, right = n.operands
    if b.splat(left) is None or b.splat(right) is not None:
        return None
    return b.build(n.name, [right, left])


@RULES.add("compare", on=("splat",))
def compare_constant_to_the_right(n: Node, b: Rewriter) -> ir.Value | None:
    """c < x → x > c"""
    left, right = n.operands
    if b.splat(left) is None or b.splat(right) is not None:
        return None
    return b.build("compare", [right, left], {"predicate": _SWAPPED[n.attrs["predicate"]]})


@RULES.add(*(name for name in ELEMENTWISE if name != "select"), on=("broadcast",))
def uniform_operands(n: Node, b: Rewriter) -> ir.Value | None:
    """op(broadcast(x), broadcast(y), c) → broadcast(op(x, y, c)), of fewer elements"""
    first = None
    for operand in n.operands:
        node = b.node(operand, "broadcast")
        if node is None:
            if b.splat(operand) is None:
                return None
            continue
        first = first or node
        if (
            node.attrs["dims"] != first.attrs["dims"]
            or b.type(node.operands[0]).shape != b.type(first.operands[0]).shape
        ):
            return None
    if first is None:
        return None
    small = b.type(first.operands[0])
    if small.numel >= n.type.numel:
        return None
    operands = []
    for operand in n.operands:
        value = b.splat(operand)
        if value is None:
            node = b.node(operand, "broadcast")
            assert node is not None
            operands.append(node.operands[0])
        else:
            operands.append(b.constant(value, TensorType(small.shape, b.type(operand).dtype)))
    inner = b.build(n.name, operands, n.attrs)
    return b.build("broadcast", [inner], {"shape": n.type.shape, "dims": first.attrs["dims"]})


@RULES.add(*ELEMENTWISE, on=("reshape",))
def unit_dimensions_later(n: Node, b: Rewriter) -> ir.Value | None:
    """op(reshape(x), reshape(y), c) → reshape(op(x, y, c)) where the reshapes add 1-dimensions"""
    source: tuple[int, ...] | None = None
    for operand in n.operands:
        node = b.node(operand, "reshape")
        if node is None:
            if b.splat(operand) is None:
                return None
            continue
        shape = b.type(node.operands[0]).shape
        if len(shape) >= n.type.rank or (source is not None and source != shape):
            return None
        source = shape
    if source is None or unit_reshape(source, n.type.shape) is None:
        return None
    operands = []
    for operand in n.operands:
        value, node = b.splat(operand), b.node(operand, "reshape")
        if node is not None:
            operands.append(node.operands[0])
        elif value is not None:
            operands.append(b.constant(value, TensorType(source, b.type(operand).dtype)))
    inner = b.build(n.name, operands, n.attrs)
    return b.build("reshape", [inner], {"shape": n.type.shape})


@RULES.add("reshape", "transpose", "broadcast", "slice", "reverse", "take", on=("splat",))
def move_constant(n: Node, b: Rewriter) -> ir.Value | None:
    """reshape(c) → a constant; the same for transpose, broadcast, slice, reverse and take"""
    c = b.splat(n.operands[0])
    return None if c is None else b.constant(c, n.type)
