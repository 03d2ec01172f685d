"""Constants as bytes."""

from __future__ import annotations

import re

import numpy as np

from gflow.dialects.mlir import ir
from gflow.dialects.types import TensorType

_FORMATS = {"i1": "?", "f16": "<f2", "f32": "<f4", "f64": "<f8"}


def constant_bytes(elements: ir.DenseElementsAttr, ty: TensorType) -> bytes:
    """A constant's elements as PyTorch stores them; one element for a splat."""
    if ty.dtype == "bf16":
        return _bfloat16_bytes(elements)
    code = _FORMATS.get(ty.dtype) or f"<{'u' if ty.dtype.startswith('u') else 'i'}{ty.itemsize}"
    if elements.is_splat:
        raw = elements.get_splat_value()
        known = isinstance(raw, ir.FloatAttr | ir.BoolAttr)
        values = np.array([raw.value if known else ir.IntegerAttr(raw).value], dtype=code)
    else:
        values = np.array(elements).astype(code)
    return values.tobytes()


def _bfloat16_bytes(elements: ir.DenseElementsAttr) -> bytes:
    """The bindings give no access to elements of this type; their text does."""
    if elements.is_splat:
        numbers = [elements.get_splat_value().value]
    else:
        body = str(elements).partition("<")[2].rpartition("> : ")[0]
        if body.startswith('"0x'):
            return bytes.fromhex(body[3:-1])
        words = re.findall(r"0x[0-9A-Fa-f]+|[-+.\w]+", body)
        if any(w.startswith("0x") for w in words):
            bits = [int(w, 16) if w.startswith("0x") else _bits(float(w)) for w in words]
            return np.array(bits, dtype="<u2").tobytes()
        numbers = [float(w) for w in words]
    return np.array([_bits(x) for x in numbers], dtype="<u2").tobytes()


def _bits(x: float) -> int:
    """The bits of a number near a bfloat16: printed digits may be a little off."""
    raw = int(np.array(x, dtype="<f4").view("<u4"))
    return (raw + 0x7FFF + (raw >> 16 & 1)) >> 16 if x == x else 0x7FC0
