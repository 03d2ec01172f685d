"""Building ops: result types come from the shape rule, attributes from plain Python data.

All functions work at the current MLIR context, location and insertion point.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from .attributes import to_mlir
from .constants import dense_attribute
from .mlir import ir
from .opdef import MIXED_GROUPS, VerifyError
from .ops import OPS
from .types import COMPLEX, FLOATS, TensorType, tensor_type, type_of


def build_op(
    name: str,
    operands: Sequence[ir.Value],
    attrs: dict[str, Any] | None = None,
    result_types: Sequence[TensorType] | None = None,
) -> ir.Operation:
    """Build `gflow.<name>`. `result_types` is needed only where the op has no shape rule.

    Raises:
        VerifyError: operands and attributes break the op's shape rule.
    """
    definition = OPS[name]
    attrs = attrs or {}
    if result_types is None:
        assert definition.infer is not None, f"gflow.{name} has no shape rule; give result_types"
        plain = {spec: attrs.get(spec) for spec in definition.attrs} if definition.attrs else {}
        if name == "constant":
            plain["value"] = tensor_type(attrs["value"].type)
        result_types = definition.infer([type_of(v) for v in operands], plain)
    attributes = (
        {
            key: to_mlir(definition.attrs[key], value)
            for key, value in attrs.items()
            if value is not None
        }
        if attrs
        else {}
    )
    types = [ty.mlir() for ty in result_types]
    if definition.mixed:
        attributes["operandSegmentSizes"] = segment_sizes(
            [v.type for v in operands], definition.groups
        )
        if definition.results is None:
            attributes["resultSegmentSizes"] = segment_sizes(types, definition.groups)
    return ir.Operation.create(
        f"gflow.{name}",
        results=types,
        operands=list(operands),
        attributes=attributes,
        regions=definition.regions,
    )


def segment_sizes(types: Sequence[ir.Type], groups: int = MIXED_GROUPS) -> ir.Attribute:
    """The lengths of the runs of equal types, for a `mixed` op. groups: that it has.

    Raises:
        VerifyError: there are more runs than such an op has groups; order operands by type.
    """
    runs = [len(list(run)) for _, run in groupby(types)]
    if len(runs) > groups:
        raise VerifyError(f"{len(runs)} runs of equal types, at most {groups} are possible")
    return ir.DenseI32ArrayAttr.get(runs + [0] * (groups - len(runs)))


def build(name: str, operands: Sequence[ir.Value], attrs: dict[str, Any] | None = None) -> ir.Value:
    """Build an op of one result and return the result."""
    return build_op(name, operands, attrs).results[0]


def splat(value: float | int | bool, ty: TensorType) -> ir.Value:
    """A constant of type `ty`, the same everywhere."""
    if ty.dtype in COMPLEX:
        kind = np.complex64 if ty.dtype == "complex<f32>" else np.complex128
        if ty.dtype == "complex<f16>":
            return convert(splat(value, TensorType(ty.shape, "complex<f32>")), ty.dtype)
        return dense(np.full(ty.shape, value, kind), ty)
    element = ty.mlir().element_type
    if ty.dtype in FLOATS:
        scalar: ir.Attribute = ir.FloatAttr.get(element, float(value))
    else:
        scalar = ir.IntegerAttr.get(element, int(value))
    return build("constant", [], {"value": ir.DenseElementsAttr.get_splat(ty.mlir(), scalar)})


def dense(array: np.ndarray, ty: TensorType) -> ir.Value:
    """A constant with the elements of `array`.

    array: holds `ty.dtype`'s bytes (bf16 as uint16, i1 as bool).
    """
    return build("constant", [], {"value": dense_attribute(array, ty)})


def convert(x: ir.Value, dtype: str) -> ir.Value:
    """`x` in another element type; `x` itself where it has it already."""
    return x if type_of(x).dtype == dtype else build("convert", [x], {"dtype": dtype})


def broadcast(x: ir.Value, shape: Sequence[int], dims: Sequence[int] | None = None) -> ir.Value:
    """`x` broadcast to `shape`.

    dims: the dimension of the result for each of `x`; the last ones if None (PyTorch's rule).
    """
    ty = type_of(x)
    if ty.shape == tuple(shape) and dims is None:
        return x
    if dims is None:
        dims = range(len(shape) - ty.rank, len(shape))
    return build("broadcast", [x], {"shape": tuple(shape), "dims": tuple(dims)})


def reshape(x: ir.Value, shape: Sequence[int]) -> ir.Value:
    """`x` reshaped; `x` itself where it has that shape already."""
    return x if type_of(x).shape == tuple(shape) else build("reshape", [x], {"shape": tuple(shape)})


def transpose(x: ir.Value, permutation: Sequence[int]) -> ir.Value:
    """`x` with permuted dimensions; `x` itself where the permutation is the identity."""
    if list(permutation) == list(range(len(permutation))):
        return x
    return build("transpose", [x], {"permutation": tuple(permutation)})


def location(file: str, line: int, name: str) -> ir.Location:
    """A source location: `name` is "phase:module.path"."""
    return ir.Location.name(name, childLoc=ir.Location.file(file, line, 0))
