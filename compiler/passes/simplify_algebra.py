"""Algebra on elementwise ops, reductions and contractions; every rule keeps IEEE results exact.

In the rules' one-line descriptions x, y, p are values and c, d are constants (splats).
"""

from __future__ import annotations

import math
from math import prod
from typing import Any

from gflow.dialects.mlir import ir
from gflow.dialects.ops import OPS
from gflow.dialects.types import FLOATS, INTEGERS, SIGNED, TensorType

from .folding import evaluate, round_to
from .rewriting import Node, Rewriter, Rules, Scalar, rule
from .simplify_shape import unit_reshape

RULES: Rules = {}

ELEMENTWISE = tuple(name for name, op in OPS.items() if op.category == "elementwise")
_COMMUTATIVE = ("add", "mul", "maximum", "minimum", "and", "or", "xor")
_INVERTED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
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


@rule(RULES, *ELEMENTWISE)
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


@rule(RULES, *_COMMUTATIVE)
def constant_to_the_right(n: Node, b: Rewriter) -> ir.Value | None:
    """op(c, x) → op(x, c)"""
    left, right = n.operands
    if b.splat(left) is None or b.splat(right) is not None:
        return None
    return b.build(n.name, [right, left])


@rule(RULES, "compare")
def compare_constant_to_the_right(n: Node, b: Rewriter) -> ir.Value | None:
    """c < x → x > c"""
    left, right = n.operands
    if b.splat(left) is None or b.splat(right) is not None:
        return None
    return b.build("compare", [right, left], {"predicate": _SWAPPED[n.attrs["predicate"]]})


@rule(RULES, *(name for name in ELEMENTWISE if name != "select"))
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


@rule(RULES, *ELEMENTWISE)
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


# -- addition and subtraction


@rule(RULES, "add")
def add_zero(n: Node, b: Rewriter) -> ir.Value | None:
    """x + -0 → x; for integers x + 0 → x. (A float x + 0 is not x where x is -0.)"""
    x, c = n.operands
    return x if _is_negative_zero(b.splat(c), n.type.dtype) else None


@rule(RULES, "sub")
def sub_zero(n: Node, b: Rewriter) -> ir.Value | None:
    """x - 0 → x"""
    x, c = n.operands
    return x if _is(b.splat(c), 0.0) else None


@rule(RULES, "sub")
def sub_from_zero(n: Node, b: Rewriter) -> ir.Value | None:
    """-0 - x → neg(x); for integers 0 - x → neg(x)"""
    c, x = n.operands
    return b.build("neg", [x]) if _is_negative_zero(b.splat(c), n.type.dtype) else None


@rule(RULES, "sub")
def sub_itself(n: Node, b: Rewriter) -> ir.Value | None:
    """x - x → 0 for integers"""
    x, y = n.operands
    return b.constant(0, n.type) if x == y and n.type.dtype in INTEGERS else None


@rule(RULES, "add")
def add_negated(n: Node, b: Rewriter) -> ir.Value | None:
    """x + neg(y) → x - y; neg(x) + y → y - x"""
    x, y = n.operands
    if (inner := b.node(y, "neg")) is not None:
        return b.build("sub", [x, inner.operands[0]])
    if (inner := b.node(x, "neg")) is not None:
        return b.build("sub", [y, inner.operands[0]])
    return None


@rule(RULES, "sub")
def sub_negated(n: Node, b: Rewriter) -> ir.Value | None:
    """x - neg(y) → x + y"""
    x, y = n.operands
    inner = b.node(y, "neg")
    return None if inner is None else b.build("add", [x, inner.operands[0]])


@rule(RULES, "add", "mul")
def reassociate_integers(n: Node, b: Rewriter) -> ir.Value | None:
    """(x + c) + d → x + (c + d) for integers; the same for *"""
    x, d = n.operands
    inner = b.node(x, n.name)
    if inner is None or n.type.dtype not in INTEGERS:
        return None
    if b.splat(d) is None or b.splat(inner.operands[1]) is None:
        return None
    return b.build(n.name, [inner.operands[0], b.build(n.name, [inner.operands[1], d])])


# -- multiplication and division


@rule(RULES, "mul", "div")
def by_one(n: Node, b: Rewriter) -> ir.Value | None:
    """x * 1 → x; x / 1 → x"""
    x, c = n.operands
    return x if _is(b.splat(c), 1) else None


@rule(RULES, "mul", "div")
def by_minus_one(n: Node, b: Rewriter) -> ir.Value | None:
    """x * -1 → neg(x); x / -1 → neg(x)"""
    x, c = n.operands
    signed = n.type.dtype in FLOATS or n.type.dtype in SIGNED
    return b.build("neg", [x]) if signed and _is(b.splat(c), -1) else None


@rule(RULES, "mul")
def times_zero(n: Node, b: Rewriter) -> ir.Value | None:
    """x * 0 → 0 for integers. (A float x * 0 is NaN where x is an infinity.)"""
    integer = n.type.dtype in INTEGERS
    return n.operands[1] if integer and _is(b.splat(n.operands[1]), 0) else None


@rule(RULES, "mul")
def times_negated(n: Node, b: Rewriter) -> ir.Value | None:
    """neg(x) * neg(y) → x * y; neg(x) * c → x * -c"""
    x, y = n.operands
    left, right = b.node(x, "neg"), b.node(y, "neg")
    if left is not None and right is not None:
        return b.build("mul", [left.operands[0], right.operands[0]])
    if left is not None and b.splat(y) is not None:
        return b.build("mul", [left.operands[0], b.build("neg", [y])])
    return None


@rule(RULES, "div")
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


@rule(RULES, "div")
def one_over(n: Node, b: Rewriter) -> ir.Value | None:
    """1 / x → reciprocal(x) for floats"""
    c, x = n.operands
    one = n.type.dtype in FLOATS and _is(b.splat(c), 1)
    return b.build("reciprocal", [x]) if one else None


@rule(RULES, "pow")
def pow_of_constant(n: Node, b: Rewriter) -> ir.Value | None:
    """pow(x, c) → products, sqrt, rsqrt, reciprocal for c = -2, -1, ±½, 0, 1, 2, 3, as PyTorch"""
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
    if c == 0.5:
        return b.build("sqrt", [x])
    if c == -0.5:
        return b.build("rsqrt", [x])
    if c == -1:
        return b.build("reciprocal", [x])
    if c == -2:
        return b.build("reciprocal", [b.build("mul", [x, x])])
    return None


# -- unary


@rule(RULES, "neg", "not")
def twice(n: Node, b: Rewriter) -> ir.Value | None:
    """neg(neg(x)) → x; not(not(x)) → x"""
    inner = b.node(n.operands[0], n.name)
    return None if inner is None else inner.operands[0]


@rule(RULES, "abs", "floor", "ceil", "trunc", "round", "sign")
def once_is_enough(n: Node, b: Rewriter) -> ir.Value | None:
    """abs(abs(x)) → abs(x); the same for floor, ceil, trunc, round and sign"""
    inner = b.node(n.operands[0], n.name)
    return None if inner is None else inner.result


@rule(RULES, "abs", "cos", "cosh")
def even_function(n: Node, b: Rewriter) -> ir.Value | None:
    """abs(neg(x)) → abs(x); the same for cos and cosh"""
    inner = b.node(n.operands[0], "neg")
    if inner is None or n.type.dtype not in FLOATS:
        return None
    return b.build(n.name, [inner.operands[0]])


@rule(RULES, "neg")
def negated_product(n: Node, b: Rewriter) -> ir.Value | None:
    """neg(x * c) → x * -c; neg(x / c) → x / -c"""
    for name in ("mul", "div"):
        inner = b.node(n.operands[0], name)
        if inner is None or n.type.dtype not in FLOATS or b.splat(inner.operands[1]) is None:
            continue
        return b.build(name, [inner.operands[0], b.build("neg", [inner.operands[1]])])
    return None


@rule(RULES, "not")
def inverted_compare(n: Node, b: Rewriter) -> ir.Value | None:
    """not(x == y) → x != y and back; the other relations for integers only, because of NaN"""
    inner = b.node(n.operands[0], "compare")
    if inner is None:
        return None
    predicate = inner.attrs["predicate"]
    if predicate not in ("eq", "ne") and b.type(inner.operands[0]).dtype in FLOATS:
        return None
    return b.build("compare", inner.operands, {"predicate": _INVERTED[predicate]})


# -- bits, extremes, choices


@rule(RULES, "and", "or", "maximum", "minimum")
def same_twice(n: Node, b: Rewriter) -> ir.Value | None:
    """maximum(x, x) → x; the same for minimum, and, or"""
    x, y = n.operands
    return x if x == y else None


@rule(RULES, "and", "or", "xor", "shift_left", "shift_right")
def bits_with_constant(n: Node, b: Rewriter) -> ir.Value | None:
    """x & 0 → 0, x & ~0 → x, x | 0 → x, x | ~0 → ~0, x ^ 0 → x, x << 0 → x, x >> 0 → x"""
    x, mask = n.operands
    c = b.splat(mask)
    if c is None:
        return None
    full = c is True or (n.type.dtype in SIGNED and c == -1)
    if n.name == "and" and (c == 0 or full):
        return x if full else mask
    if n.name == "or" and (c == 0 or full):
        return mask if full else x
    return x if n.name in ("xor", "shift_left", "shift_right") and c == 0 else None


@rule(RULES, "xor")
def xor_itself(n: Node, b: Rewriter) -> ir.Value | None:
    """x ^ x → 0; x ^ true → not(x)"""
    x, y = n.operands
    if x == y:
        return b.constant(False if n.type.dtype == "i1" else 0, n.type)
    return b.build("not", [x]) if n.type.dtype == "i1" and b.splat(y) is True else None


@rule(RULES, "maximum", "minimum")
def extreme_of_extreme(n: Node, b: Rewriter) -> ir.Value | None:
    """maximum(maximum(x, c), d) → maximum(x, maximum(c, d)); the same for minimum"""
    x, d = n.operands
    inner = b.node(x, n.name)
    if inner is None or b.splat(d) is None or b.splat(inner.operands[1]) is None:
        return None
    return b.build(n.name, [inner.operands[0], b.build(n.name, [inner.operands[1], d])])


@rule(RULES, "select")
def select_known(n: Node, b: Rewriter) -> ir.Value | None:
    """select(true, x, y) → x; select(false, x, y) → y; select(p, x, x) → x"""
    predicate, x, y = n.operands
    c = b.splat(predicate)
    if c is not None:
        return x if c else y
    return x if x == y else None


@rule(RULES, "select")
def select_inverted(n: Node, b: Rewriter) -> ir.Value | None:
    """select(not(p), x, y) → select(p, y, x)"""
    predicate, x, y = n.operands
    inner = b.node(predicate, "not")
    return None if inner is None else b.build("select", [inner.operands[0], y, x])


@rule(RULES, "compare")
def compare_with_itself(n: Node, b: Rewriter) -> ir.Value | None:
    """x == x → true, x < x → false, … for integers and booleans"""
    x, y = n.operands
    if x != y or b.type(x).dtype in FLOATS:
        return None
    return b.constant(n.attrs["predicate"] in ("eq", "le", "ge"), n.type)


@rule(RULES, "compare")
def boolean_compare(n: Node, b: Rewriter) -> ir.Value | None:
    """p == true → p, p != false → p, p == false → not(p), p != true → not(p) for booleans"""
    x, y = n.operands
    c = b.splat(y)
    if c is None or b.type(x).dtype != "i1" or n.attrs["predicate"] not in ("eq", "ne"):
        return None
    return x if (n.attrs["predicate"] == "eq") == bool(c) else b.build("not", [x])


# -- conversions

_EXACT_INT_BITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}


def is_lossless(source: str, target: str) -> bool:
    """Whether every value of element type `source` is one of `target`."""
    if source == target or source == "i1":
        return True
    if source in FLOATS:
        wider = {"f16": ("f32", "f64"), "bf16": ("f32", "f64"), "f32": ("f64",)}
        return target in wider.get(source, ())
    if source not in INTEGERS:
        return False
    bits = int(source.lstrip("ui")) - (source in SIGNED)
    if target in FLOATS:
        return bits <= _EXACT_INT_BITS[target]
    if target not in INTEGERS or (source in SIGNED and target not in SIGNED):
        return False
    return bits <= int(target.lstrip("ui")) - (target in SIGNED)


@rule(RULES, "convert")
def convert_to_itself(n: Node, b: Rewriter) -> ir.Value | None:
    """convert(x) → x where x has the element type already"""
    (x,) = n.operands
    return x if b.type(x).dtype == n.type.dtype else None


@rule(RULES, "convert")
def convert_twice(n: Node, b: Rewriter) -> ir.Value | None:
    """convert(convert(x)) → convert(x) where the first loses nothing (f16 → f32, not f32 → f16)"""
    inner = b.node(n.operands[0], "convert")
    if inner is None:
        return None
    source = inner.operands[0]
    if not is_lossless(b.type(source).dtype, inner.type.dtype):
        return None
    if b.type(source).dtype == n.type.dtype:
        return source
    return b.build("convert", [source], {"dtype": n.type.dtype})


# -- reductions and contractions


@rule(RULES, "reduce")
def reduce_nothing(n: Node, b: Rewriter) -> ir.Value | None:
    """reduce over no dimension → x; over dimensions of size 1 → reshape(x)"""
    (x,) = n.operands
    if n.attrs["kind"] in ("argmax", "argmin"):
        return None
    shape = b.type(x).shape
    if any(shape[d] != 1 for d in n.attrs["dims"]):
        return None
    return b.build("reshape", [x], {"shape": n.type.shape}) if n.attrs["dims"] else x


@rule(RULES, "reduce")
def reduce_constant(n: Node, b: Rewriter) -> ir.Value | None:
    """reduce(c) → a constant"""
    (x,) = n.operands
    c = b.splat(x)
    if c is None:
        return None
    count = prod(b.type(x).shape[d] for d in n.attrs["dims"])
    value = _reduced(n.attrs["kind"], c, count, n.type.dtype)
    return None if value is None else b.constant(value, n.type)


def _reduced(kind: str, c: Scalar, count: int, dtype: str) -> Any:
    if kind in ("argmax", "argmin"):
        return 0
    if kind in ("max", "min"):
        return c
    if kind in ("any", "all"):
        return bool(c) if count else kind == "all"
    if kind == "prod" and c not in (0, 1) and count:
        return None
    if kind == "prod":
        return 1 if count == 0 else c
    ty = TensorType((), dtype)
    if dtype in FLOATS:
        return 0.0 if count == 0 else evaluate("mul", {}, [c, float(count)], ty, ty)
    return evaluate("mul", {}, [int(c), count], ty, ty) if dtype in INTEGERS else None


@rule(RULES, "reduce")
def reduce_broadcast(n: Node, b: Rewriter) -> ir.Value | None:
    """reduce over dimensions that a broadcast added → x, or x * size for a sum"""
    inner = b.node(n.operands[0], "broadcast")
    kind = n.attrs["kind"]
    if inner is None or kind not in ("sum", "max", "min", "any", "all"):
        return None
    x, carried = inner.operands[0], inner.attrs["dims"]
    if any(d in carried for d in n.attrs["dims"]):
        return None
    count = prod(inner.type.shape[d] for d in n.attrs["dims"])
    if count == 0 or (kind == "sum" and n.type.dtype not in FLOATS):
        return None
    if kind == "sum" and round_to(float(count), n.type.dtype) != count:
        return None
    kept = [d for d in range(inner.type.rank) if d not in n.attrs["dims"]]
    dims = tuple(kept.index(d) for d in carried)
    value = b.build("broadcast", [x], {"shape": n.type.shape, "dims": dims})
    if kind == "sum" and count != 1:
        return b.build("mul", [value, b.constant(float(count), n.type)])
    return value


@rule(RULES, "matmul")
def matmul_over_nothing(n: Node, b: Rewriter) -> ir.Value | None:
    """matmul over a contracted dimension of size 0 → 0"""
    if b.type(n.operands[0]).shape[-1] != 0:
        return None
    return b.constant(0, n.type)
