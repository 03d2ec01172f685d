"""Conversions between element types.

In the one-line descriptions x, y, p are values and c, d are constants (splats).
"""

from __future__ import annotations

from gflow.dialects.mlir import ir
from gflow.dialects.types import FLOATS, INTEGERS, SIGNED

from .rewriter import Node, Rewriter
from .rules import Rules

RULES = Rules()


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


@RULES.add("convert")
def convert_to_itself(n: Node, b: Rewriter) -> ir.Value | None:
    """convert(x) → x where x has the element type already"""
    (x,) = n.operands
    return x if b.type(x).dtype == n.type.dtype else None


@RULES.add("convert", on=("convert",))
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
