"""The elements of constants: as attributes, and as bytes.

A constant of more than `INLINE_ELEMENTS` elements that aren't all the same is a resource: in the
text of a module it is a name, and its bytes stand in hexadecimal at the end.

    %0 = "gflow.constant"() {value = dense_resource<c_51f0b1f2a3d4> : tensor<1000xf32>} : …
    {-# dialect_resources: { builtin: { c_51f0b1f2a3d4: "0x04000000…" } } #-}
"""

from __future__ import annotations

import hashlib
import re

import numpy as np

from .mlir import ir
from .types import NO_KERNELS, TensorType, try_tensor_type

#: constants of more elements are resources
INLINE_ELEMENTS = 64

_FORMATS = {"i1": "?", "f16": "<f2", "f32": "<f4", "f64": "<f8"}
_ALIGNMENT_DIGITS = 8  # a blob's text starts with its alignment, as a 32-bit number


class ConstantError(ValueError):
    """The elements of a constant cannot be read; the message says why."""


def dense_attribute(array: np.ndarray, ty: TensorType) -> ir.Attribute:
    """The elements of `array` as an attribute of a `gflow.constant`.

    array: holds `ty.dtype`'s bytes (bf16 as uint16, i1 as bool).
    """
    packed = np.ascontiguousarray(array)
    if ty.dtype in NO_KERNELS:  # the bindings cannot read them in any other form
        return _resource(packed, ty)
    if ty.numel > INLINE_ELEMENTS and not (packed == packed.flat[0]).all():
        return _resource(packed, ty)
    return ir.DenseElementsAttr.get(packed, type=ty.mlir())


def _resource(array: np.ndarray, ty: TensorType) -> ir.Attribute:
    data = array.tobytes()
    name = f"c_{hashlib.sha256(data).hexdigest()[:12]}"
    # the buffer is kept as long as the context needs it
    buffer = np.frombuffer(data, dtype=np.uint8)
    return ir.DenseResourceElementsAttr.get_from_buffer(
        buffer, name, ty.mlir(), alignment=max(ty.itemsize, 1)
    )


def as_resource(attribute: ir.Attribute) -> ir.Attribute | None:
    """`attribute` as a resource; None if it isn't one.

    Attributes that come from text have no class of their own in the bindings.
    """
    if isinstance(attribute, ir.DenseResourceElementsAttr):
        return attribute
    if isinstance(attribute, ir.DenseElementsAttr):
        return None
    try:
        return ir.DenseResourceElementsAttr(attribute)
    except ValueError:
        return None


def is_splat(attribute: ir.Attribute) -> bool:
    """Whether all elements of a constant are the same."""
    return isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat


def element_bytes(attribute: ir.Attribute, ty: TensorType) -> bytes:
    """A constant's elements as PyTorch stores them; one element for a splat.

    Raises:
        ConstantError: they are not in the text, or not as many as the type has.
    """
    resource = as_resource(attribute)
    if resource is not None:
        return _resource_bytes(resource, ty)
    elements = ir.DenseElementsAttr(attribute)
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


def _resource_bytes(attribute: ir.Attribute, ty: TensorType) -> bytes:
    """The bytes of a resource. The bindings show them only in the text of an op that has it."""
    with attribute.context, ir.Location.unknown():
        holder = ir.Operation.create(
            "builtin.module", attributes={"v": attribute}, regions=1, ip=False
        )
        holder.regions[0].blocks.append()
        text = holder.get_asm(assume_verified=True)
    name = str(attribute).partition("<")[2].rpartition("> : ")[0]
    start = text.find('"0x', text.find("dialect_resources"))
    if "dialect_resources" not in text or start < 0:
        raise ConstantError(
            f"the elements of the constant '{name}' are not in the text; it was printed without them"
        )
    start += 3 + _ALIGNMENT_DIGITS
    data = bytes.fromhex(text[start : text.index('"', start)])
    if len(data) != ty.nbytes:
        raise ConstantError(
            f"the constant '{name}' has {len(data)} bytes, its type {ty} has {ty.nbytes}"
        )
    return data


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


def externalize(root: ir.Operation) -> None:
    """Turn every large constant under `root` that is written out into a resource."""

    def visit(op: ir.Operation) -> ir.WalkResult:
        operation = op.operation
        if operation.name == "gflow.constant":
            _externalize(operation)
        return ir.WalkResult.ADVANCE

    with root.context, ir.Location.unknown():
        root.walk(visit)


def _externalize(op: ir.Operation) -> None:
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or attribute.is_splat:
        return
    ty = try_tensor_type(attribute.type)
    if ty is None or ty.numel <= INLINE_ELEMENTS or ty.dtype in NO_KERNELS:
        return
    data = np.frombuffer(element_bytes(attribute, ty), dtype=np.uint8)
    op.attributes["value"] = _resource(data, ty)
