"""Bitwise ops, comparisons, minimum, maximum and select.

In the one-line descriptions x, y, p are values and c, d are constants (splats).
"""

from __future__ import annotations

from gflow.dialects.mlir import ir
from gflow.dialects.types import FLOATS, SIGNED

from .rewriter import Node, Rewriter
from .rules import Rules

RULES = Rules()


_INVERTED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


@RULES.add("not", on=("compare",))
def inverted_compare(n: Node, b: Rewriter) -> ir.Value | None:
    """not(x == y) → x != y and back; the other relations for integers only, because of NaN"""
    inner = b.node(n.operands[0], "compare")
    if inner is None:
        return None
    predicate = inner.attrs["predicate"]
    if predicate not in ("eq", "ne") and b.type(inner.operands[0]).dtype in FLOATS:
        return None
    return b.build("compare", inner.operands, {"predicate": _INVERTED[predicate]})


@RULES.add("and", "or", "maximum", "minimum")
def same_twice(n: Node, b: Rewriter) -> ir.Value | None:
    """maximum(x, x) → x; the same for minimum, and, or"""
    x, y = n.operands
    return x if x == y else None


@RULES.add("and", "or", "xor", "shift_left", "shift_right", on=("splat",))
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


@RULES.add("xor")
def xor_itself(n: Node, b: Rewriter) -> ir.Value | None:
    """x ^ x → 0; x ^ true → not(x)"""
    x, y = n.operands
    if x == y:
        return b.constant(False if n.type.dtype == "i1" else 0, n.type)
    return b.build("not", [x]) if n.type.dtype == "i1" and b.splat(y) is True else None


@RULES.add("maximum", "minimum", on=("splat",))
def extreme_of_extreme(n: Node, b: Rewriter) -> ir.Value | None:
    """maximum(maximum(x, c), d) → maximum(x, maximum(c, d)); the same for minimum"""
    x, d = n.operands
    inner = b.node(x, n.name)
    if inner is None or b.splat(d) is None or b.splat(inner.operands[1]) is None:
        return None
    return b.build(n.name, [inner.operands[0], b.build(n.name, [inner.operands[1], d])])


@RULES.add("select")
def select_known(n: Node, b: Rewriter) -> ir.Value | None:
    """select(true, x, y) → x; select(false, x, y) → y; select(p, x, x) → x"""
    predicate, x, y = n.operands
    c = b.splat(predicate)
    if c is not None:
        return x if c else y
    return x if x == y else None


@RULES.add("select", on=("not",))
def select_inverted(n: Node, b: Rewriter) -> ir.Value | None:
    """select(not(p), x, y) → select(p, y, x)"""
    predicate, x, y = n.operands
    inner = b.node(predicate, "not")
    return None if inner is None else b.build("select", [inner.operands[0], y, x])


@RULES.add("compare")
def compare_with_itself(n: Node, b: Rewriter) -> ir.Value | None:
    """x == x → true, x < x → false, … for integers and booleans"""
    x, y = n.operands
    if x != y or b.type(x).dtype in FLOATS:
        return None
    return b.constant(n.attrs["predicate"] in ("eq", "le", "ge"), n.type)


@RULES.add("compare", on=("splat",))
def boolean_compare(n: Node, b: Rewriter) -> ir.Value | None:
    """p == true → p, p != false → p, p == false → not(p), p != true → not(p) for booleans"""
    x, y = n.operands
    c = b.splat(y)
    if c is None or b.type(x).dtype != "i1" or n.attrs["predicate"] not in ("eq", "ne"):
        return None
    return x if (n.attrs["predicate"] == "eq") == bool(c) else b.build("not", [x])
