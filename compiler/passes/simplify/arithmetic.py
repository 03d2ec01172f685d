"""Arithmetic on elementwise ops; every rule keeps IEEE results exact.

In the one-line descriptions x, y, p are values and c, d are constants (splats).
"""

from __future__ import annotations

import math

from gflow.dialects.mlir import ir
from gflow.dialects.types import FLOATS, INTEGERS, SIGNED

from .rewriter import Node, Rewriter
from .rules import Rules, Scalar

RULES = Rules()


_MIN_NORMAL_EXPONENT = {"f64": -1022, "f32": -126, "f16": -14, "bf16": -126}


def _is(value: Scalar | None, number: float) -> bool:
    """Whether a constant is `number`, telling zeros apart by their sign."""
    if value is None or value != number:
        return False
    return math.copysign(1, value) == math.copysign(1, number) or number != 0


def _is_negative_zero(value: Scalar | None, dtype: str) -> bool:
    if value is None or value != 0:
        return False
    return dtype not in FLOATS or math.copysign(1, value) < 0


@RULES.add("add", on=("splat",))
def add_zero(n: Node, b: Rewriter) -> ir.Value | None:
    """x + -0 → x; for integers x + 0 → x. (A float x + 0 is not x where x is -0.)"""
    x, c = n.operands
    return x if _is_negative_zero(b.splat(c), n.type.dtype) else None


@RULES.add("sub", on=("splat",))
def sub_zero(n: Node, b: Rewriter) -> ir.Value | None:
    """x - 0 → x"""
    x, c = n.operands
    return x if _is(b.splat(c), 0.0) else None


@RULES.add("sub", on=("splat",))
def sub_from_zero(n: Node, b: Rewriter) -> ir.Value | None:
    """-0 - x → neg(x); for integers 0 - x → neg(x)"""
    c, x = n.operands
    return b.build("neg", [x]) if _is_negative_zero(b.splat(c), n.type.dtype) else None


@RULES.add("sub")
def sub_itself(n: Node, b: Rewriter) -> ir.Value | None:
    """x - x → 0 for integers"""
    x, y = n.operands
    return b.constant(0, n.type) if x == y and n.type.dtype in INTEGERS else None


@RULES.add("add", on=("neg",))
def add_negated(n: Node, b: Rewriter) -> ir.Value | None:
    """x + neg(y) → x - y; neg(x) + y → y - x"""
    x, y = n.operands
    if (inner := b.node(y, "neg")) is not None:
        return b.build("sub", [x, inner.operands[0]])
    if (inner := b.node(x, "neg")) is not None:
        return b.build("sub", [y, inner.operands[0]])
    return None


@RULES.add("sub", on=("neg",))
def sub_negated(n: Node, b: Rewriter) -> ir.Value | None:
    """x - neg(y) → x + y"""
    x, y = n.operands
    inner = b.node(y, "neg")
    return None if inner is None else b.build("add", [x, inner.operands[0]])


@RULES.add("add", "mul", on=("splat",))
def reassociate_integers(n: Node, b: Rewriter) -> ir.Value | None:
    """(x + c) + d → x + (c + d) for integers; the same for *"""
    x, d = n.operands
    inner = b.node(x, n.name)
    if inner is None or n.type.dtype not in INTEGERS:
        return None
    if b.splat(d) is None or b.splat(inner.operands[1]) is None:
        return None
    return b.build(n.name, [inner.operands[0], b.build(n.name, [inner.operands[1], d])])


@RULES.add("mul", "div", on=("splat",))
def by_one(n: Node, b: Rewriter) -> ir.Value | None:
    """x * 1 → x; x / 1 → x"""
    x, c = n.operands
    return x if _is(b.splat(c), 1) else None


@RULES.add("mul", "div", on=("splat",))
def by_minus_one(n: Node, b: Rewriter) -> ir.Value | None:
    """x * -1 → neg(x); x / -1 → neg(x)"""
    x, c = n.operands
    signed = n.type.dtype in FLOATS or n.type.dtype in SIGNED
    return b.build("neg", [x]) if signed and _is(b.splat(c), -1) else None


@RULES.add("mul", on=("splat",))
def times_zero(n: Node, b: Rewriter) -> ir.Value | None:
    """x * 0 → 0 for integers. (A float x * 0 is NaN where x is an infinity.)"""
    integer = n.type.dtype in INTEGERS
    return n.operands[1] if integer and _is(b.splat(n.operands[1]), 0) else None


@RULES.add("mul", on=("neg",))
def times_negated(n: Node, b: Rewriter) -> ir.Value | None:
    """neg(x) * neg(y) → x * y; neg(x) * c → x * -c"""
    x, y = n.operands
    left, right = b.node(x, "neg"), b.node(y, "neg")
    if left is not None and right is not None:
        return b.build("mul", [left.operands[0], right.operands[0]])
    if left is not None and b.splat(y) is not None:
        return b.build("mul", [left.operands[0], b.build("neg", [y])])
    return None


@RULES.add("div", on=("splat",))
def by_power_of_two(n: Node, b: Rewriter) -> ir.Value | None:
    """x / c → x * (1/c) where c is a power of two, so that 1/c is exact"""
    x, divisor = n.operands
    c = b.splat(divisor)
    if c is None or n.type.dtype not in FLOATS or c == 0 or not math.isfinite(c):
        return None
    mantissa, exponent = math.frexp(c)
    if abs(mantissa) != 0.5 or 1 - exponent < _MIN_NORMAL_EXPONENT[n.type.dtype]:
        return None
    if exponent - 1 < _MIN_NORMAL_EXPONENT[n.type.dtype]:
        return None
    return b.build("mul", [x, b.constant(1.0 / c, n.type)])


@RULES.add("div", on=("splat",))
def one_over(n: Node, b: Rewriter) -> ir.Value | None:
    """1 / x → reciprocal(x) for floats"""
    c, x = n.operands
    one = n.type.dtype in FLOATS and _is(b.splat(c), 1)
    return b.build("reciprocal", [x]) if one else None


@RULES.add("pow", on=("splat",))
def pow_of_constant(n: Node, b: Rewriter) -> ir.Value | None:
    """pow(x, c) → products, reciprocal for c = -2, -1, 0, 1, 2, 3"""
    x, exponent = n.operands
    c = b.splat(exponent)
    if c is None:
        return None
    if c == 0:
        return b.constant(1, n.type)
    if c == 1:
        return x
    if c == 2:
        return b.build("mul", [x, x])
    if c == 3:
        return b.build("mul", [b.build("mul", [x, x]), x])
    if n.type.dtype not in FLOATS:
        return None
    if c == -1:
        return b.build("reciprocal", [x])
    if c == -2:
        return b.build("reciprocal", [b.build("mul", [x, x])])
    return None


@RULES.add("neg", "not", on=("neg", "not"))
def twice(n: Node, b: Rewriter) -> ir.Value | None:
    """neg(neg(x)) → x; not(not(x)) → x"""
    inner = b.node(n.operands[0], n.name)
    return None if inner is None else inner.operands[0]


@RULES.add(
    "abs",
    "floor",
    "ceil",
    "trunc",
    "round",
    "sign",
    on=("abs", "floor", "ceil", "trunc", "round", "sign"),
)
def once_is_enough(n: Node, b: Rewriter) -> ir.Value | None:
    """abs(abs(x)) → abs(x); the same for floor, ceil, trunc, round and sign"""
    inner = b.node(n.operands[0], n.name)
    return None if inner is None else inner.result


@RULES.add("abs", "cos", "cosh", on=("neg",))
def even_function(n: Node, b: Rewriter) -> ir.Value | None:
    """abs(neg(x)) → abs(x); the same for cos and cosh"""
    inner = b.node(n.operands[0], "neg")
    if inner is None or n.type.dtype not in FLOATS:
        return None
    return b.build(n.name, [inner.operands[0]])


@RULES.add("neg", on=("mul", "div"))
def negated_product(n: Node, b: Rewriter) -> ir.Value | None:
    """neg(x * c) → x * -c; neg(x / c) → x / -c"""
    for name in ("mul", "div"):
        inner = b.node(n.operands[0], name)
        if inner is None or n.type.dtype not in FLOATS or b.splat(inner.operands[1]) is None:
            continue
        return b.build(name, [inner.operands[0], b.build("neg", [inner.operands[1]])])
    return None
